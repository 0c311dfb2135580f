"""SIGKILL at any moment: nothing acknowledged is lost, revisions never go back, watches resume."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from kvorum.api.pb.etcdserverpb import WatchRequest
from tests.process.client import Client, connected
from tests.process.fork_server import fork_server

ROUNDS = 50
IN_FLIGHT = 12
# Snapshots, new segments and commits happen often, so that a kill may hit one.
FLAGS = ("--snapshot-count=40", "--backend-batch-interval=3ms", "--max-wals=2")

Event = tuple[int, bytes]


def stream(first: int, until: "SimpleQueue[None]") -> Iterator[WatchRequest]:
    request = WatchRequest()
    request.create_request.key = request.create_request.range_end = b"\0"
    request.create_request.start_revision = first
    yield request
    until.get()


def collect(client: Client, first: int, last: int) -> list[Event]:
    """Watch everything from a revision on, up to another."""
    events: list[Event] = []
    until: SimpleQueue[None] = SimpleQueue()
    call = client.watch(stream(first, until))
    try:
        while not events or events[-1][0] < last:
            if first > last:
                break
            events += [(event.kv.mod_revision, event.kv.key) for event in next(call).events]
    finally:
        until.put(None)
        call.cancel()
    return events


def write_until(client: Client, name: str, acknowledged: int) -> dict[bytes, int]:
    """Put keys, several at a time, until so many are acknowledged; return those."""
    waiting: list[tuple[bytes, Any]] = []
    done: dict[bytes, int] = {}
    number = 0
    while len(done) < acknowledged:
        while len(waiting) < IN_FLIGHT:
            key = f"{name}/{number}".encode()
            waiting.append((key, client.put_later(key, key * 8)))
            number += 1
        key, call = waiting.pop(0)
        done[key] = call.result().header.revision
    # Puts that are still in flight may or may not be applied.
    return done


@pytest.mark.long
def test_fifty_kills(tmp_path: Path) -> None:
    random_ = random.Random(20)
    acknowledged: dict[bytes, int] = {}
    watched: list[Event] = []
    revision = 1
    data = tmp_path / "data"
    with fork_server(tmp_path) as servers:
        for number in range(ROUNDS):
            server = servers.start(data, *FLAGS)
            server.wait_ready()
            with connected(server.address) as client:
                everything = client.everything()
                assert everything.header.revision >= revision
                found = {kv.key: kv.mod_revision for kv in everything.kvs}
                assert acknowledged.items() <= found.items()
                assert all(kv.value == kv.key * 8 for kv in everything.kvs)
                revision = everything.header.revision
                watched += collect(client, len(watched) + 2, revision)
                # Every revision is one put, so there is neither gap nor repeat.
                assert [seen for seen, _ in watched] == list(range(2, revision + 1))
                assert {key: seen for seen, key in watched} == found
                acknowledged |= write_until(client, f"round{number}", random_.randint(1, 60))
                server.kill()
                revision = max(revision, *acknowledged.values())
        server = servers.start(data, *FLAGS)
        server.wait_ready()
        with connected(server.address) as client:
            found = {kv.key: kv.mod_revision for kv in client.everything().kvs}
            assert acknowledged.items() <= found.items()
        assert server.terminate() == -15


def test_a_clean_end_flushes_and_tells_watchers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fork_server(tmp_path) as servers:
        # Commits are so rare that only the clean end makes one.
        server = servers.start(data, "--backend-batch-interval=1h")
        server.wait_ready()
        with connected(server.address) as client:
            until: SimpleQueue[None] = SimpleQueue()
            call = client.watch(stream(1, until))
            assert next(call).created
            revision = client.put(b"key", b"value")
            assert next(call).events[0].kv.mod_revision == revision
            assert server.terminate() == -15
            with pytest.raises(grpc.RpcError) as ended:
                next(call)
            until.put(None)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
            assert ended.value.details() == "etcdserver: server stopped"
        server = servers.start(data)
        server.wait_ready()
        (recovered,) = [
            entry for entry in map(json.loads, server.lines) if entry["msg"] == "recovered"
        ]
        assert recovered["current-rev"] == revision
        server.kill()


def test_what_is_in_flight_at_a_sigterm_is_finished(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fork_server(tmp_path) as servers:
        server = servers.start(data)
        server.wait_ready()
        with connected(server.address) as client:
            client.put(b"first", b"1")
            calls = {
                key: client.put_later(key, b"x" * 1000)
                for key in (f"{number}".encode() for number in range(300))
            }
            assert server.terminate() == -15
            succeeded = []
            for key, call in calls.items():
                try:
                    call.result()
                    succeeded.append(key)
                except grpc.RpcError:
                    pass
        assert any("closed etcd server" in line for line in server.lines)
        assert not list(data.glob("member/wal/*.tmp"))
        server = servers.start(data)
        server.wait_ready()
        with connected(server.address) as client:
            found = {kv.key for kv in client.everything().kvs}
        assert {b"first", *succeeded} <= found
        server.kill()
