"""HTTP/1.1 on one connection, with the `h11` library: one request at a time.

Pipelined requests wait in the library's buffer until the one before is answered. The edge ignores
a client's upgrade offer unless the loop answers 101; from then on the connection carries raw bytes
both ways.
"""

from collections.abc import Callable
from email.utils import formatdate
from enum import Enum
from http import HTTPStatus

import h11

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import EdgeEventKind, Headers
from kvorum.network.edge.pure.call import CallKind, EdgeCall
from kvorum.network.edge.pure.connection import EdgeConnection, HttpProtocol
from kvorum.network.edge.pure.headers import BAD_VALUE, encoded

UNREAD_BYTES_MAX = 256 * 1024
"""Bytes of an answered request's body that the edge reads to keep the connection."""

_STATUSES = frozenset(HTTPStatus)


class Awaited(Enum):
    """The client's next step, to which a time limit applies."""

    NOTHING = ""
    REQUEST = "the next request"
    HEAD = "the rest of a request's headers"
    BODY = "more of a request's body"


class Http1(HttpProtocol):
    """HTTP/1.1 on one connection."""

    __slots__ = (
        "_awaited",
        "_body_left",
        "_call",
        "_connection",
        "_count",
        "_discarded",
        "_h11",
        "_raw",
        "_shared",
        "ahead_bytes",
        "is_caller",
        "is_paused",
        "received_bytes_max",
    )

    def __init__(self, connection: EdgeConnection) -> None:
        self._connection = connection
        self._shared = connection.shared
        limits = self._shared.limits
        self.received_bytes_max = limits.stream_queued_bytes_max
        self.ahead_bytes = 0
        self._h11 = h11.Connection(
            h11.SERVER, max_incomplete_event_size=limits.http_header_bytes_max
        )
        self._call: EdgeCall | None = None
        """The request that is not answered yet."""
        self._body_left: int | None = 0
        """Bytes of the request's body that have not arrived; None for unknown length."""
        self._count = 0
        self._discarded = 0
        self._raw = False
        self.is_paused = False
        self.is_caller = False
        self._awaited = Awaited.NOTHING

    # Input.

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        if self._raw:
            if self._call is not None:
                self._connection.push_message(self._call, data, 0)
            return
        self._h11.receive_data(data)
        self._advance()

    def _advance(self) -> None:
        """Process buffered input, up to the end of the request being answered."""
        while not self._connection.closing and not self.is_paused:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(431 if error.error_status_hint == 431 else 400)
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                break
            if isinstance(event, h11.Request):
                self._request(event)
            elif isinstance(event, h11.Data):
                self._body(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                if self._call is None:
                    self._next()
                else:
                    self._connection.push_event(EdgeEventKind.HALF_CLOSED, self._call)
        self._watch_rest()

    def _watch_rest(self) -> None:
        rest = len(self._h11.trailing_data[0])
        busy = self._call is not None
        self.ahead_bytes = rest if busy else 0
        if not self._connection.closing:
            self._await(busy, rest)

    def _await(self, busy: bool, rest: int) -> None:
        """Set the time limit for the client's next step."""
        limits, strict = self._shared.limits, self._connection.http1_only
        before = self._awaited
        seconds = 0.0
        self._awaited = Awaited.NOTHING
        if busy:
            if strict and not self.is_paused and self._h11.their_state is h11.SEND_BODY:
                self._awaited, seconds = Awaited.BODY, limits.http1_read_seconds_max
        elif rest:
            self._awaited = Awaited.HEAD
            seconds = limits.http1_read_seconds_max if strict else limits.header_read_seconds_max
            if before is Awaited.HEAD or (not strict and self._connection.timeout):
                return
        elif strict:
            self._awaited, seconds = Awaited.REQUEST, limits.http1_idle_seconds_max
        self._connection.set_timeout(seconds)

    def _request(self, event: h11.Request) -> None:
        size = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
        if size > self._shared.limits.http_header_bytes_max:
            self._refuse(431)
            return
        if any(BAD_VALUE.search(value) for _, value in event.headers):
            self._refuse(400)
            return
        if not event.http_version.startswith(b"1."):
            self._refuse(505)
            return
        self._count += 1
        number = self._connection.number << 32 | self._count
        call = self._call = EdgeCall(number, CallKind.HTTP, 0, self._shared.now())
        call.head_only = event.method == b"HEAD"
        length = dict(event.headers).get(b"content-length")
        self._body_left = int(length) if length is not None else None
        if self._h11.they_are_waiting_for_100_continue:
            self._write(lambda: h11.InformationalResponse(status_code=100, headers=[]))
        self._connection.open_call(call)
        detail = (
            self._connection.listener,
            event.method.decode("latin-1"),
            event.target.decode("latin-1"),
            self._shared.http_headers.of(event.headers),
        )
        self._connection.push_event(EdgeEventKind.HTTP_OPENED, call, detail)

    def _body(self, data: bytes) -> None:
        if self._body_left is not None:
            self._body_left -= len(data)
        if self._call is not None:
            self._connection.push_message(self._call, data, 0)
            return
        self._discarded += len(data)
        if self._discarded > UNREAD_BYTES_MAX:
            self._connection.close_when_flushed()

    def _refuse(self, status: int) -> None:
        self._shared.counters.requests_refused += 1
        if self._call is None or not self._call.started:
            text = f"{status} {HTTPStatus(status).phrase}"
            self._connection.out += (
                f"HTTP/1.1 {text}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}"
            ).encode()
        self._connection.close_when_flushed()

    def polled(self, call: EdgeCall, wire_bytes: int) -> None:
        """Do nothing: HTTP/1.1 has no window, and the socket limits the client."""

    # Output.

    def _write(self, make: Callable[[], h11.Event]) -> bool:
        """Write an event, or abort the connection if HTTP/1.1 does not allow this answer.

        Its validity depends on the request, so an error here must not stop the server.
        """
        try:
            self._connection.out += self._h11.send(make()) or b""
        except h11.LocalProtocolError:
            self._connection.abort()
            return False
        return True

    def respond(self, call: EdgeCall, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer a request."""
        if call.started:
            return
        call.started = True
        fields = encoded(headers)
        reason = HTTPStatus(status).phrase.encode() if status in _STATUSES else b""
        if status == 101:
            if self._write(
                lambda: h11.InformationalResponse(status_code=101, headers=fields, reason=reason)
            ):
                self._become_raw(call)
            return
        names = {name for name, _ in fields}
        if status in (204, 304):
            call.head_only = True
        elif body is not None and b"content-length" not in names:
            fields.append((b"content-length", b"%d" % len(body)))
        if b"date" not in names:
            fields.append((b"date", formatdate(usegmt=True).encode()))
        is_last = self._shared.draining or (body is not None and self._has_long_rest())
        if is_last and b"connection" not in names:
            fields.append((b"connection", b"close"))
        written = self._write(
            lambda: h11.Response(status_code=status, headers=fields, reason=reason)
        )
        if written and body is not None:
            self.send(call, body)
            self.finish(call, Status(Code.OK, ""), ())

    def _has_long_rest(self) -> bool:
        """Return whether more of the request's body may come than `UNREAD_BYTES_MAX`."""
        if self._h11.their_state is not h11.SEND_BODY:
            return False
        return self._body_left is None or self._body_left > UNREAD_BYTES_MAX

    def _become_raw(self, call: EdgeCall) -> None:
        self._raw = True
        self.ahead_bytes = 0
        rest, _ = self._h11.trailing_data
        if rest:
            self._connection.push_message(call, rest, 0)

    def start(self, call: EdgeCall, metadata: Headers) -> None:
        """Do nothing: there is no RPC on HTTP/1.1."""

    def send(self, call: EdgeCall, data: bytes) -> None:
        """Send a piece of the body."""
        if not call.started or not data:
            return
        if self._raw:
            self._connection.out += data
        elif not call.head_only:
            self._write(lambda: h11.Data(data=data))
        if len(self._connection.out) >= self._shared.limits.stream_writable_bytes:
            call.writable_owed = True

    def finish(self, call: EdgeCall, status: Status, trailers: Headers) -> None:
        """End the body, or abort it after an error status."""
        call.finished = True
        self.is_paused = False
        complete = status.code == Code.OK and call.started and not self._raw
        if complete:
            self._write(lambda: h11.EndOfMessage(headers=list(trailers)))
        self._connection.end_call(call, report=False)
        self._call = None
        close_delimited = (self._h11.their_http_version or b"") < b"1.1"
        if call.started and not complete and not self._raw and close_delimited:
            self._connection.abort()
        elif not complete or self._shared.draining or self._h11.our_state is not h11.DONE:
            self._connection.close_when_flushed()
        elif self._h11.their_state is h11.DONE:
            self._next()
            self._advance()

    def _next(self) -> None:
        """Prepare for the next request."""
        self._discarded = 0
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        else:
            self._connection.close_when_flushed()

    def unpack(self) -> None:
        """Do nothing: the edge does not decompress HTTP bodies."""

    def fill(self) -> None:
        """Report WRITABLE when a slow client has caught up."""
        call = self._call
        if (
            call is not None
            and call.writable_owed
            and len(self._connection.out) < self._shared.limits.stream_writable_bytes
        ):
            call.writable_owed = False
            self._connection.push_event(EdgeEventKind.WRITABLE, call)

    def pending_bytes(self, call: EdgeCall) -> int:
        """Return the number of bytes that the socket has not accepted."""
        return len(self._connection.out) if call is self._call else 0

    def pause(self, call: EdgeCall) -> None:
        """Stop reading the request's body."""
        if call is self._call:
            self.is_paused = True
            self._watch_rest()

    def resume(self, call: EdgeCall) -> None:
        """Resume reading the body, starting with buffered bytes."""
        if call is self._call and self.is_paused:
            self.is_paused = False
            if not self._raw:
                self._advance()

    def expire(self, call: EdgeCall) -> None:
        """Do nothing: plain HTTP requests have no deadline."""

    def time_out(self) -> bool:
        """Close a connection whose client was too slow, without an incident if it was idle."""
        connection = self._connection
        if self._awaited is Awaited.BODY:
            if connection.held:
                # The edge has stopped reading; the client is not at fault.
                connection.set_timeout(self._shared.limits.http1_read_seconds_max)
                return True
            connection.note("bodies_timed_out", "the body of a request did not come in time")
        elif self._awaited is not Awaited.REQUEST:
            return False
        connection.close_when_flushed()
        return True

    def turn_away(self) -> None:
        """End the connection of a client that does not read its answers."""
        self._connection.note("unread_excessive", "the client does not read its answer")
        self._connection.abort()

    def drain(self) -> None:
        """Close unless a request is being answered."""
        if self._call is None:
            self._connection.close_when_flushed()

    def close(self) -> None:
        """Forget the request."""
        self._call = None
