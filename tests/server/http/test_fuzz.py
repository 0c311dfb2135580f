"""Garbage as JSON and as frames, slow clients and those that do not read: all is survived, bounded.

More of it with KVORUM_FUZZED, from other seeds with KVORUM_FUZZ_SEED.
"""

import base64
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from random import Random

import pytest

from tests.kvorum import Kvorum, running_kvorum
from tests.server.http.asking import Connection, ask, head_bytes, parsed
from tests.server.http.bodies import BY_PATH
from tests.server.http.garbage import bodies, frames
from tests.server.http.servers import metric
from tests.server.http.websocket import TEXT, WebSocket, frame
from tests.state.auth.servers import QUICK
from tests.waiting import until

FUZZED = int(os.environ.get("KVORUM_FUZZED", "10000"))
SEED = int(os.environ.get("KVORUM_FUZZ_SEED", "0"))
CONNECTIONS = 10
IN_FLIGHT = 5
FRAMES = 8
GROWTH_BYTES_MAX = 64 << 20
STATUSES = {200, 400, 401, 403, 404, 409, 429, 499, 500, 501, 503, 504}
FOO = '{"key":"Zm9v"}'

pytestmark = pytest.mark.timeout(0 if FUZZED > 20_000 else 300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvorum]:
    directory = tmp_path_factory.mktemp("fuzzed")
    with running_kvorum(directory / "data", QUICK) as found:
        yield found


def memory(server: Kvorum) -> int:
    """Return how much memory the server has, in bytes."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def check_well(server: Kvorum) -> None:
    """The server serves, nothing surprised it, and nothing is left of any call."""
    assert server.process.poll() is None
    assert ask(server.address, "/v3/kv/put", FOO).status == 200
    assert ask(server.address, "/v3/kv/range", FOO).json["count"] == "1"
    assert metric(server.address, "kvorum_unforeseen_errors_total") == 0, server.lines
    until("no call is left", lambda: _calls_open(server) == 0)
    until("no watcher is left", lambda: _watchers(server) == 0)


def _calls_open(server: Kvorum) -> float:
    started = metric(server.address, "grpc_server_started_total")
    return started - metric(server.address, "grpc_server_handled_total")


def _watchers(server: Kvorum) -> float:
    streams = metric(server.address, "etcd_debugging_mvcc_watch_stream_total")
    return streams + metric(server.address, "etcd_debugging_mvcc_watcher_total")


# Garbage.


@pytest.mark.long
def test_bodies(server: Kvorum) -> None:
    _post(server, SEED, FUZZED // 5)
    before = memory(server)
    _post(server, SEED + 1, FUZZED - FUZZED // 5)
    check_well(server)
    assert memory(server) - before < GROWTH_BYTES_MAX


def _post(server: Kvorum, seed: int, count: int) -> None:
    """Send bodies on several connections, one behind the other; calls that wait do so briefly."""
    statuses: set[int] = set()
    made = bodies(seed, count)
    with ExitStack() as stack:
        clients = [stack.enter_context(Connection(server.address)) for _ in range(CONNECTIONS)]
        while batch := list(islice(made, CONNECTIONS * IN_FLIGHT)):
            asked = list(zip(batch, cycle(clients), strict=False))
            for (route, body), client in asked:
                client.begin("POST", route.path, body, {"Grpc-Timeout": "20m"})
            for (route, body), client in asked:
                answer = client.answer()
                assert answer.status in STATUSES, (route, body, answer)
                statuses.add(answer.status)
                for line in answer.body.splitlines():
                    parsed(line)
    assert statuses >= {200, 400, 404, 504}, "not everything was tried"


@pytest.mark.long
def test_frames(server: Kvorum) -> None:
    _send_frames(server, SEED, FUZZED // 5)
    before = memory(server)
    _send_frames(server, SEED + 1, FUZZED - FUZZED // 5)
    check_well(server)
    assert memory(server) - before < GROWTH_BYTES_MAX


def _send_frames(server: Kvorum, seed: int, count: int) -> None:
    """Send about so many frames on one WebSocket after the other, and hear them to their end."""
    random = Random(seed)
    answered = 0
    paths = ["/v3/watch", "/v3/watch", "/v3/lease/keepalive", "/v3/kv/txn", "/v3/kv/range"]
    with Connection(server.address) as other:
        for _ in range(count // FRAMES):
            route = BY_PATH[random.choice(paths)]
            with WebSocket(server.address, route.path) as client:
                try:
                    client.send(frames(route, random))
                    # Once others have been served, these frames have been, too.
                    assert other.ask("/v3/kv/range", FOO).status == 200
                    client.socket.shutdown(socket.SHUT_WR)
                    while (found := client.next()) is not None:
                        if isinstance(found, str):
                            parsed(found.encode())
                            answered += 1
                except OSError:
                    continue
    assert answered > count // 20, "not much was understood"


# Clients that are slow.


def test_slow_bodies(server: Kvorum) -> None:
    check_well(server)
    before = memory(server)
    with ExitStack() as stack:
        slow = [stack.enter_context(Connection(server.address)) for _ in range(200)]
        for number, client in enumerate(slow):
            path = "/v3/watch" if number % 2 else "/v3/kv/put"
            client.send(head_bytes("POST", path, {"Content-Length": "100000"}))
        for byte in b'{"key":"':
            for client in slow:
                client.send(bytes([byte]))
            assert ask(server.address, "/v3/kv/put", FOO).status == 200
        assert memory(server) - before < GROWTH_BYTES_MAX
    check_well(server)


def test_long_bodies_that_do_not_end(server: Kvorum) -> None:
    check_well(server)
    before = memory(server)
    with ExitStack() as stack:
        for number in range(10):
            client = stack.enter_context(Connection(server.address))
            path = "/v3/watch" if number % 2 else "/v3/kv/put"
            client.send(head_bytes("POST", path, {"Content-Length": str(1 << 30)}))
            try:
                client.send(b'{"unknown":"')
                for _ in range(64):
                    client.send(b"x" * (1 << 20))
            except ConnectionError:
                continue
            if path == "/v3/kv/put":
                assert client.head().status == 429
        assert ask(server.address, "/v3/kv/put", FOO).status == 200
        assert memory(server) - before < 2 * GROWTH_BYTES_MAX
    check_well(server)


@pytest.mark.long
def test_streams_that_nobody_reads(server: Kvorum) -> None:
    check_well(server)
    create = '{"create_request":{"key":"AA==","range_end":"AA=="}}'
    value = base64.b64encode(os.urandom(48_000)).decode()
    before = memory(server)
    with ExitStack() as stack:
        for number in range(20):
            if number % 2:
                client = stack.enter_context(Connection(server.address))
                client.begin("POST", "/v3/watch", create.encode())
                assert client.head().status == 200
            else:
                other = stack.enter_context(WebSocket(server.address, "/v3/watch"))
                other.send(frame(TEXT, create.encode()))
                assert other.line()["result"]["created"] is True
        reader = stack.enter_context(Connection(server.address))
        for _ in range(400):
            answer = reader.ask("/v3/kv/put", f'{{"key":"Zm9v","value":"{value}"}}')
            assert answer.status == 200
        assert memory(server) - before < 2 * GROWTH_BYTES_MAX
        assert ask(server.address, "/v3/kv/range", FOO).json["count"] == "1"
    check_well(server)
