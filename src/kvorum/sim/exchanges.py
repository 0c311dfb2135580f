"""One HTTP request of a client that speaks JSON, and the reading of its answer.

Protobuf's own JSON writes requests and reads answers, as a reference for the gateway's. An answer
must have the form that etcd's has, and an error the HTTP status of its code. The exchange then
reports the answer as gRPC would: messages, and a status at the end.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import Message
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from kvorum.api.descriptors import methods, option
from kvorum.api.errors import Code, Status
from kvorum.sim.arrivals import REFUSED
from kvorum.sim.edge import Answered, Head
from kvorum.sim.violation import Violation

GUARANTEE = "answers in JSON say what gRPC says"
SOCKET_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
OK = Status(Code.OK, "")
JSON = ("content-type", "application/json")
OF_ANSWERS = ("grpc-metadata-content-type", "application/grpc")
ANY_ORIGIN = ("access-control-allow-origin", "*")
HTTP_STATUS = {
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}
"""The HTTP status of an answer, by the code of the error in it."""


class Route(NamedTuple):
    """An RPC that clients can call in JSON."""

    targets: tuple[str, ...]
    request: type[Message]
    response: type[Message]
    is_both_ways: bool
    """Whether its client may send several messages."""
    is_stream: bool
    """Whether its answer may be several messages."""


def _routes() -> dict[str, Route]:
    routes = {}
    for method in methods():
        rule = option(method.descriptor, "google.api.http")
        targets = tuple(each.post for each in (rule, *rule.additional_bindings) if each.post)
        if targets:
            routes[method.path] = Route(
                targets,
                method.request,
                method.response,
                method.client_streaming,
                method.server_streaming,
            )
    return routes


ROUTES = _routes()
"""Routes by the path of the RPC."""


def written(random: Random, route: Route, payload: bytes) -> bytes:
    """Return a request in JSON, in one of the forms that clients use."""
    text = json_format.MessageToJson(
        route.request.FromString(payload),
        preserving_proto_field_name=random.random() < 0.5,
        use_integers_for_enums=random.random() < 0.3,
        always_print_fields_with_no_presence=random.random() < 0.2,
        indent=random.choice([None, None, 2]),
    )
    return text.encode()


class Exchange:
    """A request from its client's view; the exchange reports the answer as over gRPC."""

    __slots__ = ("_answered", "_body", "_head", "_message", "_name", "_status", "lines", "route")

    def __init__(
        self, name: str, route: Route, answered: Answered, message: Callable[[bytes], None] | None
    ) -> None:
        """Start a request; without `message`, it has one answer."""
        self._name = name
        self.route = route
        self._answered = answered
        self._message = message
        self._head: Head | None = None
        self._body = b""
        # The error that ended a stream.
        self._status: Status | None = None
        self.lines = 0

    def _violate(self, text: str) -> None:
        raise Violation(GUARANTEE, f"{self._name} {self.route.targets[0]}: {text}")

    def take_piece(self, piece: bytes | Head) -> None:
        """Take the head of the answer, or a piece of its body."""
        if isinstance(piece, Head):
            if self._head is not None:
                self._violate(f"another head: {piece}")
            self._head = piece
            names = [name for name, _ in piece.headers]
            if names.count(ANY_ORIGIN[0]) != 1 or ANY_ORIGIN not in piece.headers:
                self._violate(f"no browser may read what has {piece}")
        elif self._head is None:
            self._violate(f"{piece!r} before a head")
        elif self.route.is_stream and piece.endswith(b"\n"):
            # Clients may read by line or by chunk: every chunk must be a line.
            self._take_line(piece)
        else:
            self._body += piece

    def take_end(self, result: bytes | Status | None) -> None:
        """Take the end of the answer, or of the connection."""
        if result is None or result is REFUSED:
            self._answered(result)
            return
        if result != OK:
            self._violate(f"ended as {result!r}")
        if self._body and not self.lines:
            self._answered(self._decode_answer(self._body))
        elif self._body or (not self.lines and self._must_answer):
            self._violate(f"ended with {self._body!r} after {self.lines} lines")
        else:
            self._answered(self._status or OK)

    @property
    def _must_answer(self) -> bool:
        """Whether the request may not end without an answer; observing an election may."""
        return self.route.is_both_ways or not self.route.is_stream

    # Reading the answer.

    def _decode_answer(self, body: bytes) -> bytes | Status:
        """Return the answer to a call, or the error in its place."""
        value = self._value(body)
        if self.route.is_stream or "code" in value:
            status = self._error(value)
            self._check_status(status, is_first=True)
            self._check_challenge(status.text if status.code is Code.UNAUTHENTICATED else None)
            return status
        self._check_status(OK, is_first=True)
        return self._read(value)

    def _take_line(self, line: bytes) -> None:
        if line.count(b"\n") != 1 or self._status is not None:
            self._violate(f"{line!r} is not a line, or not the last one")
        value = self._value(line)
        if len(value) != 1 or not value.keys() <= {"result", "error"}:
            self._violate(f"{line!r} is neither a result nor an error")
        is_first, self.lines = not self.lines, self.lines + 1
        status = self._error(value["error"]) if "error" in value else OK
        self._check_status(status, is_first=is_first)
        self._check_challenge(None)
        if "error" in value:
            self._status = status
        else:
            assert self._message is not None
            self._message(self._read(value["result"]))

    def _value(self, text: bytes) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Violation(GUARANTEE, f"{self._name} {text!r} is no JSON: {error}") from error
        if not isinstance(value, dict):
            self._violate(f"{text!r} is no object")
        return value

    def _read(self, value: Any) -> bytes:
        """Return the message for a value; require that protobuf writes it in the same way."""
        try:
            message = json_format.ParseDict(value, self.route.response())
        except json_format.ParseError as error:
            raise Violation(GUARANTEE, f"{self._name} cannot read {value}: {error}") from error
        expected = json_format.MessageToDict(message, preserving_proto_field_name=True)
        if expected != value:
            self._violate(f"{value} should be {expected}")
        return message.SerializeToString()

    def _error(self, value: Any) -> Status:
        if not value.keys() <= {"code", "message"} or value.get("code") not in set(HTTP_STATUS):
            self._violate(f"{value} is no error")
        return Status(Code(value["code"]), value.get("message", ""))

    def _check_status(self, status: Status, *, is_first: bool) -> None:
        """Require that the HTTP status fits the first result; later errors come too late for it."""
        head, expected = self._head, HTTP_STATUS.get(status.code, 200) if is_first else 200
        if head is not None and (
            head.status != expected
            or JSON not in head.headers
            or (OF_ANSWERS in head.headers) != (expected == 200)
        ):
            self._violate(f"{status} came with {head} in place of {expected}")
        if status.code is Code.INVALID_ARGUMENT and not status.text.startswith("etcdserver: "):
            self._violate(f"what was sent was not understood: {status}")

    def _check_challenge(self, text: str | None) -> None:
        if self._head is not None:
            told = [value for name, value in self._head.headers if name == "www-authenticate"]
            if told != ([] if text is None else [text]):
                self._violate(f"was told to show a token by {told}")


