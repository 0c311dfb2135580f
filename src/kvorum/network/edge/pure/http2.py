"""HTTP/2 on one connection: gRPC calls and plain HTTP requests.

The `h2` library handles frames, header compression and stream states; this module handles calls.
Rules of this module:

- A unary request's bytes return to the client's window as they arrive. A stream's bytes return
  only when the loop has polled the message, except that a message larger than the rest of the
  window gets the room it needs.
- Outgoing bytes stay with their call until the client's windows and the connection's `out`
  accept them, so that the call's pending bytes are known.
- The edge resets a call that it answers before the client has half-closed, without error and
  after the trailers, so that the client stops sending.
"""

from collections.abc import Callable
from typing import ClassVar

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError
from kvorum.client.grpc.wire import frame_message
from kvorum.network.edge.interface import EdgeEventKind, Headers, Serves
from kvorum.network.edge.pure import grpc
from kvorum.network.edge.pure.call import CallKind, EdgeCall
from kvorum.network.edge.pure.connection import EdgeConnection, HttpProtocol
from kvorum.network.edge.pure.frames import HOP_BY_HOP, Fields, Frames, is_malformed
from kvorum.network.edge.pure.headers import encoded

FILL_BYTES = 256 * 1024
"""Bytes of `out` up to which `fill` moves calls' bytes into it."""
FRAME_BYTES_MAX = 64 * 1024
"""Largest DATA frame sent, where the client accepts more."""
RESET_SECONDS = 1.0
"""Age below which a reset call counts towards `resets_per_second_max`."""
STREAM_MAX = 2**31 - 1
DRAIN_PING = b"draining"
"""Payload of the ping after the first GOAWAY; a client that answers it has seen the GOAWAY."""
STRIKES_MAX = 2
"""Early pings that the edge tolerates; one more ends the connection."""
IDLE_PING_SECONDS_MIN = 7200.0
"""Shortest time between pings of a client that has no calls."""

