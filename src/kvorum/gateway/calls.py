"""The JSON gateway: HTTP requests that are RPCs, and their answers.

It stands on both sides of the services. What HTTP clients send is translated into the requests and
events that gRPC clients cause (`requests`, `events`), and the server hands those to the services.
These answer through it: what is for a call of the gateway becomes JSON, all the rest goes to the
edge as it is. So there is no handler for any route, and a call has the same life by either way.

A unary call, and one with a stream of answers, begins when the request's body has ended; over a
WebSocket, where it ends only with the connection, with the first whole JSON value. A call with
streams both ways begins at once, and each value of the body is a message as soon as it is whole.

A body is read in slices. Most are no longer than one, which is read when it arrives. The rest of a
longer one waits for `work`, which the server calls when it has served what arrived; meanwhile the
edge reads no more of that call. Nothing is read behind a call's first message before the services
have seen that message, because they may refuse the caller.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.edge.interface import Event, EventKind, Headers, Metadata, Request
from kvorum.gateway.bodies import Body
from kvorum.gateway.decoding import Malformed
from kvorum.gateway.encoding import error_body, error_line
from kvorum.gateway.handshake import READ_HEADERS as SOCKET_HEADERS
from kvorum.gateway.handshake import (
    asks_for_upgrade,
    handshake_answer,
    handshake_refusal,
    metadata_headers,
)
from kvorum.gateway.http import JSON, Endpoint, HttpFront, HttpRequest
from kvorum.gateway.metadata import READ_HEADERS as CALL_HEADERS
from kvorum.gateway.metadata import Refused, metadata_of, seconds_allowed
from kvorum.gateway.openapi import document_bytes
from kvorum.gateway.routes import ROUTES, Route
from kvorum.member.member import Member
from kvorum.rpc.interface import OK, STREAM_PENDING_BYTES_MAX, Clients, Output
from kvorum.rpc.table import Kind

if TYPE_CHECKING:
    from kvorum.gateway.websocket import WebSocket

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""What all bodies that have not ended may hold; a body that goes past it is refused."""
BODY_FACTOR: Final = 2
BODY_BYTES_MORE: Final = 64 * 1024
"""How much longer than its message a body may be: base64 takes a third more, and names and blanks
take what they like."""

SECONDS_MIN: Final = 1e-6
"""A call that may take less has no time to begin."""
OPENAPI_PATH: Final = "/v3/openapi.json"
FORM: Final = "application/x-www-form-urlencoded"
OVERRIDE: Final = "x-http-method-override"
READ_HEADERS: Final = ("content-type", OVERRIDE, *CALL_HEADERS, *SOCKET_HEADERS)
"""The headers that the gateway reads, beside those of every HTTP request."""

BANNED_NAME: Final = (
    "CommonName of client sending a request against gateway will be ignored and not used as "
    "expected"
)
METADATA_OF_ANSWERS: Final[Headers] = (JSON, ("grpc-metadata-content-type", "application/grpc"))
NOT_FOUND: Final = Status(Code.NOT_FOUND, "Not Found")
METHOD_NOT_ALLOWED: Final = Status(Code.UNIMPLEMENTED, "Method Not Allowed")
NOT_JSON: Final = Status(Code.INVALID_ARGUMENT, "what was sent is not JSON")
TOO_MANY_BODIES: Final = Status(
    Code.RESOURCE_EXHAUSTED, "too many bytes of unfinished requests; try again"
)

