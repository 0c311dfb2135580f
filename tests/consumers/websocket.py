"""A WebSocket client that does what a page in a browser can do."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    RejectConnection,
    Request,
    TextMessage,
)

ORIGIN = "http://pages.example"
SECONDS_MAX = 60.0


class WebSocket:
    """An open connection: JSON goes out as text, and comes in as text."""

    def __init__(self, connection: socket.socket, protocol: WSConnection) -> None:
        self._connection = connection
        self._protocol = protocol
        self._events: Iterator[Event] = iter(())
        self.subprotocol: str | None = None

    def _emit(self, event: Event) -> None:
        self._connection.sendall(self._protocol.send(event))

    def _next(self) -> Event | None:
        """Return the next event, or None if the connection has ended."""
        while (event := next(self._events, None)) is None:
            data = self._connection.recv(65_536)
            if not data:
                return None
            self._protocol.receive_data(data)
            self._events = self._protocol.events()
        return event

    def shake_hands(self, server: str, path: str, subprotocols: tuple[str, ...]) -> None:
        self._emit(
            Request(
                host=server,
                target=path,
                subprotocols=list(subprotocols),
                extra_headers=[(b"origin", ORIGIN.encode())],
            )
        )
        event = self._next()
        assert not isinstance(event, RejectConnection), f"refused with {event.status_code}"
        assert isinstance(event, AcceptConnection)
        self.subprotocol = event.subprotocol

    def say(self, **message: Any) -> None:
        self._emit(TextMessage(data=json.dumps(message)))

    def hear(self) -> dict[str, Any] | None:
        """Return the next message, or None if the server has ended the conversation."""
        parts: list[str] = []
        while True:
            event = self._next()
            if event is None or isinstance(event, CloseConnection):
                assert not parts
                return None
            assert isinstance(event, TextMessage), event
            parts.append(event.data)
            if event.message_finished:
                message: dict[str, Any] = json.loads("".join(parts))
                return message


@contextmanager
def connected(server: str, path: str, *subprotocols: str) -> Iterator[WebSocket]:
    """Open a WebSocket for as long as the block takes."""
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
        opened = WebSocket(connection, WSConnection(ConnectionType.CLIENT))
        opened.shake_hands(server, path, subprotocols)
        yield opened
