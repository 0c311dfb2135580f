"""The JSON gateway: HTTP requests that are RPCs, and their answers.

The gateway is a front of the services beside the edge, which is the front for gRPC. It translates
HTTP requests into the same `requests` and `events` as gRPC clients cause, and the server passes
these to the services as calls of the gateway, so that the gateway gets their answers and converts
them to JSON. So no route needs a handler, and calls over JSON and gRPC have the same life cycle.

A unary call, or one with a stream of answers, starts when the request's body has ended; over a
WebSocket, whose body ends only with the connection, it starts with the first complete JSON value. A
call with streams both ways starts at once, and each complete value of its body is a message.

The gateway reads bodies in slices. Most bodies fit into one slice and are decoded on arrival. The
rest of a longer body waits for `work`, which the server calls after other requests; meanwhile the
edge stops reading that call. After a call's first message the gateway reads no further until the
services have received that message, because they may refuse the caller.
"""

from collections import deque
from collections.abc import Container
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.member.member import Member
from kvorum.network.edge.interface import EdgeEventKind, Event, Headers, Metadata, Request
from kvorum.server.http.bodies import Body
from kvorum.server.http.decoding import Malformed
from kvorum.server.http.encoding import error_body, error_line
from kvorum.server.http.handshake import READ_HEADERS as SOCKET_HEADERS
from kvorum.server.http.handshake import (
    asks_for_upgrade,
    handshake_answer,
    handshake_refusal,
    metadata_headers,
)
from kvorum.server.http.http import JSON, HttpEndpoint, HttpFront, HttpRequest
from kvorum.server.http.metadata import READ_HEADERS as CALL_HEADERS
from kvorum.server.http.metadata import Refused, parse_headers
from kvorum.server.http.openapi import document_bytes
from kvorum.server.http.routes import ROUTES, Route
from kvorum.server.rpc.interface import OK, STREAM_PENDING_BYTES_MAX, Clients, RpcOutput
from kvorum.server.rpc.table import RpcKind

if TYPE_CHECKING:
    from kvorum.server.http.websocket import WebSocket

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes kept of all unfinished bodies; the gateway refuses a body that exceeds this total."""
BODY_FACTOR: Final = 2
BODY_BYTES_MORE: Final = 64 * 1024
"""Allowance for a body over its message's size: base64 adds a third, and names and blanks add
more."""

SECONDS_MIN: Final = 1e-6
"""Shortest time limit of a call; a shorter one is exceeded at once."""
OPENAPI_PATH: Final = "/v3/openapi.json"
FORM: Final = "application/x-www-form-urlencoded"
OVERRIDE: Final = "x-http-method-override"
READ_HEADERS: Final = ("content-type", OVERRIDE, *CALL_HEADERS, *SOCKET_HEADERS)
"""The headers that the gateway reads in addition to those of `kvorum.server.http.http`."""

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


class GatewayOutput(RpcOutput, Protocol):
    """The part of the edge that sends answers and can pause reading a call."""

    def pause(self, call: int) -> None:
        """As `Edge.pause`."""

    def resume(self, call: int) -> None:
        """As `Edge.resume`."""


class GatewayCall:
    """One HTTP request that is an RPC, from its head to the end of its answer."""

    __slots__ = (
        "body",
        "deadline",
        "has_begun",
        "has_first_message",
        "has_response",
        "held_bytes",
        "is_busy",
        "is_paused",
        "metadata",
        "needs_end",
        "route",
        "socket",
    )

    def __init__(self, route: Route, metadata: Metadata, socket: "WebSocket | None") -> None:
        self.route = route
        self.metadata = metadata
        self.socket = socket
        self.body = Body(route, socket)
        self.held_bytes = 0
        """The bytes kept of the body, as last counted in the gateway's total."""
        self.is_busy = False
        """Whether more of the body waits for `Gateway.work`."""
        self.is_paused = False
        """Whether the gateway has paused the call at the edge."""
        self.has_first_message = False
        """Whether the gateway has passed on the call's first message."""
        self.has_begun = False
        """Whether the gateway has passed the call to the services."""
        self.has_response = False
        """Whether the head of the response was sent."""
        self.needs_end = route.kind is not RpcKind.UNARY
        """Whether the service needs ENDED if the client goes away, as over gRPC; without it, the
        call continues."""
        self.deadline = inf