RESPONSE: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class Http2(HttpProtocol):
    """HTTP/2 on one connection."""

    __slots__ = (
        "_asked",
        "_connection",
        "_frames",
        "_greeted",
        "_last_ping",
        "_last_read",
        "_last_stream",
        "_packed",
        "_reset_debt",
        "_reset_since",
        "_sendable",
        "_shared",
        "_strikes",
        "ahead_bytes",
        "is_caller",
        "is_paused",
        "received_bytes_max",
    )

    def __init__(self, connection: EdgeConnection) -> None:
        """Prepare the server's preface."""
        self._connection = connection
        self._shared = connection.shared
        limits = self._shared.limits
        self.received_bytes_max = limits.connection_queued_bytes_max
        self.ahead_bytes = 0
        self.is_paused = False
        self.is_caller = True
        self._sendable: dict[int, EdgeCall] = {}
        """Calls with outgoing bytes whose own window may be open, in round-robin order."""
        self._packed: dict[int, EdgeCall] = {}
        """Calls with a compressed message that waits for room in the queue."""
        self._last_stream = STREAM_MAX
        """Highest stream that the edge accepts; draining lowers it."""
        self._reset_debt = 0
        self._reset_since = 0.0
        self._greeted = False
        """Whether the client's SETTINGS, which must come first, have arrived."""
        self._strikes = 0
        self._last_ping = float("-inf")
        self._last_read = 0.0
        self._asked = 0.0
        """Time of the keepalive ping that awaits its answer; 0: none."""
        self._frames = Frames(limits)

    # Input.

    def receive(self, data: bytes) -> None:
        """Process frames from the client."""
        connection = self._connection
        self._last_read = self._shared.now()
        try:
            events = self._frames.receive_data(data)
        except ProtocolError as error:
            # `h2` has prepared a GOAWAY, except for a wrong preface.
            self._break_off(None if self._frames.is_over else error.error_code)
            return
        if self._frames.has_overlong_frame():
            self._break_off(ErrorCodes.FRAME_SIZE_ERROR)
            return
        if events and not self._greeted:
            self._greeted = True
            if not isinstance(events[0], RemoteSettingsChanged):
                self._break_off(ErrorCodes.PROTOCOL_ERROR)
                return
            connection.set_timeout(self._keepalive_seconds())
        handlers = self._HANDLERS
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(self, event)
            if connection.closing:
                return

    def _break_off(self, code: ErrorCodes | None, text: str = "") -> None:
        if code is not None:
            self._frames.close_connection(code, text.encode() or None)
        self._connection.out += self._frames.data_to_send()
        self._connection.close_when_flushed()

    def _ban(self, incident: str, word: str) -> None:
        self._connection.note(incident, f"http2: {word}")
        self._break_off(ErrorCodes.ENHANCE_YOUR_CALM, word)

    def turn_away(self) -> None:
        """End the connection of a client that sends requests without reading answers."""
        self._ban("unread_excessive", "too_much_unread")

    # Pings.

    def _ping(self, _event: PingReceived) -> None:
        """Count pings that come too early, by grpc-go's rules."""
        last, self._last_ping = self._last_ping, self._last_read
        if self._frames.answered:
            self._frames.answered = False
            self._strikes = 0
            return
        has_calls = bool(self._connection.calls)
        least = self._shared.limits.ping_seconds_min if has_calls else IDLE_PING_SECONDS_MIN
        if last + least > self._last_read:
            self._strikes += 1
            if self._strikes > STRIKES_MAX:
                self._ban("pings_excessive", "too_many_pings")

    def _keepalive_seconds(self) -> float:
        limits = self._shared.limits
        return limits.keepalive_seconds if limits.keepalive_timeout_seconds else 0.0

    def time_out(self) -> bool:
        """Send a keepalive ping, or close the connection if the client sent nothing since one."""
        if not self._greeted:
            return False
        now, interval = self._shared.now(), self._keepalive_seconds()
        if self._asked and self._last_read < self._asked:
            self._connection.note("keepalives_unanswered", "http2: a ping was not answered in time")
            self._connection.lose()
            return True
        self._asked = 0.0
        if self._last_read + interval > now:
            self._connection.set_timeout(self._last_read + interval - now)
        else:
            self._asked = now
            self._frames.ping(b"\0" * 8)
            self._connection.set_timeout(self._shared.limits.keepalive_timeout_seconds)
        return True

    # Calls.

    def _request(self, event: RequestReceived) -> None:
        stream = event.stream_id
        assert stream is not None
        # `reversed` makes the first value of each name win.
        headers = event.headers
        fields: dict[bytes, bytes] = dict(reversed(headers))
        kind = fields.get(b"content-type", b"")
        limits = self._shared.limits
        size = 32 * len(headers)
        for name, value in headers:
            size += len(name) + len(value)
        if is_malformed(headers):
            self._shared.counters.requests_refused += 1
            self._reset(stream, ErrorCodes.PROTOCOL_ERROR)
            self._frames.forget(stream)
        elif size > limits.header_list_bytes_max:
            self._refuse(stream, [(b":status", b"431")])
        elif (
            stream > self._last_stream
            or len(self._connection.calls) >= limits.streams_per_connection_max
        ):
            self._shared.counters.requests_refused += 1
            self._reset(stream, ErrorCodes.REFUSED_STREAM)
            self._frames.forget(stream)
        elif self._connection.serves != Serves.HTTP and grpc.is_grpc(kind):
            self._rpc(stream, fields)
        elif self._connection.serves == Serves.GRPC:
            trailers = grpc.status_trailers(grpc.not_grpc(kind))
            self._refuse(stream, [(b":status", b"415"), RESPONSE[1], *trailers])
        elif size > limits.http_header_bytes_max:
            self._refuse(stream, [(b":status", b"431")])
        else:
            self._http(stream, event, fields)

    def _refuse(self, stream: int, headers: Fields) -> None:
        self._shared.counters.requests_refused += 1
        # `h2` parses ahead of the events it returns: the client may have reset the stream already.
        if self._frames.is_closed(stream):
            self._count_reset()
        else:
            self._frames.send_headers(stream, headers, end_stream=True)
            self._reset(stream, ErrorCodes.NO_ERROR)
        self._frames.forget(stream)

    def _reset(self, stream: int, code: ErrorCodes) -> None:
        if not self._frames.is_closed(stream):
            self._frames.reset_stream(stream, code)

    def _rpc(self, stream: int, fields: dict[bytes, bytes]) -> None:
        http_status = b"400"
        try:
            timeout = None
            if (value := fields.get(b"grpc-timeout")) is not None:
                timeout = grpc.timeout_seconds(value.decode(errors="replace"))
            if (verb := fields[b":method"]) != b"POST":
                http_status = b"405"
                raise StatusError(_not_post(verb))
            http_status = b"200"
            if timeout is not None and timeout <= 0:
                self._shared.counters.deadlines_exceeded += 1
                raise StatusError(errors.CONTEXT_DEADLINE_EXCEEDED)
            method, streaming = self._shared.methods.find(fields[b":path"])
            parser = grpc.MessageParser(
                fields.get(b"grpc-encoding", b""), self._shared.limits.request_bytes_max
            )
        except StatusError as error:
            trailers = grpc.status_trailers(error.status)
            self._refuse(stream, [(b":status", http_status), RESPONSE[1], *trailers])
            return
        now = self._shared.now()
        kind = CallKind.STREAMING if streaming else CallKind.UNARY
        call = EdgeCall(self._connection.number << 32 | stream, kind, method, now)
        call.parser = parser
        for raw, key in self._shared.metadata_keys:
            if (value := fields.get(raw)) is not None:
                if call.metadata is None:
                    call.metadata = {}
                call.metadata[key] = value
        if timeout is not None:
            call.deadline = now + timeout
            self._shared.timers.add(call.deadline, call.number)
        self._connection.open_call(call)
        if streaming:
            detail = (method, call.metadata)
            self._connection.push_event(EdgeEventKind.OPENED, call, detail)

    def _http(self, stream: int, event: RequestReceived, fields: dict[bytes, bytes]) -> None:
        number = self._connection.number << 32 | stream
        call = EdgeCall(number, CallKind.HTTP, 0, self._shared.now())
        call.head_only = fields[b":method"] == b"HEAD"
        wanted = self._shared.http_headers
        headers = wanted.of(event.headers)
        if b":authority" in fields and b"host" not in fields and wanted.name(b"host"):
            headers.insert(0, ("host", fields[b":authority"].decode("latin-1")))
        self._connection.open_call(call)
        detail = (
            self._connection.listener,
            fields[b":method"].decode("latin-1"),
            fields.get(b":path", b"").decode("latin-1"),
            headers,
        )
        self._connection.push_event(EdgeEventKind.HTTP_OPENED, call, detail)

    def _data(self, event: DataReceived) -> None:
        stream, length, data = event.stream_id, event.flow_controlled_length, event.data
        assert stream is not None and length is not None and data is not None
        call = self._connection.calls.get(stream)
        if call is None:
            self._acknowledge(stream, length)
        elif call.kind == CallKind.UNARY:
            self._acknowledge(stream, length)
            if call.payload is None:
                self._unary_data(call, data)
        elif call.kind == CallKind.HTTP:
            self._acknowledge(stream, length - len(data))
            if data:
                self._connection.push_message(call, data, len(data))
        else:
            self._acknowledge(stream, length - len(data))
            self._stream_data(call, data)

    def _unary_data(self, call: EdgeCall, data: bytes) -> None:
        assert call.parser is not None
        call.parser.feed(data)
        self._take_request(call)

    def _take_request(self, call: EdgeCall) -> None:
        assert call.parser is not None
        try:
            taken = call.parser.take(self._connection.may_unpack())
        except StatusError as error:
            self._reject(call, error.status)
            return
        if taken is None:
            self._note_packed(call)
            if self._connection.weigh(call):
                self._turn_call_away(call, ErrorCodes.REFUSED_STREAM)
            return
        # As in grpc-go, the first message is the request; later ones are ignored.
        self._count_message(call, taken[0])
        call.payload = taken[0]
        call.parser = None
        self._connection.weigh(call)
        self._connection.push_request(call)

    def _count_message(self, call: EdgeCall, message: bytes) -> None:
        self._shared.counters.messages_received += 1
        assert call.parser is not None
        if call.parser.is_gzip:
            self._shared.unpacked_bytes += len(message)

    def _note_packed(self, call: EdgeCall) -> None:
        """Record a call whose compressed message waits for room in the queue."""
        assert call.parser is not None
        if call.parser.is_packed:
            self._packed[call.stream] = call
            self._shared.packed.add(self._connection)

    def unpack(self) -> None:
        """Continue with compressed messages that waited for room in the queue."""
        packed, self._packed = self._packed, {}
        self._shared.packed.discard(self._connection)
        for call in packed.values():
            if call.ended or call.parser is None:
                continue
            if call.kind == CallKind.UNARY:
                self._take_request(call)
            else:
                self._take_messages(call)
            if call.half_closed and not call.ended and call.stream not in self._packed:
                self._finish_request(call)

    def _turn_call_away(self, call: EdgeCall, code: ErrorCodes) -> None:
        """Reset a call because too many bytes of incomplete messages are buffered.

        REFUSED_STREAM as `code` lets clients retry, because the call was certainly not processed.
        """
        text = "http2: too much of unfinished messages"
        self._connection.note("partial_messages_refused", text)
        self._shared.counters.requests_refused += 1
        self._reset(call.stream, code)
        self._forget(call, report=True)

    def _stream_data(self, call: EdgeCall, data: bytes) -> None:
        assert call.parser is not None
        call.unacknowledged += len(data)
        call.parser.feed(data)
        self._take_messages(call)

    def _take_messages(self, call: EdgeCall) -> None:
        assert call.parser is not None
        try:
            while (taken := call.parser.take(self._connection.may_unpack())) is not None:
                message, size = taken
                owed = min(size, call.unacknowledged)
                call.unacknowledged -= owed
                call.credit += size - owed
                self._count_message(call, message)
                self._connection.push_message(call, message, size)
        except StatusError as error:
            self._reject(call, error.status)
            return
        self._note_packed(call)
        if self._connection.weigh(call):
            self._turn_call_away(call, ErrorCodes.ENHANCE_YOUR_CALM)
            return
        self._make_room(call)

    def _make_room(self, call: EdgeCall) -> None:
        """Enlarge the client's window for a message that is larger than the rest of it."""
        if call.parser is None or call.queued_messages or not call.unacknowledged:
            return
        if call.parser.is_packed:
            return
        if call.parser.missing_bytes() > self._frames.remote_flow_control_window(call.stream):
            self._acknowledge(call.stream, call.unacknowledged)
            call.unacknowledged = 0

    def polled(self, call: EdgeCall, wire_bytes: int) -> None:
        """Return a polled message's bytes to the client's window, unless the call is paused."""
        if call.is_paused:
            call.unacknowledged += wire_bytes
            return
        early = min(call.credit, wire_bytes)
        call.credit -= early
        self._acknowledge(call.stream, wire_bytes - early)
        if not call.ended:
            self._make_room(call)

    def _acknowledge(self, stream: int, size: int) -> None:
        if size:
            self._frames.acknowledge_received_data(size, stream)

    def _stream_ended(self, event: StreamEnded) -> None:
        call = self._connection.calls.get(event.stream_id or 0)
        if call is None:
            return
        if call.stream in self._packed:
            call.half_closed = True
        else:
            self._finish_request(call)

    def _finish_request(self, call: EdgeCall) -> None:
        """Handle the client's half-close, after all messages before it."""
        if call.kind == CallKind.UNARY:
            if call.payload is None:
                assert call.parser is not None
                cut = call.parser.partial_bytes > 0
                self._reject(call, grpc.CUT_MESSAGE if cut else grpc.NO_MESSAGE)
        elif call.parser is not None and call.parser.partial_bytes:
            self._reject(call, grpc.CUT_STREAM_MESSAGE)
        else:
            self._connection.push_event(EdgeEventKind.HALF_CLOSED, call)

    def _reject(self, call: EdgeCall, status: Status) -> None:
        """Answer a call that broke the rules; report ENDED if the loop has polled the call."""
        self._shared.counters.requests_refused += 1
        self._cut_short(call, grpc.status_trailers(status))

    def pause(self, call: EdgeCall) -> None:
        """Stop enlarging the window of a plain HTTP request."""
        call.is_paused = call.kind == CallKind.HTTP

    def resume(self, call: EdgeCall) -> None:
        """Restore the window of a paused request."""
        if call.is_paused:
            call.is_paused = False
            self._acknowledge(call.stream, call.unacknowledged)
            call.unacknowledged = 0

    def expire(self, call: EdgeCall) -> None:
        """Answer DEADLINE_EXCEEDED, or reset a call whose answer has not left completely.

        Part of a message may have left, and clients would report trailers behind it as a broken
        message. They report a reset after their deadline as the deadline.
        """
        if not call.outgoing:
            self._cut_short(call, grpc.status_trailers(errors.CONTEXT_DEADLINE_EXCEEDED))
            return
        self._connection.unblock(call, len(call.outgoing))
        call.outgoing.clear()
        self._reset(call.stream, ErrorCodes.CANCEL)
        self._forget(call, report=True)

    def _cut_short(self, call: EdgeCall, trailers: Fields) -> None:
        self._connection.unblock(call, len(call.outgoing))
        call.outgoing.clear()
        call.ending = trailers
        if self._frames.is_closed(call.stream):
            self._forget(call, report=True)
        else:
            self._end(call, report=True)

    def _stream_reset(self, event: StreamReset) -> None:
        call = self._connection.calls.get(event.stream_id or 0)
        if call is not None:
            young = self._shared.now() - call.opened < RESET_SECONDS
            self._forget(call, report=True)
            if event.remote_reset and young and not call.started:
                self._count_reset()
        elif event.stream_id is not None:
            self._frames.forget(event.stream_id)

    def _count_reset(self) -> None:
        now = self._shared.now()
        if now - self._reset_since > RESET_SECONDS:
            self._reset_since = now
            self._reset_debt = 0
        self._reset_debt += 1
        if self._reset_debt > self._shared.limits.resets_per_second_max:
            self._ban("resets_excessive", "too_many_resets")

    def _window_updated(self, event: WindowUpdated) -> None:
        # Calls that wait only for the connection's own window are still in `_sendable`.
        call = self._connection.calls.get(event.stream_id or 0)
        if call is not None and call.outgoing:
            self._sendable[call.stream] = call

    def _settings_changed(self, event: RemoteSettingsChanged) -> None:
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            for call in self._connection.calls.values():
                if call.outgoing:
                    self._sendable[call.stream] = call

    def _ping_answered(self, event: PingAckReceived) -> None:
        """Send the final GOAWAY, once the client has confirmed the first."""
        if event.ping_data == DRAIN_PING and self.is_caller:
            self.is_caller = False
            self._last_stream = self._frames.highest_inbound_stream_id
            self._go_away()
            self._close_if_done()

    _HANDLERS: ClassVar[dict[type[Event], Callable[..., None]]] = {
        PingAckReceived: _ping_answered,
        PingReceived: _ping,
        RequestReceived: _request,
        DataReceived: _data,
        StreamEnded: _stream_ended,
        StreamReset: _stream_reset,
        WindowUpdated: _window_updated,
        RemoteSettingsChanged: _settings_changed,
    }

    # Output.

    def start(self, call: EdgeCall, metadata: Headers) -> None:
        """Send an RPC's headers."""
        if not call.started and call.kind != CallKind.HTTP:
            call.started = True
            self._frames.send_headers(call.stream, RESPONSE + encoded(metadata))

    def send(self, call: EdgeCall, data: bytes) -> None:
        """Queue a message or a piece of a body."""
        if call.kind == CallKind.HTTP:
            if not call.started or call.head_only:
                return
        else:
            self.start(call, ())
            self._shared.counters.messages_sent += 1
            data = frame_message(data)
        if data:
            call.outgoing += data
            self._connection.block(call, len(data))
            self._sendable[call.stream] = call
            if len(call.outgoing) >= self._shared.limits.stream_writable_bytes:
                call.writable_owed = True

    def finish(self, call: EdgeCall, status: Status, trailers: Headers) -> None:
        """End a call after its outgoing bytes."""
        call.finished = True
        if call.kind != CallKind.HTTP:
            call.ending = grpc.status_trailers(status) + encoded(trailers)
        elif status.code == Code.OK and call.started:
            call.ending = encoded(trailers)
        else:
            self._reset(call.stream, ErrorCodes.INTERNAL_ERROR)
            self._forget(call, report=False)
            return
        if not call.outgoing:
            self._end(call, report=False)

    def respond(self, call: EdgeCall, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request."""
        if call.kind != CallKind.HTTP or call.started:
            return
        fields = [(b":status", b"%d" % status)]
        fields += [pair for pair in encoded(headers) if pair[0] not in HOP_BY_HOP]
        call.head_only = call.head_only or status in (204, 304)
        if body is None:
            self._frames.send_headers(call.stream, fields)
            call.started = True
            return
        if status not in (204, 304) and all(name != b"content-length" for name, _ in fields):
            fields.append((b"content-length", b"%d" % len(body)))
        call.finished = call.started = True
        call.ending = []
        if body and not call.head_only:
            self._frames.send_headers(call.stream, fields)
            self.send(call, body)
        else:
            self._frames.send_headers(call.stream, fields, end_stream=True)
            self._close(call, report=False)

    def fill(self) -> None:
        """Move bytes that the windows allow into `out`, one frame of each call in turn."""
        connection, frames, sendable = self._connection, self._frames, self._sendable
        budget = FILL_BYTES - len(connection.out)
        while sendable and budget > 0 and frames.outbound_flow_control_window > 0:
            stream = next(iter(sendable))
            budget -= self._send_frame(sendable.pop(stream))
        connection.out += frames.data_to_send()

    def _send_frame(self, call: EdgeCall) -> int:
        frames, outgoing = self._frames, call.outgoing
        size = min(
            len(outgoing),
            frames.local_flow_control_window(call.stream),
            frames.max_outbound_frame_size,
            FRAME_BYTES_MAX,
        )
        if size <= 0:
            return 0
        data = bytes(outgoing[:size])
        del outgoing[:size]
        self._connection.unblock(call, size)
        if outgoing:
            frames.send_data(call.stream, data)
            self._sendable[call.stream] = call
        elif call.ending is None or call.ending:
            frames.send_data(call.stream, data)
            if call.ending is not None:
                self._end(call, report=False)
        else:
            frames.send_data(call.stream, data, end_stream=True)
            self._close(call, report=False)
        if call.writable_owed and len(outgoing) < self._shared.limits.stream_writable_bytes:
            call.writable_owed = False
            if not call.finished:
                self._connection.push_event(EdgeEventKind.WRITABLE, call)
        return size

    def _end(self, call: EdgeCall, report: bool) -> None:
        """Send the trailers, or END_STREAM after a body without trailers."""
        assert call.ending is not None
        ending = call.ending
        if call.kind != CallKind.HTTP and not call.started:
            ending = RESPONSE + ending
        if ending:
            self._frames.send_headers(call.stream, ending, end_stream=True)
        else:
            self._frames.end_stream(call.stream)
        self._close(call, report)

    def _close(self, call: EdgeCall, report: bool) -> None:
        """Forget a call after its last frame."""
        self._reset_debt = max(0, self._reset_debt - 1)
        self._reset(call.stream, ErrorCodes.NO_ERROR)
        self._forget(call, report)

    def _forget(self, call: EdgeCall, report: bool) -> None:
        unacknowledged, call.unacknowledged = call.unacknowledged, 0
        self._connection.end_call(call, report)
        self._sendable.pop(call.stream, None)
        self._packed.pop(call.stream, None)
        self._frames.forget(call.stream)
        self._acknowledge(call.stream, unacknowledged)
        self._close_if_done()

    def pending_bytes(self, call: EdgeCall) -> int:
        """Return the number of bytes that wait for the windows or the socket."""
        return len(call.outgoing)

    def drain(self) -> None:
        """Ask the client to open no more calls; calls already sent are still served."""
        self._go_away()
        self._frames.ping(DRAIN_PING)

    def _go_away(self) -> None:
        # `h2`'s own GOAWAY would end the calls in flight.
        goaway = GoAwayFrame(0, last_stream_id=self._last_stream, error_code=ErrorCodes.NO_ERROR)
        self._connection.out += self._frames.data_to_send() + goaway.serialize()

    def _close_if_done(self) -> None:
        if not self.is_caller and not self._connection.calls:
            self.fill()
            self._connection.close_when_flushed()

    def close(self) -> None:
        """Break references that would be cycles."""
        self._frames.close()
        self._sendable.clear()
        self._packed.clear()


def _not_post(method: bytes) -> Status:
    name = errors.quoted(method.decode(errors="replace"))
    return Status(
        Code.INTERNAL, f"Received a HEADERS frame with :method {name} which should be POST"
    )