HTTP_STATUS: Final[dict[Code, int]] = {
    Code.OK: 200,
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


class GatewayOutput(Output, Protocol):
    """The part of the edge that answers go to, and that can stop reading a call."""

    def pause(self, call: int) -> None:
        """As `Edge.pause`."""

    def resume(self, call: int) -> None:
        """As `Edge.resume`."""


class GatewayCall:
    """One HTTP request that is an RPC, from its head to its answer."""

    __slots__ = (
        "body",
        "deadline",
        "has_begun",
        "has_response",
        "held_bytes",
        "is_busy",
        "is_heard",
        "is_paused",
        "is_told_of_end",
        "metadata",
        "route",
        "socket",
    )

    def __init__(self, route: Route, metadata: Metadata, socket: "WebSocket | None") -> None:
        self.route = route
        self.metadata = metadata
        self.socket = socket
        self.body = Body(route, socket)
        self.held_bytes = 0
        """How much of the body was kept when that was counted last."""
        self.is_busy = False
        """Whether there is more of the body to read than a slice."""
        self.is_paused = False
        """Whether the edge was asked to read no more of the body."""
        self.is_heard = False
        """Whether the services have seen its first message."""
        self.has_begun = False
        """Whether the services know the call."""
        self.has_response = False
        """Whether the head of the response has been sent."""
        self.is_told_of_end = route.kind is not Kind.UNARY
        """Whether its service is told if the client goes away, as over gRPC: others go on."""
        self.deadline = inf


class Gateway:
    """The calls of one server that come as JSON; the services' way to the edge."""

    __slots__ = (
        "_body_bytes_max",
        "_busy",
        "_certificates_count",
        "_clients",
        "_deadlines",
        "_deadlines_passed_over",
        "_edge",
        "_front",
        "_held_bytes",
        "_last_line",
        "_last_message",
        "_last_route",
        "_left",
        "_member",
        "_message_bytes_max",
        "_undecided",
        "events",
        "is_undecided",
        "open",
        "requests",
    )

    def __init__(
        self,
        member: Member,
        edge: GatewayOutput,
        front: HttpFront,
        clients: Clients,
        *,
        message_bytes_max: int,
        certificates_count: bool,
    ) -> None:
        """Serve what `front` passes on; messages of more than `message_bytes_max` are refused."""
        self._member = member
        self._edge = edge
        self._front = front
        self._clients = clients
        self._certificates_count = certificates_count
        self._message_bytes_max = message_bytes_max
        self._body_bytes_max = message_bytes_max * BODY_FACTOR + BODY_BYTES_MORE
        self.open: dict[int, GatewayCall] = {}
        """The calls that have not ended, by their number at the edge."""
        self.requests: list[Request] = []
        self.events: list[Event] = []
        """What arrived for the services, requests first; the server takes both."""
        self.is_undecided: Callable[[int], bool] = _never
        """Tells of a call whether its caller is not known yet."""
        # Calls with more to read, in turn; calls whose callers are not known yet.
        self._busy: deque[int] = deque()
        self._undecided: list[int] = []
        # Unary calls that go on without their clients: their answers are for nobody.
        self._left: set[int] = set()
        self._held_bytes = 0
        self._deadlines: list[tuple[float, int]] = []
        # How many of them are of calls that have ended: they may be hours away.
        self._deadlines_passed_over = 0
        # The line of the last message that was sent: all watchers of a key get the same one.
        self._last_route: Route | None = None
        self._last_message = self._last_line = b""

    def serve(self) -> None:
        """Take what comes below `/v3/` from now on, and say what may come."""
        self._front.add_tree(self)
        self._front.add(OPENAPI_PATH, Endpoint(self._describe))

    def _describe(self, request: HttpRequest) -> None:
        self._front.respond(request.call, 200, (JSON,), document_bytes())

    # What arrives.

    def refusal(self, call: int) -> str | None:
        """Return why a call is refused, whatever it asks for.

        A client could take itself for the user whom its certificate names, which it never is here.
        """
        if self._certificates_count and self._member.auth.is_enabled:
            return BANNED_NAME if self._clients.certificate_name(call) else None
        return None

    def opened(self, request: HttpRequest) -> None:
        """Take the head of a request below `/v3/`."""
        call, headers, socket = request.call, request.headers, None
        if "upgrade" in headers and asks_for_upgrade(headers):
            status = handshake_refusal(request.method, headers)
            if status is not None:
                self._front.refuse(call, *status)
                return
            # Imported late: it takes a while, and most servers never need it.
            from kvorum.gateway.websocket import WebSocket

            socket = WebSocket(self._body_bytes_max)
            self._front.upgrade(call, handshake_answer(headers))
            headers = metadata_headers(headers)
        try:
            route = _route(request, is_socket=socket is not None)
            metadata, seconds = metadata_of(headers), seconds_allowed(headers)
            if seconds is not None and seconds < SECONDS_MIN:
                raise Refused(errors.CONTEXT_DEADLINE_EXCEEDED)
        except Refused as refused:
            self._answer_error(call, socket, refused.status)
            return
        found = self.open[call] = GatewayCall(route, metadata, socket)
        if seconds is not None:
            found.deadline = self._member.now + seconds
            heappush(self._deadlines, (found.deadline, call))
        if route.kind is Kind.BOTH_WAYS:
            found.has_begun = True
            self.events.append((EventKind.OPENED, call, (route.number, metadata)))

    def handle(self, kind: int, call: int, detail: bytes | None) -> None:
        """Take an event of an open call."""
        found = self.open[call]
        try:
            if kind == EventKind.MESSAGE:
                assert detail is not None
                found.body.feed(detail)
                self._arrived(call, found)
            elif kind == EventKind.HALF_CLOSED:
                # The end of a handshake's body is not that of the WebSocket.
                if found.socket is None:
                    found.body.end()
                    self._arrived(call, found)
            elif kind == EventKind.WRITABLE:
                self.events.append((kind, call, None))
            elif kind == EventKind.ENDED:
                self._cancel(call, found)
        except Exception as error:
            self._failed(call, found, error, detail or b"")

    @property
    def waiting(self) -> int:
        """How many calls have more to read than a slice."""
        return len(self._busy) + len(self._undecided)

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._busy) or any(not self.is_undecided(call) for call in self._undecided)

    def work(self) -> None:
        """Read one slice of the body whose turn it is.

        A body keeps its turn until the message that it is within is whole, so that only one at a
        time takes memory for what was decoded of it.
        """
        if self._undecided:
            calls, self._undecided = self._undecided, []
            self._busy.extend(calls)
        while self._busy:
            call = self._busy.popleft()
            found = self.open.get(call)
            if found is None:
                continue
            if self.is_undecided(call):
                self._undecided.append(call)
                continue
            found.is_busy = False
            try:
                self._read_slice(call, found)
            except Exception as error:
                self._failed(call, found, error, b"")
            return

    def pass_time(self, now: float) -> None:
        """End the calls whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, call = heappop(self._deadlines)
            found = self.open.get(call)
            if found is None:
                self._deadlines_passed_over -= 1
            else:
                found.deadline = inf
                self._refuse(call, found, errors.CONTEXT_DEADLINE_EXCEEDED)
        self._prune_deadlines()

    def stop(self) -> None:
        """Answer nobody any more, not even when a deadline passes: the server ends."""
        self._deadlines.clear()
        self._deadlines_passed_over = 0
        self._busy.clear()
        self._undecided.clear()

    @property
    def wake_at(self) -> float:
        """When `pass_time` has something to do."""
        return self._deadlines[0][0] if self._deadlines else inf

    def _failed(self, call: int, found: GatewayCall, error: Exception, sent: bytes) -> None:
        """End a call that is refused, or that an unforeseen error befell."""
        if isinstance(error, Refused):
            self._refuse(call, found, error.status)
        else:
            self._member.boundary.take(error, "http", f"gateway call {call}", sent)
            self._refuse(call, found, errors.INTERNAL)

    def _arrived(self, call: int, found: GatewayCall) -> None:
        """Read a slice of what arrived, unless there is more to be read before."""
        if found.is_busy:
            self._hold(found)
        elif found.body.has_more and self.is_undecided(call):
            self._hold(found)
            self._schedule(call, found)
        else:
            self._read_slice(call, found)

    def _read_slice(self, call: int, found: GatewayCall) -> None:
        """Read a slice of a body; put the call into the queue if there is more."""
        body = found.body
        body.begin_slice()
        while True:
            try:
                message = body.take()
            except Malformed as error:
                if found.route.kind is not Kind.BOTH_WAYS:
                    raise Refused(Status(Code.INVALID_ARGUMENT, str(error))) from None
                self._take_no_more(call, found)
                break
            if message is not None:
                self._take_message(call, found, message)
                if not found.is_heard:
                    found.is_heard = True
                    break
            elif body.is_broken:
                if found.route.kind is not Kind.BOTH_WAYS:
                    raise Refused(NOT_JSON)
                self._take_no_more(call, found)
                break
            elif not self._read_frames(call, found):
                break
        if not body.has_more:
            if found.socket is not None and not found.socket.is_open:
                self._cancel(call, found)
                self._edge.finish(call, OK)
                return
            if body.has_ended and not body.is_closed:
                self._take_no_more(call, found)
        self._hold(found)
        self._schedule(call, found)

    def _schedule(self, call: int, found: GatewayCall) -> None:
        """Queue a call that has more to read, and have the edge read no more of it meanwhile."""
        body = found.body
        if body.has_more:
            found.is_busy = True
            if body.is_within_value:
                self._busy.appendleft(call)
            else:
                self._busy.append(call)
            if not found.is_paused and not body.has_ended:
                found.is_paused = True
                self._edge.pause(call)
        elif found.is_paused:
            found.is_paused = False
            self._edge.resume(call)

    def _read_frames(self, call: int, found: GatewayCall) -> bool:
        """Read some frames of a WebSocket; return whether there was something to read."""
        answers = found.body.take_frames()
        # A client that pings and reads nothing gets no more answers.
        if answers and (
            (found.socket is not None and not found.socket.is_open)
            or self._edge.pending_bytes(call) < STREAM_PENDING_BYTES_MAX
        ):
            self._edge.send([(call, answers)])
        return answers is not None

    def _take_message(self, call: int, found: GatewayCall, message: bytes) -> None:
        """Hand a message to the services; a call with one request begins with it."""
        if len(message) > self._message_bytes_max:
            sizes = f"{len(message)} vs. {self._message_bytes_max}"
            text = f"grpc: received message larger than max ({sizes})"
            raise Refused(Status(Code.RESOURCE_EXHAUSTED, text))
        route, metadata = found.route, found.metadata
        if route.kind is Kind.BOTH_WAYS:
            self.events.append((EventKind.MESSAGE, call, message))
            return
        found.has_begun = True
        found.body.close()
        if route.kind is Kind.UNARY:
            self.requests.append((call, route.number, message, metadata))
        else:
            self.events.append((EventKind.OPENED, call, (route.number, metadata)))
            self.events.append((EventKind.MESSAGE, call, message))
            self.events.append((EventKind.HALF_CLOSED, call, None))

    def _take_no_more(self, call: int, found: GatewayCall) -> None:
        """Half-close a call with streams both ways: its body has ended, or is broken."""
        found.body.close()
        self.events.append((EventKind.HALF_CLOSED, call, None))

    def _hold(self, found: GatewayCall) -> None:
        """Count what is kept of a body; refuse it if that is too much."""
        held_bytes = found.body.kept_bytes
        self._held_bytes += held_bytes - found.held_bytes
        found.held_bytes = held_bytes
        if found.body.incomplete_bytes > self._body_bytes_max:
            sizes = f"more than {self._body_bytes_max} bytes of JSON"
            raise Refused(Status(Code.RESOURCE_EXHAUSTED, f"the request is too large: {sizes}"))
        if held_bytes and self._held_bytes > BODIES_BYTES_MAX:
            raise Refused(TOO_MANY_BODIES)

    def _cancel(self, call: int, found: GatewayCall) -> None:
        """Forget a call that its client has given up."""
        self._forget(call, found)
        self._front.forget(call)
        self._tell_of_end(call, found)

    def _refuse(self, call: int, found: GatewayCall, status: Status) -> None:
        """End a call with an error that is not the services' own."""
        self._tell_of_end(call, found)
        self._fail(call, found, status)

    def _tell_of_end(self, call: int, found: GatewayCall) -> None:
        if not found.has_begun:
            return
        if found.is_told_of_end:
            self.events.append((EventKind.ENDED, call, None))
        else:
            self._left.add(call)

    def _forget(self, call: int, found: GatewayCall) -> None:
        del self.open[call]
        self._held_bytes -= found.held_bytes
        if found.deadline < inf and self._deadlines:
            self._deadlines_passed_over += 1
            self._prune_deadlines()

    def _prune_deadlines(self) -> None:
        """Keep at most as many deadlines of calls that have ended as of others."""
        if 2 * self._deadlines_passed_over > len(self._deadlines):
            self._deadlines = [each for each in self._deadlines if each[1] in self.open]
            heapify(self._deadlines)
            self._deadlines_passed_over = 0

    # What the services answer.

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls, by either way."""
        if self.open or self._left:
            batch = [each for each in batch if not self._replied(*each)]
        if batch:
            self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams, by either way."""
        if self.open:
            batch = self._lines(batch)
        self._edge.send(batch)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream, by either way."""
        found = self.open.get(call)
        if found is None:
            self._edge.finish(call, status, trailers)
        elif status.code is not Code.OK:
            self._fail(call, found, status)
        else:
            self._forget(call, found)
            if found.socket is not None:
                self._edge.send([(call, found.socket.close())])
                self._edge.finish(call, OK)
            else:
                if not found.has_response:
                    self._front.respond(call, 200, (), None)
                self._edge.finish(call, OK)

    def pending_bytes(self, call: int) -> int:
        """As `Edge.pending_bytes`."""
        return self._edge.pending_bytes(call)

    def mark_waiting(self, call: int) -> None:
        """As `Edge.mark_waiting`."""
        found = self.open.get(call)
        if found is None:
            self._edge.mark_waiting(call)
        else:
            found.is_told_of_end = True

    def _replied(self, call: int, result: bytes | Status) -> bool:
        """Answer a call if it is the gateway's; return whether it is."""
        found = self.open.get(call)
        if found is None:
            is_left = call in self._left
            self._left.discard(call)
            return is_left
        if isinstance(result, Status):
            self._fail(call, found, result)
            return True
        try:
            body = found.route.encoder.encode(result)
        except Exception as error:
            self._member.boundary.take(error, "http", f"the answer to gateway call {call}")
            self._fail(call, found, errors.INTERNAL)
            return True
        self._forget(call, found)
        if found.socket is None:
            self._front.respond(call, 200, METADATA_OF_ANSWERS, body)
        else:
            self._end_socket(call, found.socket, body)
        return True

    def _lines(self, batch: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return messages as they go out; those of the gateway's streams as lines or frames."""
        out: list[tuple[int, bytes]] = []
        for call, message in batch:
            found = self.open.get(call)
            if found is None:
                out.append((call, message))
                continue
            if message != self._last_message or found.route is not self._last_route:
                try:
                    self._last_line = found.route.encoder.encode_line(message)
                except Exception as error:
                    self._member.boundary.take(error, "http", f"a line of gateway call {call}")
                    self._edge.send(out)
                    out = []
                    self._refuse(call, found, errors.INTERNAL)
                    continue
                self._last_route, self._last_message = found.route, message
            line = self._last_line
            if found.socket is not None:
                line = found.socket.text(line[:-1])
            elif not found.has_response:
                found.has_response = True
                self._front.respond(call, 200, METADATA_OF_ANSWERS, None)
            out.append((call, line))
        return out

    def _fail(self, call: int, found: GatewayCall, status: Status) -> None:
        """End a call with an error, in the form that fits how far it has come."""
        self._forget(call, found)
        if found.has_begun and found.route.kind is not Kind.UNARY:
            line = error_line(status.code, status.text)
            if found.socket is not None:
                self._end_socket(call, found.socket, line[:-1])
            else:
                if not found.has_response:
                    self._front.respond(call, HTTP_STATUS[status.code], (JSON,), None)
                self._edge.send([(call, line)])
                self._edge.finish(call, OK)
        else:
            self._answer_error(call, found.socket, status)

    def _answer_error(self, call: int, socket: "WebSocket | None", status: Status) -> None:
        body = error_body(status.code, status.text)
        if socket is not None:
            self._end_socket(call, socket, body)
        else:
            headers = [JSON]
            if status.code is Code.UNAUTHENTICATED:
                headers.append(("www-authenticate", status.text))
            self._front.respond(call, HTTP_STATUS[status.code], headers, body)

    def _end_socket(self, call: int, socket: "WebSocket", last: bytes) -> None:
        """Send a last message, and close."""
        self._edge.send([(call, socket.text(last) + socket.close())])
        self._edge.finish(call, OK)


def _never(_call: int) -> bool:
    return False


def _route(request: HttpRequest, *, is_socket: bool) -> Route:
    """Return the route of a request; raises Refused. A WebSocket stands for a POST."""
    route = ROUTES.get(request.path)
    if route is None:
        raise Refused(NOT_FOUND)
    if not is_socket:
        method = request.method
        if method == "POST" and request.headers.get("content-type") == FORM:
            method = request.headers.get(OVERRIDE) or method
        if method != "POST":
            raise Refused(METHOD_NOT_ALLOWED)
    return route