class Gateway:
    """The JSON calls of one server, with their answers."""

    __slots__ = (
        "_body_bytes_max",
        "_busy",
        "_client_cert_identifies_user",
        "_clients",
        "_deadlines",
        "_deadlines_passed_over",
        "_edge",
        "_front",
        "_held_bytes",
        "_last_line",
        "_last_message",
        "_last_route",
        "_member",
        "_message_bytes_max",
        "_unidentified",
        "events",
        "open",
        "requests",
        "undecided",
    )

    def __init__(
        self,
        member: Member,
        edge: GatewayOutput,
        front: HttpFront,
        clients: Clients,
        undecided: Container[int],
        *,
        message_bytes_max: int,
        client_cert_identifies_user: bool,
    ) -> None:
        """Serve the requests of `front`; refuse messages of more than `message_bytes_max`.

        `undecided` contains the calls whose caller the services have not identified yet.
        """
        self._member = member
        self._edge = edge
        self._front = front
        self._clients = clients
        self._client_cert_identifies_user = client_cert_identifies_user
        self._message_bytes_max = message_bytes_max
        self._body_bytes_max = message_bytes_max * BODY_FACTOR + BODY_BYTES_MORE
        self.open: dict[int, GatewayCall] = {}
        """The calls that have not ended, by their number at the edge."""
        self.requests: list[Request] = []
        self.events: list[Event] = []
        """Requests and events for the services, requests first; the server takes both."""
        self.undecided: Final = undecided
        """The calls whose caller is not identified yet."""
        # Calls with more to read, in round-robin order; calls whose caller was not identified when
        # their turn came.
        self._busy: deque[int] = deque()
        self._unidentified: list[int] = []
        self._held_bytes = 0
        self._deadlines: list[tuple[float, int]] = []
        # The number of deadlines of ended calls, which may be hours away.
        self._deadlines_passed_over = 0
        # The line of the last message sent: all watchers of a key receive the same one.
        self._last_route: Route | None = None
        self._last_message = self._last_line = b""

    def serve(self) -> None:
        """Start serving requests below `/v3/`, and the OpenAPI document."""
        # Without the option no client's certificate means anything to a server.
        self._front.add_tree(self, self._refusal if self._client_cert_identifies_user else None)
        self._front.add(OPENAPI_PATH, HttpEndpoint(self._describe))

    def _describe(self, request: HttpRequest) -> None:
        self._front.respond(request.call, 200, (JSON,), document_bytes())

    # Requests.

    def _refusal(self, call: int) -> str | None:
        """Return why to refuse a call whatever its path, or None.

        The gateway ignores the user name in a client's certificate; the refusal keeps the client
        from assuming otherwise.
        """
        if self._member.state.auth.is_enabled:
            return BANNED_NAME if self._clients.certificate_name(call) else None
        return None

    def open_request(self, request: HttpRequest) -> None:
        """Take the head of a request below `/v3/`."""
        call, headers, socket = request.call, request.headers, None
        if "upgrade" in headers and asks_for_upgrade(headers):
            status = handshake_refusal(request.method, headers)
            if status is not None:
                self._front.refuse(call, *status)
                return
            # The import is slow, and most servers never need it.
            from kvorum.server.http.websocket import WebSocket

            socket = WebSocket(self._body_bytes_max)
            self._front.upgrade(call, handshake_answer(headers))
            headers = metadata_headers(headers)
        try:
            route = _route(request, is_socket=socket is not None)
            metadata, seconds = parse_headers(headers)
            if seconds is not None and seconds < SECONDS_MIN:
                raise Refused(errors.CONTEXT_DEADLINE_EXCEEDED)
        except Refused as refused:
            self._answer_error(call, socket, refused.status)
            return
        found = self.open[call] = GatewayCall(route, metadata, socket)
        if seconds is not None:
            found.deadline = self._member.now + seconds
            heappush(self._deadlines, (found.deadline, call))
        if route.kind is RpcKind.BOTH_WAYS:
            found.has_begun = True
            self.events.append((EdgeEventKind.OPENED, call, (route.number, metadata)))

    def handle(self, kind: int, call: int, detail: bytes | None) -> None:
        """Take an event of an open call."""
        found = self.open[call]
        try:
            if kind == EdgeEventKind.MESSAGE:
                assert detail is not None
                found.body.feed(detail)
                self._read_arrived(call, found)
            elif kind == EdgeEventKind.HALF_CLOSED:
                # The handshake's body ends here, but the WebSocket continues.
                if found.socket is None:
                    found.body.end()
                    self._read_arrived(call, found)
            elif kind == EdgeEventKind.WRITABLE:
                self.events.append((kind, call, None))
            elif kind == EdgeEventKind.ENDED:
                self._cancel(call, found)
        except Exception as error:
            self._end_failed(call, found, error, detail or b"")

    @property
    def waiting(self) -> int:
        """The number of calls whose bodies wait for `work`."""
        return len(self._busy) + len(self._unidentified)

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do."""
        if self._busy or not self._unidentified:
            return bool(self._busy)
        return any(call not in self.undecided for call in self._unidentified)

    def work(self) -> None:
        """Read one slice of the next body in turn.

        A body keeps its turn until its current message is complete, so that only one partly decoded
        message takes memory at a time.
        """
        if self._unidentified:
            calls, self._unidentified = self._unidentified, []
            self._busy.extend(calls)
        while self._busy:
            call = self._busy.popleft()
            found = self.open.get(call)
            if found is None:
                continue
            if call in self.undecided:
                self._unidentified.append(call)
                continue
            found.is_busy = False
            try:
                self._read_slice(call, found)
            except Exception as error:
                self._end_failed(call, found, error, b"")
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
        """Stop reading bodies and ending calls at their deadlines, because the server stops."""
        self._deadlines.clear()
        self._deadlines_passed_over = 0
        self._busy.clear()
        self._unidentified.clear()

    @property
    def wake_at(self) -> float:
        """The time of the next deadline for `pass_time`."""
        return self._deadlines[0][0] if self._deadlines else inf

    def _end_failed(self, call: int, found: GatewayCall, error: Exception, sent: bytes) -> None:
        """End a call after a refusal or an unforeseen error."""
        if isinstance(error, Refused):
            self._refuse(call, found, error.status)
        else:
            self._member.boundary.take(error, "http", f"gateway call {call}", sent)
            self._refuse(call, found, errors.INTERNAL)

    def _read_arrived(self, call: int, found: GatewayCall) -> None:
        """Read a slice of newly arrived bytes, unless the call must wait for its turn."""
        body = found.body
        has_more = body.has_more
        if found.is_busy or not (has_more or body.has_ended):
            self._hold(found)
        elif has_more and call in self.undecided:
            self._hold(found)
            self._schedule(call, found, has_more)
        else:
            self._read_slice(call, found)

    def _read_slice(self, call: int, found: GatewayCall) -> None:
        """Read a slice of a body; queue the call if there is more."""
        body = found.body
        body.begin_slice()
        while True:
            try:
                message = body.take()
            except Malformed as error:
                if found.route.kind is not RpcKind.BOTH_WAYS:
                    raise Refused(Status(Code.INVALID_ARGUMENT, str(error))) from None
                self._half_close(call, found)
                break
            if message is not None:
                self._take_message(call, found, message)
                if not found.has_first_message:
                    found.has_first_message = True
                    break
            elif body.is_broken:
                if found.route.kind is not RpcKind.BOTH_WAYS:
                    raise Refused(NOT_JSON)
                self._half_close(call, found)
                break
            elif not self._read_frames(call, found):
                break
        has_more = body.has_more
        if not has_more:
            if found.socket is not None and not found.socket.is_open:
                self._cancel(call, found)
                self._edge.finish(call, OK)
                return
            if body.has_ended and not body.is_closed:
                self._half_close(call, found)
        self._hold(found)
        self._schedule(call, found, has_more)

    def _schedule(self, call: int, found: GatewayCall, has_more: bool) -> None:
        """Queue a call that has more to read, and pause it at the edge meanwhile."""
        body = found.body
        if has_more:
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
        # Drop answers to pings of a client that does not read.
        if answers and (
            (found.socket is not None and not found.socket.is_open)
            or self._edge.pending_bytes(call) < STREAM_PENDING_BYTES_MAX
        ):
            self._edge.send([(call, answers)])
        return answers is not None

    def _take_message(self, call: int, found: GatewayCall, message: bytes) -> None:
        """Pass a message to the services; it starts a call that has only one request."""
        if len(message) > self._message_bytes_max:
            sizes = f"{len(message)} vs. {self._message_bytes_max}"
            text = f"grpc: received message larger than max ({sizes})"
            raise Refused(Status(Code.RESOURCE_EXHAUSTED, text))
        route, metadata = found.route, found.metadata
        if route.kind is RpcKind.BOTH_WAYS:
            self.events.append((EdgeEventKind.MESSAGE, call, message))
            return
        found.has_begun = True
        found.body.close()
        if route.kind is RpcKind.UNARY:
            self.requests.append((call, route.number, message, metadata))
        else:
            self.events.append((EdgeEventKind.OPENED, call, (route.number, metadata)))
            self.events.append((EdgeEventKind.MESSAGE, call, message))
            self.events.append((EdgeEventKind.HALF_CLOSED, call, None))

    def _half_close(self, call: int, found: GatewayCall) -> None:
        """Half-close a call with streams both ways after the end of its body or invalid JSON."""
        found.body.close()
        self.events.append((EdgeEventKind.HALF_CLOSED, call, None))

    def _hold(self, found: GatewayCall) -> None:
        """Count the bytes kept of a body; refuse the call above a limit."""
        held_bytes = found.body.kept_bytes
        self._held_bytes += held_bytes - found.held_bytes
        found.held_bytes = held_bytes
        if held_bytes > self._body_bytes_max < found.body.incomplete_bytes:
            sizes = f"more than {self._body_bytes_max} bytes of JSON"
            raise Refused(Status(Code.RESOURCE_EXHAUSTED, f"the request is too large: {sizes}"))
        if held_bytes and self._held_bytes > BODIES_BYTES_MAX:
            raise Refused(TOO_MANY_BODIES)

    def _cancel(self, call: int, found: GatewayCall) -> None:
        """Forget a call that its client has cancelled."""
        self._forget(call, found)
        self._front.forget(call)
        self._report_end(call, found)

    def _refuse(self, call: int, found: GatewayCall, status: Status) -> None:
        """End a call with an error of the gateway, and notify its service if it needs that."""
        self._report_end(call, found)
        self._fail(call, found, status)

    def _report_end(self, call: int, found: GatewayCall) -> None:
        if found.has_begun and found.needs_end:
            self.events.append((EdgeEventKind.ENDED, call, None))

    def _forget(self, call: int, found: GatewayCall) -> None:
        del self.open[call]
        self._held_bytes -= found.held_bytes
        if found.deadline < inf and self._deadlines:
            self._deadlines_passed_over += 1
            self._prune_deadlines()

    def _prune_deadlines(self) -> None:
        """Keep at most as many deadlines of ended calls as of open ones."""
        if 2 * self._deadlines_passed_over > len(self._deadlines):
            self._deadlines = [each for each in self._deadlines if each[1] in self.open]
            heapify(self._deadlines)
            self._deadlines_passed_over = 0

    # Answers.

    def reply(self, call: int, result: bytes | Status) -> None:
        """End a unary call, unless its client has cancelled it."""
        found = self.open.get(call)
        if found is None:
            return
        if isinstance(result, Status):
            self._fail(call, found, result)
            return
        try:
            body = found.route.encoder.encode(result)
        except Exception as error:
            self._member.boundary.take(error, "http", f"the answer to gateway call {call}")
            self._fail(call, found, errors.INTERNAL)
            return
        self._forget(call, found)
        if found.socket is None:
            self._front.respond(call, 200, METADATA_OF_ANSWERS, body)
        else:
            self._end_socket(call, found.socket, body)

    def encode_message(self, call: int, message: bytes) -> bytes | None:
        """Return a stream's message as a line or frame, after sending the head of the response.

        None if the message cannot be written as JSON, or if the call has ended: then `finish` must
        follow, once the call's earlier messages are sent.
        """
        found = self.open.get(call)
        if found is None:
            return None
        if message != self._last_message or found.route is not self._last_route:
            try:
                self._last_line = found.route.encoder.encode_line(message)
            except Exception as error:
                self._member.boundary.take(error, "http", f"a line of gateway call {call}")
                self._report_end(call, found)
                return None
            self._last_route, self._last_message = found.route, message
        line = self._last_line
        if found.socket is not None:
            return found.socket.text(line[:-1])
        if not found.has_response:
            found.has_response = True
            self._front.respond(call, 200, METADATA_OF_ANSWERS, None)
        return line

    def finish(self, call: int, status: Status) -> None:
        """End a stream."""
        found = self.open.get(call)
        if found is None:
            return
        if status.code is not Code.OK:
            self._fail(call, found, status)
            return
        self._forget(call, found)
        if found.socket is not None:
            self._edge.send([(call, found.socket.close())])
        elif not found.has_response:
            self._front.respond(call, 200, (), None)
        self._edge.finish(call, OK)

    def mark_waiting(self, call: int) -> None:
        """Tell the service if a unary call ends before its reply, or has ended already."""
        found = self.open.get(call)
        if found is None:
            # The edge reports the end of a call that it does not know.
            self._edge.mark_waiting(call)
        else:
            found.needs_end = True

    def _fail(self, call: int, found: GatewayCall, status: Status) -> None:
        """End a call with an error: as a line if its stream has started, else as an answer."""
        self._forget(call, found)
        if found.has_begun and found.route.kind is not RpcKind.UNARY:
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
        """Send a last message on a WebSocket and close it."""
        self._edge.send([(call, socket.text(last) + socket.close())])
        self._edge.finish(call, OK)


def _route(request: HttpRequest, *, is_socket: bool) -> Route:
    """Return the route of a request, where a WebSocket counts as POST; raise Refused."""
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
