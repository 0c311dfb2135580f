"""Nothing is kept of streams and connections that are gone, and little of those that are idle."""

import contextlib
import random
import resource
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hyperframe.frame import RstStreamFrame

from tests.network.edge.server import Server
from tests.network.edge.service import ECHO, ECHO_STREAM, HELD, HELD_STREAM
from tests.network.edge.wire import Wire, connect, grpc_headers, message
from tests.waiting import until

# The pure edge does the same, in a smaller number for its pace.
STREAMS = {"python": 2_000, "native": 20_000}
GROWTH_BYTES_MAX = 8 << 20
ROUNDS = 4
IDLE = {"python": 500, "native": 10_000}
IDLE_BYTES_MAX = {"python": 150 * 1024, "native": 42 * 1024}
RESERVE = 500


@pytest.fixture
def server(edge_kind: str) -> Iterator[Server]:
    assert edge_kind
    server = Server()
    try:
        yield server
        assert server.stop() == 0
    finally:
        server.kill()


def settle(server: Server, descriptors: int) -> None:
    """Wait until the server has closed what its clients closed, and still serves."""
    with Wire(server.address) as wire:
        assert wire.unary(ECHO, b"").status == (0, "")
    until(
        f"the server has {descriptors} descriptors, as at first",
        lambda: server.descriptors() <= descriptors,
    )


def churn_http2(server: Server, source: random.Random, streams: int) -> None:
    """Open streams on a few connections; cancel, finish, abandon and kill them."""
    opened = 0
    while opened < streams:
        with Wire(server.address) as wire:
            last = 0
            for _ in range(source.randrange(1, 40)):
                opened += 1
                path = source.choice([ECHO, ECHO_STREAM, HELD, HELD_STREAM])
                end = source.random() < 0.5
                more = [("grpc-timeout", "20m")] if source.random() < 0.2 else []
                last = wire.open(grpc_headers(path, *more))
                body = message(source.randbytes(source.choice([0, 10, 3000])))
                cut = len(body) - (source.random() < 0.1)
                wire.data(last, body[:cut], end=end)
                if source.random() < 0.4:
                    wire.reset(last)
            way = source.random()
            if way < 0.4:
                # A TCP reset, with answers on their way.
                linger = struct.pack("ii", 1, 0)
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            elif way < 0.7:
                wire.ping()
            elif way < 0.8:
                wire.send_bytes(b"\0\0\x08\x06\0\0\0\0\x01pingpong")


@pytest.mark.long
def test_streams_and_connections_that_come_and_go(server: Server, edge_kind: str) -> None:
    source = random.Random(20_000)
    streams = STREAMS[edge_kind]
    # What a first round leaves behind is pools and caches.
    descriptors = server.descriptors()
    churn_http2(server, source, streams // 4)
    settle(server, descriptors)
    before = server.memory()
    churn_http2(server, source, streams)
    settle(server, descriptors)
    assert server.memory() - before < GROWTH_BYTES_MAX


def churn_http1(server: Server, source: random.Random, connections: int) -> None:
    """Ask whole requests and parts of them, one per connection, and break some off."""
    request = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    for _ in range(connections):
        with connect(server.address) as plain:
            cut = source.choice([len(request), len(request), 10, 40, len(request) - 2])
            plain.sendall(request[:cut])
            if cut == len(request) and source.random() < 0.7:
                assert plain.recv(1000).startswith(b"HTTP/1.1 200 ")
            elif source.random() < 0.5:
                linger = struct.pack("ii", 1, 0)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


@pytest.mark.long
def test_http1_connections_that_come_and_go(server: Server, edge_kind: str) -> None:
    connections = STREAMS[edge_kind]
    descriptors = server.descriptors()
    churn_http1(server, random.Random(0), connections // 10)
    settle(server, descriptors)
    before = server.memory()
    with ThreadPoolExecutor(4) as pool:
        churns = [
            pool.submit(churn_http1, server, random.Random(seed), connections // 4)
            for seed in range(1, 5)
        ]
    for churn in churns:
        churn.result()
    settle(server, descriptors)
    assert server.memory() - before < GROWTH_BYTES_MAX


def ask_after_the_gone(address: str, rounds: int) -> None:
    """Abandon a request, and ask one; nothing else happens that could wake the edge."""
    request = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
    for _ in range(rounds):
        with connect(address) as abandoned:
            abandoned.sendall(request)
        with connect(address) as plain:
            plain.sendall(request)
            assert plain.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.long
def test_an_answer_to_the_gone_holds_nobody_up(edge_kind: str) -> None:
    # Several processes, so that they interrupt each other at every moment.
    servers = [Server() for _ in range(4)]
    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            rounds = STREAMS[edge_kind] // 10
            asking = [pool.submit(ask_after_the_gone, each.address, rounds) for each in servers]
        for each in asking:
            each.result()
    finally:
        for server in servers:
            server.kill()


@pytest.mark.long
def test_rapid_resets_leave_nothing(server: Server, edge_kind: str) -> None:
    """Streams opened and cancelled without a pause, by clients that may get thrown out."""
    descriptors = server.descriptors()
    growths = []
    for _ in range(ROUNDS):
        before = server.memory()
        sent = 0
        while sent < STREAMS[edge_kind] // ROUNDS:
            with Wire(server.address) as wire, contextlib.suppress(ConnectionError):
                for number in range(1, 2000, 2):
                    headers = wire.headers_frame(number, grpc_headers(HELD_STREAM))
                    wire.send(headers, RstStreamFrame(number, 8))
                    sent += 1
        settle(server, descriptors)
        growths.append(server.memory() - before)
    # What is left behind grows in every round; a queue that was longer than ever, in one of them.
    assert min(growths[1:]) < GROWTH_BYTES_MAX // ROUNDS, growths


@pytest.mark.long
def test_memory_of_idle_connections(server: Server, edge_kind: str) -> None:
    count = IDLE[edge_kind]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + RESERVE:
        pytest.skip(f"{count} connections need more descriptors than the hard limit of {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors = server.descriptors()
    settle(server, descriptors)
    before = server.memory()
    connections: list[Wire] = []
    try:
        for start in range(0, count, 200):
            some = [Wire(server.address) for _ in range(min(200, count - start))]
            connections += some
            streams = [wire.call(ECHO, message(b"idle")) for wire in some]
            for wire, stream in zip(some, streams, strict=True):
                assert wire.answer(stream).status == (0, "")
        assert server.descriptors() == descriptors + count
        assert (server.memory() - before) / count <= IDLE_BYTES_MAX[edge_kind]
    finally:
        for wire in connections:
            wire.socket.close()
    settle(server, descriptors)
