"""An HTTP/1.1 client that sends bytes as they are, and what the loop sees of its requests."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import BinaryIO

from kvorum.network.edge import EdgeEventKind
from tests.network.edge.service import WAIT_SECONDS, Arrived, Service
from tests.network.edge.wire import Reply, connect

RECEIVE_BYTES = 1 << 20
"""The size of the client's receive buffer."""


class Plain:
    """The client."""

    def __init__(self, socket: socket.socket, file: BinaryIO) -> None:
        self.socket = socket
        self.file = file

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self, *, head: bool = False) -> Reply:
        return Reply(self.file, head=head)

    def begin(self) -> bytes:
        """Read an answer's head; chunks are left to `chunk`."""
        lines = []
        while (line := self.file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)

    def chunk(self) -> bytes:
        """Read one chunk; the last one of a body is empty."""
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        assert self.file.readline() == b"\r\n"
        return data


@contextlib.contextmanager
def plain(service: Service, tls: ssl.SSLContext | None = None) -> Iterator[Plain]:
    connection = connect(service.address)
    # Without a size of its own, the buffer grows as far as the system allows, often 32 MiB: then
    # the kernel takes what a test leaves unread.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname="localhost")
    with connection, connection.makefile("rb") as file:
        yield Plain(connection, file)


def opened(service: Service) -> tuple[int, int, str, str, dict[str, str]]:
    """Wait for a request; return the call and what is known of it."""
    arrived = _next(service)
    assert arrived.kind == EdgeEventKind.HTTP_OPENED, arrived
    listener, method, target, headers = arrived.detail
    return arrived.call, listener, method, target, dict(headers)


def _next(service: Service) -> Arrived:
    """Return the next event but for WRITABLE, which an earlier call may still cause."""
    while True:
        arrived = service.events.get(timeout=WAIT_SECONDS)
        if arrived.kind != EdgeEventKind.WRITABLE:
            return arrived


def body(service: Service, call: int) -> bytes:
    """Read a request's body to its end."""
    pieces: list[bytes] = []
    while True:
        event = _next(service)
        assert event.call == call
        if event.kind == EdgeEventKind.HALF_CLOSED:
            return b"".join(pieces)
        assert event.kind == EdgeEventKind.MESSAGE, event
        pieces.append(event.detail)
