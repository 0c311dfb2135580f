"""Clients of the JSON gateway of a server without a network: requests, streams, WebSockets."""

import json
from base64 import b64encode
from typing import Any

from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Pong, TextMessage

from kvorum.network.edge.interface import EdgeEventKind
from tests.server.rpc.harness import Harness

PUT = "/v3/kv/put"
RANGE = "/v3/kv/range"
WATCH = "/v3/watch"
KEEP_ALIVE = "/v3/lease/keepalive"
LOCK = "/v3/lock/lock"
HANDSHAKE = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "sec-websocket-version": "13",
}


def base64(text: str) -> str:
    return b64encode(text.encode()).decode()


class Client:
    """Makes HTTP requests to a server without a network."""

    def __init__(self, harness: Harness | None = None, **options: Any) -> None:
        self.harness = harness or Harness(**options)
        self.gateway = self.harness.server.gateway
        self.edge = self.harness.edge
        self._call = 1_000_000

    def open(self, path: str, method: str = "POST", **headers: str) -> int:
        self._call += 1
        named = [("host", "a"), *((name.replace("_", "-"), text) for name, text in headers.items())]
        self.harness.happen((EdgeEventKind.HTTP_OPENED, self._call, (0, method, path, named)))
        return self._call

    def send(self, call: int, piece: bytes) -> None:
        self.harness.happen((EdgeEventKind.MESSAGE, call, piece))

    def end(self, call: int) -> None:
        self.harness.happen((EdgeEventKind.HALF_CLOSED, call, None))

    def leave(self, call: int) -> None:
        self.harness.happen((EdgeEventKind.ENDED, call, None))

    def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        """Make a unary call; return its status and answer."""
        call = self.open(path, **headers)
        self.send(call, body if isinstance(body, bytes) else json.dumps(body).encode())
        self.end(call)
        return self.answer(call)

    def answer(self, call: int) -> tuple[int, Any]:
        status, body = self.edge.responses[call]
        assert body is not None
        return status, json.loads(body)

    def lines(self, call: int) -> list[Any]:
        """Return what was sent on a stream, and check that each piece is a line."""
        pieces = self.edge.sent.get(call, [])
        assert all(piece.endswith(b"\n") and piece.count(b"\n") == 1 for piece in pieces)
        return [json.loads(piece) for piece in pieces]

    def put(self, key: str, value: str = "") -> None:
        status, _ = self.post(PUT, {"key": base64(key), "value": base64(value)})
        assert status == 200

    def watch(self, key: str, **headers: str) -> int:
        call = self.open(WATCH, **headers)
        self.send(call, json.dumps({"create_request": {"key": base64(key)}}).encode())
        return call

    def assert_nothing_is_left(self) -> None:
        assert not self.gateway.open and self.gateway._held_bytes == 0
        assert not self.harness.server.calls.unary and not self.harness.server.calls.streams
        assert not self.harness.services._open
        assert self.harness.member.boundary.counts == {}


class Socket:
    """A client's WebSocket."""

    def __init__(self, client: Client, path: str, **headers: str) -> None:
        self.client = client
        self.call = client.open(path, "GET", **HANDSHAKE, **headers)
        assert client.edge.responses[self.call] == (101, None)
        self._connection = Connection(ConnectionType.CLIENT)
        self._taken = 0
        self.closed: CloseConnection | None = None
        self.pongs = 0

    def send(self, *events: Any) -> None:
        self.client.send(self.call, b"".join(self._connection.send(event) for event in events))

    def received(self) -> list[Any]:
        pieces = self.client.edge.sent.get(self.call, [])
        self._connection.receive_data(b"".join(pieces[self._taken :]))
        self._taken = len(pieces)
        found = []
        for event in self._connection.events():
            if isinstance(event, TextMessage):
                assert event.message_finished
                found.append(json.loads(event.data))
            elif isinstance(event, CloseConnection):
                self.closed = event
            elif isinstance(event, Pong):
                self.pongs += 1
        return found
