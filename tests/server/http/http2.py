"""One stream of HTTP/2 over TLS, whose two directions are open at the same time."""

import socket
import ssl
from types import TracebackType
from typing import Any, Self

import h2.connection
import h2.events

from tests.server.http.asking import WAIT_SECONDS_MAX, ClosedError, Head, parsed

STREAM = 1
PIECE_BYTES = 65536


class Http2Stream:
    """A POST whose body goes on, and whose answer comes line by line."""

    def __init__(self, address: str, target: str, tls: ssl.SSLContext) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), WAIT_SECONDS_MAX)
        self._socket = tls.wrap_socket(plain, server_hostname="localhost")
        self._connection = h2.connection.H2Connection()
        self._connection.initiate_connection()
        self._connection.send_headers(
            STREAM,
            [
                (":method", "POST"),
                (":scheme", "https"),
                (":path", target),
                (":authority", "localhost"),
            ],
        )
        self._body = b""
        self.head: Head | None = None
        self.has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def say(self, value: bytes, *, is_last: bool = False) -> None:
        """Send a piece of the body."""
        self._connection.send_data(STREAM, value, end_stream=is_last)
        self._flush()

    def line(self) -> Any:
        """Wait for a line, and return it parsed; None at the end."""
        while b"\n" not in self._body and not self.has_ended:
            data = self._socket.recv(PIECE_BYTES)
            if not data:
                raise ClosedError(self._body)
            for event in self._connection.receive_data(data):
                self._take(event)
            self._flush()
        line, _, self._body = self._body.partition(b"\n")
        return parsed(line) if line else None

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            found = {_text(name): _text(value) for name, value in event.headers or ()}
            self.head = Head(int(found.pop(":status")), found)
        elif isinstance(event, h2.events.DataReceived):
            self._body += event.data or b""
            self._connection.acknowledge_received_data(event.flow_controlled_length or 0, STREAM)
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self.has_ended = True

    def _flush(self) -> None:
        self._socket.sendall(self._connection.data_to_send())


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