class SocketExchange(Exchange):
    """An exchange over a WebSocket, where every line is a frame, and clients see no status."""

    __slots__ = ("_accepted", "_connection", "is_accepted", "is_left")

    def __init__(
        self,
        name: str,
        route: Route,
        answered: Answered,
        message: Callable[[bytes], None] | None,
        accepted: Callable[[], None],
    ) -> None:
        """Start a handshake; `accepted` is called when frames may be sent."""
        super().__init__(name, route, answered, message)
        self._accepted = accepted
        self._connection = Connection(ConnectionType.CLIENT)
        self.is_accepted = False
        # The client has closed the WebSocket, and takes nothing more.
        self.is_left = False

    def frame(self, text: bytes) -> bytes:
        """Return the frame for a message."""
        return self._connection.send(TextMessage(text.decode()))

    def leave(self) -> bytes:
        """Return the frame that closes the WebSocket; later frames are ignored."""
        self.is_left = True
        return self._connection.send(CloseConnection(CloseReason.NORMAL_CLOSURE))

    def take_piece(self, piece: bytes | Head) -> None:
        """Take the answer to the handshake, or a piece of the frames."""
        if self.is_left:
            return
        if isinstance(piece, Head):
            expected = ("sec-websocket-accept", generate_accept_token(SOCKET_KEY.encode()).decode())
            if piece.status != 101 or expected not in piece.headers or self.is_accepted:
                self._violate(f"a handshake was answered with {piece}")
            self.is_accepted = True
            self._accepted()
            return
        self._connection.receive_data(piece)
        for event in self._connection.events():
            if isinstance(event, TextMessage):
                self._body += event.data.encode()
                if event.message_finished and self.route.is_stream:
                    line, self._body = self._body, b""
                    self._take_line(line + b"\n")
            elif isinstance(event, BytesMessage):
                self._violate(f"{event} is no text")

    def take_end(self, result: bytes | Status | None) -> None:
        """Take the end of the connection."""
        if not self.is_left:
            super().take_end(result)
