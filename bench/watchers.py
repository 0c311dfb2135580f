"""Open many watchers of a key that is put, read their streams at full speed, and count the events.

The reader does not parse messages: it counts a mark that each event contains once.
"""

import multiprocessing
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection

from bench.abuse import wire
from bench.load import WARM_UP_SECONDS, Load
from bench.server import PUT, WATCH, key, put
from kvorum.api.pb.etcdserverpb import WatchCreateRequest, WatchRequest

RECEIVE_BYTES = 1 << 20
CONNECTIONS = 10
OPEN_SECONDS_MAX = 30.0

Opening = Callable[[str, int], list[socket.socket]]
"""Opens `count` watchers at an address; returns their connections when all are created."""


def measure_watchers(
    address: str, opening: Opening, mark: bytes, count: int, seconds: int
) -> float:
    """Return how many events per second reach `count` watchers of a key that is put."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(
        target=_count_events, args=(address, opening, mark, count, seconds, theirs)
    )
    reader.start()
    theirs.close()
    ours.recv()
    writers = Load(address, PUT, [put(key(0))], connections=2, streams=10, seconds=seconds)
    rate: float = ours.recv()
    reader.join()
    writers.finish()
    return rate


def _count_events(
    address: str, opening: Opening, mark: bytes, count: int, seconds: int, results: Connection
) -> None:
    """Open the watchers, report that, and count events for a time after the following warm-up.

    This function runs in a process of its own.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for each in opening(address, count):
            # The bytes at the end of the last read that may be the start of a mark.
            selector.register(stack.enter_context(each), selectors.EVENT_READ, [b""])
        results.send(None)
        found, begin = 0, time.monotonic() + WARM_UP_SECONDS
        while (now := time.monotonic()) < begin + seconds:
            fresh = sum(_receive(chosen, mark) for chosen, _ in selector.select(0.1))
            if now >= begin:
                found += fresh
        results.send(found / seconds)


def _receive(chosen: selectors.SelectorKey, mark: bytes) -> int:
    """Read a connection's input; return the number of events in it."""
    assert isinstance(chosen.fileobj, socket.socket)
    data: bytes = chosen.fileobj.recv(RECEIVE_BYTES)
    assert data, "a watch ended"
    kept: list[bytes] = chosen.data
    data = kept[0] + data
    kept[0] = data[1 - len(mark) :]
    return data.count(mark)


def grpc_watchers(address: str, count: int) -> list[socket.socket]:
    """Open watchers over gRPC, on ten connections.

    Their streams stay open in both directions, because etcd's proxy ends the watches of a client
    that has closed its side.
    """
    found = [_grpc_connection(address) for _ in range(CONNECTIONS)]
    create = WatchRequest(create_request=WatchCreateRequest(key=key(0))).SerializeToString()
    block, request = wire.head(WATCH.encode()), wire.message(create)
    for each in found:
        for number in range(count // CONNECTIONS):
            stream = 2 * number + 1
            opened = wire.frame(wire.HEADERS, wire.END_HEADERS, stream, block)
            each.sendall(opened + wire.frame(wire.DATA, 0, stream, request))
        _await_answers(each, count // CONNECTIONS)
    return found


def _grpc_connection(address: str) -> socket.socket:
    """Return a connection with windows that outlast any measurement."""
    made = wire.connect(address, OPEN_SECONDS_MAX)
    window = wire.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + wire.WINDOW_MAX.to_bytes(4, "big")
    more = (wire.WINDOW_MAX - wire.FIRST_WINDOW).to_bytes(4, "big")
    made.sendall(
        wire.PREFACE
        + wire.frame(wire.SETTINGS, 0, 0, window)
        + wire.frame(wire.SETTINGS, wire.ACK, 0)
        + wire.frame(wire.WINDOW_UPDATE, 0, 0, more)
    )
    return made


def _await_answers(connection: socket.socket, count: int) -> None:
    """Read until `count` messages have arrived, one on each stream."""
    received = b""
    while count:
        data = connection.recv(RECEIVE_BYTES)
        assert data, "the connection ended"
        received += data
        while len(received) >= 9 + (size := int.from_bytes(received[:3], "big")):
            count -= received[3] == wire.DATA
            received = received[9 + size :]
