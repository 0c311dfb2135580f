"""Watches over real connections: the same conversations at a member, ours and etcd's, and through
a proxy in front of it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.proxy.running import Running, running_proxy
from tests.rpc.calls import Call
from tests.rpc.oracle import Oracle
from tests.rpc.watching import OracleStream, Seen, Watching, sequences

CONVERSATIONS = 15
NOBODY = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"b", range_end=b"a"))
"""Is refused, after everything before it was answered."""


@pytest.fixture(scope="module", params=["kvorum", "etcd"])
def member(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    running = running_kvorum if request.param == "kvorum" else running_etcd
    with running(Path(tmp_path_factory.mktemp("member")) / "data") as server:
        oracle = Oracle(server.address)
        yield oracle
        oracle.close()


@pytest.fixture(scope="module")
def proxy(member: Oracle) -> Iterator[Running]:
    with running_proxy(member.address) as running:
        yield running


@pytest.fixture(scope="module")
def proxied(proxy: Running) -> Iterator[Oracle]:
    oracle = Oracle(proxy.address)
    yield oracle
    oracle.close()


def _revision(server: Oracle) -> int:
    answer: Any = server.ask("KV/Range", pb.RangeRequest(key=b"a"))
    revision: int = answer.header.revision
    return revision


class Conversation:
    """A stream to the member, and one through the proxy."""

    def __init__(self, member: Oracle, proxied: Oracle, *, is_etcd: bool) -> None:
        self._member = member
        self._is_etcd = is_etcd
        self.streams = [OracleStream(member), OracleStream(proxied)]
        self._refusals = 0

    def run(self, steps: list[Call | Watching]) -> None:
        try:
            for step in steps:
                revision = _revision(self._member)
                if isinstance(step, Call):
                    self._member.ask(step.name, step.request(revision))
                elif step.kind != "progress":
                    self._watch(step.request(revision), revision)
            self._catch_up()
            direct, through = (_comparable(stream.seen) for stream in self.streams)
            assert through == direct
        finally:
            for stream in self.streams:
                stream.close()

    def _watch(self, request: pb.WatchRequest, revision: int) -> None:
        self._refusals += 1
        for stream in self.streams:
            stream.send(request)
            stream.send(NOBODY)
        for stream in self.streams:
            assert stream.wait(lambda seen: _refusals(seen) >= self._refusals)
        if 0 < request.create_request.start_revision <= revision:
            # A compaction before the watcher has caught up would end it.
            self._catch_up()
            if self._is_etcd:
                self._member.wait_for_watchers()

    def _catch_up(self) -> None:
        """Wait until as much came one way as the other."""
        direct, through = self.streams
        for _ in range(3):
            assert through.wait(lambda seen: _enough(seen, direct.seen))
            assert direct.wait(lambda seen: _enough(seen, through.seen))


def _refusals(seen: Seen) -> int:
    found = seen.responses.get(-1, [])
    return sum(each.cancel_reason == errors.WATCH_RANGE_EMPTY.text for each in found)


def _enough(seen: Seen, other: Seen) -> bool:
    ours, theirs = seen.counts(), other.counts()
    return all(ours.get(each, (0, 0)) >= counts for each, counts in theirs.items())


def _comparable(seen: Seen) -> dict[int, tuple[list[bytes], list[bytes]]]:
    """Return the answers to each watcher's requests, and its events, however they are grouped."""
    found = {}
    for watch_id, responses in seen.responses.items():
        controls, events = [], []
        last = 0
        for response in responses:
            events += [event.SerializeToString() for event in response.events]
            for event in response.events:
                assert event.kv.mod_revision >= last
                last = event.kv.mod_revision
            if not response.events:
                if response.canceled:
                    # A proxy answers for the member, and may not know its newest revision.
                    response.header.revision = 0
                controls.append(response.SerializeToString())
        found[watch_id] = controls, events
    return found


@pytest.mark.long
@given(steps=sequences())
@settings(
    deadline=None,
    max_examples=CONVERSATIONS,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
def test_conversations(
    request: pytest.FixtureRequest, member: Oracle, proxied: Oracle, steps: list[Call | Watching]
) -> None:
    is_etcd = request.node.callspec.params["member"] == "etcd"
    Conversation(member, proxied, is_etcd=is_etcd).run(steps)


def _is_told(revision: int, seen: Seen) -> bool:
    return any(each.header.revision >= revision for each in seen.progress)


def test_progress(member: Oracle, proxied: Oracle) -> None:
    stream = OracleStream(proxied)
    try:
        create = pb.WatchCreateRequest(key=b"quiet", start_revision=_revision(member))
        stream.send(pb.WatchRequest(create_request=create))
        for _ in range(5):
            member.ask("KV/Put", pb.PutRequest(key=b"busy"))
            revision = _revision(member)
            # It is told however often others catch up meanwhile.
            stream.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            assert stream.wait(partial(_is_told, revision))
    finally:
        stream.close()


@pytest.mark.long
def test_many_watchers(member: Oracle, proxied: Oracle, proxy: Running) -> None:
    streams = [OracleStream(proxied) for _ in range(20)]
    try:
        for stream in streams:
            for _ in range(50):
                create = pb.WatchCreateRequest(key=b"many")
                stream.send(pb.WatchRequest(create_request=create))
        for stream in streams:
            assert stream.wait(lambda seen: len(seen.responses) == 50)
        for _ in range(10):
            member.ask("KV/Put", pb.PutRequest(key=b"many"))
        for stream in streams:
            assert stream.wait(
                lambda seen: all(count == (1, 10) for count in seen.counts().values())
            )
        assert proxy.proxy.figures.watchers_coalesced == 999
    finally:
        for stream in streams:
            stream.close()
