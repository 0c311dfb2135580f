"""One client's socket: reading, writing, back-pressure and closing.

A connection leaves its protocol to a `HttpProtocol`, HTTP/1.1 or HTTP/2, chosen by the first bytes.
Rules of this module:

- Bytes to be written gather in `out`; `flush` writes them once per batch.
- Bytes that wait for the client or for `poll` are counted, per connection and in total. Above the
  limits the connection stops reading its socket. Incomplete messages do not count: polling cannot
  take them, so a connection that stopped reading because of one would never continue.
- A connection that ends breaks its reference cycles, which would keep its memory.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from kvorum.api.errors import Status
from kvorum.network.edge.interface import EdgeEventKind, Headers, Serves
from kvorum.network.edge.pure.call import CallKind, EdgeCall
from kvorum.network.edge.pure.listener import Listener
from kvorum.network.edge.pure.room import UnreadBytes
from kvorum.network.edge.pure.shared import ENTRY_BYTES, EdgeState, event_bytes, metadata_bytes
from kvorum.network.edge.pure.tls import HANDSHAKE, NO_TLS, TlsError, TlsSession
from kvorum.storage.platform.readiness import READABLE, WRITABLE

READ_BYTES = 64 * 1024
LINGER_SECONDS = 1.0
"""Time for a client to receive the last bytes after our FIN. Closing a socket that has unread
input would make the system discard them."""

UNPACKED_BYTES_MAX = 1024 * 1024
"""Bytes of messages decompressed per `poll`; the last message may exceed it."""

PREFACE = b"PRI * HTTP/2.0"
NO_HTTP2 = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The answer of Go's server to HTTP/2 where it speaks only HTTP/1.1."""


class HttpProtocol(ABC):
    """The protocol of one connection, HTTP/1.1 or HTTP/2.

    Callers use the methods that answer a call only while the call is open and not finished.
    """

    received_bytes_max: int
    """Bytes queued for `poll` above which the connection stops reading its socket."""
    ahead_bytes: int
    """Bytes read from the socket but not parsed yet."""
    is_paused: bool
    """Whether the loop has paused reading."""
    is_caller: bool
    """Whether the client may open RPCs: it has not yet confirmed a GOAWAY."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""

    @abstractmethod
    def polled(self, call: EdgeCall, wire_bytes: int) -> None:
        """Record that the loop has taken a message."""

    @abstractmethod
    def unpack(self) -> None:
        """Continue with compressed messages that waited for room in the queue."""

    @abstractmethod
    def fill(self) -> None:
        """Move bytes that may be sent now into the connection's `out`."""

    @abstractmethod
    def start(self, call: EdgeCall, metadata: Headers) -> None:
        """Send an RPC's initial metadata."""

    @abstractmethod
    def send(self, call: EdgeCall, data: bytes) -> None:
        """Send a message or a piece of a body."""

    @abstractmethod
    def finish(self, call: EdgeCall, status: Status, trailers: Headers) -> None:
        """End the call after all queued data."""

    @abstractmethod
    def respond(self, call: EdgeCall, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request."""

    @abstractmethod
    def pause(self, call: EdgeCall) -> None:
        """Stop taking a request's body."""

    @abstractmethod
    def resume(self, call: EdgeCall) -> None:
        """Resume taking a request's body."""

    @abstractmethod
    def expire(self, call: EdgeCall) -> None:
        """End a call whose deadline has passed."""

    @abstractmethod
    def pending_bytes(self, call: EdgeCall) -> int:
        """Return the number of queued bytes that have not left."""

    @abstractmethod
    def time_out(self) -> bool:
        """Handle the connection's timeout; return False if the connection must be closed now."""

    @abstractmethod
    def turn_away(self) -> None:
        """End the connection of a client that sends requests without reading answers."""

    @abstractmethod
    def drain(self) -> None:
        """Ask the client to open no more calls."""

    @abstractmethod
    def close(self) -> None:
        """Break references that would be cycles."""


class EdgeConnection:
    """A client's socket, with its open calls and queues."""

    __slots__ = (
        "_farewell",
        "_first",
        "_interest",
        "_out_counted",
        "account",
        "calls",
        "closing",
        "dialect",
        "events",
        "held",
        "http1_only",
        "http_calls",
        "hung_up",
        "kind",
        "listener",
        "number",
        "out",
        "partial_bytes",
        "peer",
        "received_bytes",
        "requests",
        "ringed_events",
        "ringed_requests",
        "serves",
        "shared",
        "socket",
        "timeout",
        "tls",
        "tls_offered",
    )

    def __init__(
        self,
        shared: EdgeState,
        number: int,
        sock: socket.socket,
        peer: str,
        listener: Listener,
    ) -> None:
        self.shared = shared
        self.number = number
        self.socket = sock
        self.peer = peer
        self.listener = listener.number
        self.kind = listener.kind
        self.http1_only = listener.http1_only
        self.serves = listener.serves
        self.tls_offered = listener.tls
        """The listener's TLS, until the client's first byte shows whether it uses TLS."""
        self.tls: TlsSession | None = None
        self._farewell = False
        self.dialect: HttpProtocol | None = None
        self._first = b""
        self.calls: dict[int, EdgeCall] = {}

        self.requests: deque[EdgeCall] = deque()
        self.events: deque[tuple[EdgeEventKind, EdgeCall, Any, int]] = deque()
        """Tuples of kind, call, detail, and a message's size on the wire."""
        self.ringed_requests = False
        self.ringed_events = False
        self.received_bytes = 0
        """Bytes in `requests` and `events`."""

        self.out = bytearray()
        self._out_counted = 0
        self.partial_bytes = 0
        """Bytes of incomplete messages."""
        self.http_calls = 0
        """HTTP requests that the loop has polled but not finished."""
        self.account = UnreadBytes()
        """Bytes that the client has not read. The edge still reads from such a client, because its
        next frame may open a window, but hands out none of its calls that need more answers."""
        self.closing = False
        self.held = False
        self.hung_up = False
        self.timeout = 0.0
        if listener.tls is not None:
            self.set_timeout(shared.limits.handshake_seconds_max)
        else:
            self._await_request()
        self._interest = READABLE
        shared.poller.register(sock.fileno(), self._interest)

    # The socket.

    def read(self) -> None:
        """Read from the socket once, process the bytes, and flush."""
        if not self._may_read():
            if self.is_clogged() and self.dialect is not None:
                # The connection is deadlocked: the client's window updates are behind its
                # requests, which cannot be read.
                self.dialect.turn_away()
                self.flush()
                return
            self.held = True
            self.shared.held.add(self)
            self._watch()
            return
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.lose()
            return
        if not data:
            self._hang_up()
            return
        self.shared.counters.bytes_read += len(data)
        if self.closing:
            return
        if self.tls is not None or self.tls_offered is not None:
            decrypted = self._decrypt(data)
            if not decrypted:
                self.flush()
                return
            data = decrypted
        if self.dialect is None:
            self._choose_dialect(data)
        else:
            self.dialect.receive(data)
        self.flush()

    def _decrypt(self, data: bytes) -> bytes:
        """Return the decrypted bytes, or b"" during the handshake and on failure."""
        if self.tls_offered is not None:
            offered, self.tls_offered = self.tls_offered, None
            if data[0] != HANDSHAKE:
                if not offered.settings.plain_too:
                    self.note("tls_handshakes_failed", NO_TLS)
                    self.close_when_flushed()
                    return b""
                self._await_request()
                return data
            self.tls, failure = offered.session()
            if failure:
                self.note("tls_reloads_failed", failure)
        assert self.tls is not None
        was_ready = self.tls.is_ready
        try:
            decrypted = self.tls.receive(data)
        except TlsError as error:
            if not was_ready:
                self.note("tls_handshakes_failed", str(error))
            self.close_when_flushed()
            return b""
        if self.tls.is_ready and not was_ready:
            self.shared.counters.tls_handshakes += 1
            self._await_request()
        if decrypted is None:
            self._hang_up()
            return b""
        return decrypted

    def flush(self) -> None:
        """Write as many bytes as the client's windows and the socket accept."""
        out = self.out
        while True:
            if self.dialect is not None and not self.closing:
                self.dialect.fill()
            if self.tls is not None:
                if not self.tls.wire:
                    self.tls.encrypt(out)
                wire = self.tls.wire
            else:
                wire = out
            if not wire:
                break
            try:
                written = self.socket.send(wire)
            except BlockingIOError:
                break
            except OSError:
                self.lose()
                return
            self.shared.counters.bytes_written += written
            del wire[:written]
            if wire:
                break
        if self.socket.fileno() < 0:
            return
        self._count_out(len(out))
        if self.closing and not out and self._say_goodbye():
            self._linger()
        self._watch()

    def close_when_flushed(self) -> None:
        """Ignore further input from the client, and close the socket once `out` has left."""
        if not self.closing:
            self.closing = True
            self.end_calls()
            self.set_timeout(0)

    def _say_goodbye(self) -> bool:
        """Send TLS's close_notify; return whether all bytes have left."""
        if self.tls is None:
            return True
        if not self._farewell:
            self._farewell = True
            self.tls.say_goodbye()
            try:
                del self.tls.wire[: self.socket.send(self.tls.wire)]
            except BlockingIOError:
                # The bytes left in `wire` may include the end of an answer; `flush` sends them.
                pass
            except OSError:
                self.tls.wire.clear()
        return not self.tls.wire

    def note(self, name: str, text: str) -> None:
        """Record an incident: the edge refused or delayed this client."""
        self.shared.note(name, self.listener, self.peer, text)

    def time_out(self) -> None:
        """Close a connection that has taken too long."""
        if self.tls_offered is not None or (self.tls is not None and not self.tls.is_ready):
            self.note("tls_handshakes_timed_out", "tls: the handshake was not finished in time")
        elif not self.closing:
            if self.dialect is not None and self.dialect.time_out():
                self.flush()
                return
            if not self.closing:
                self.note("headers_timed_out", "no request came in time")
        self.lose()

    def lose(self) -> None:
        """Close the socket and end its calls."""
        if self.socket.fileno() < 0:
            return
        self.closing = True
        self.end_calls()
        for call in self.requests:
            self.shared.release(self, call.request_bytes)
        self.requests.clear()
        self._count_out(0)
        self.out.clear()
        self.held = False
        self.shared.forget(self)
        self.ring()
        self.socket.close()
        if self.dialect is not None:
            self.dialect.close()
            self.dialect = None

    def abort(self) -> None:
        """Close with a TCP reset, so that the client does not consider the answer complete."""
        if self.socket.fileno() >= 0:
            at_once = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.lose()

    def release(self) -> None:
        """Resume reading if the limits allow it."""
        if self._may_read():
            self.held = False
            self.shared.held.discard(self)
            self._watch()

    def set_timeout(self, seconds: float) -> None:
        """Close the connection after this time; 0 cancels the timeout."""
        self.timeout = self.shared.now() + seconds if seconds else 0.0
        if seconds:
            self.shared.timers.add(self.timeout, self.number << 32)

    def _await_request(self) -> None:
        limits = self.shared.limits
        self.set_timeout(
            limits.http1_idle_seconds_max if self.http1_only else limits.header_read_seconds_max
        )

    def _count_out(self, size: int) -> None:
        """Count the bytes in `out` as answers that the client has not read."""
        more = size - self._out_counted
        self._out_counted = size
        if more >= 0:
            self.shared.room.give(self.account, more, 0)
        else:
            self.shared.room.take(self.account, -more, 0)

    def _may_read(self) -> bool:
        waiting = self.received_bytes
        if self.dialect is not None:
            if self.dialect.is_paused:
                return False
            if waiting + self.dialect.ahead_bytes > self.dialect.received_bytes_max:
                return False
            waiting += self.dialect.ahead_bytes
        return waiting + len(self.out) <= self.shared.queued_bytes_max()

    def has_queue_room(self) -> bool:
        """Return whether the connection may queue more bytes for `poll`."""
        return self.received_bytes <= self.shared.queued_bytes_max()

    def may_unpack(self) -> bool:
        """Return whether a compressed message may be decompressed now."""
        return self.shared.unpacked_bytes < UNPACKED_BYTES_MAX and self.has_queue_room()

    def _watch(self) -> None:
        reading = 0 if self.held or self.hung_up else READABLE
        waiting = self.out or (self.tls is not None and self.tls.wire)
        interest = reading | (WRITABLE if waiting else 0)
        if interest != self._interest and self.socket.fileno() >= 0:
            self._interest = interest
            self.shared.poller.modify(self.socket.fileno(), interest)

    def _choose_dialect(self, data: bytes) -> None:
        data = self._first + data
        self._first = data
        if PREFACE.startswith(data):
            return
        self._first = b""
        if data[0] == HANDSHAKE and self.tls is None:
            self.close_when_flushed()
            return
        is_http2 = data.startswith(PREFACE)
        if is_http2 and self.http1_only:
            self.shared.counters.requests_refused += 1
            self.out += NO_HTTP2
            self.close_when_flushed()
            return
        # A listener for gRPC only treats HTTP/1.1 as HTTP/2 with a wrong preface, as grpc-go does.
        is_http2 = is_http2 or self.serves == Serves.GRPC
        self.dialect = (self.shared.http2 if is_http2 else self.shared.http1)(self)
        self.dialect.receive(data)

    def _hang_up(self) -> None:
        if self.tls is not None and not self.tls.is_ready and not self.closing:
            self.note("tls_handshakes_failed", "EOF")
        # The client may have closed only its sending half, and still read answers.
        self.hung_up = True
        self.close_when_flushed()
        self.flush()

    def _linger(self) -> None:
        if self.hung_up:
            self.lose()
        elif not self.timeout:
            self.set_timeout(LINGER_SECONDS)
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.lose()

    # Calls.

    def open_call(self, call: EdgeCall) -> None:
        """Register a new call."""
        self.calls[call.stream] = call
        self.shared.counters.calls_received += 1
        self.shared.counters.calls_open += 1

    def end_call(self, call: EdgeCall, report: bool) -> None:
        """Forget a call; with `report`, queue ENDED if the loop needs it."""
        if call.ended:
            return
        call.ended = True
        del self.calls[call.stream]
        self.shared.counters.calls_open -= 1
        self.unblock(call, len(call.outgoing))
        call.outgoing.clear()
        call.parser = None
        self.weigh(call)
        if call.kind == CallKind.HTTP and call.announced:
            self.http_calls -= 1
        wanted = call.kind != CallKind.UNARY or call.waiting
        if report and wanted and call.announced and not call.finished:
            self.push_event(EdgeEventKind.ENDED, call)

    def may_call(self) -> bool:
        """Return whether the client may open RPCs."""
        return self.dialect is not None and self.dialect.is_caller and not self.closing

    def end_calls(self) -> None:
        """End all calls because the client is gone."""
        for call in list(self.calls.values()):
            self.end_call(call, report=True)

    def push_request(self, call: EdgeCall) -> None:
        """Queue a complete unary request."""
        assert call.payload is not None
        self.requests.append(call)
        call.request_bytes = len(call.payload) + metadata_bytes(call.metadata) + ENTRY_BYTES
        self.shared.hold(self, call.request_bytes)
        self.ring()

    def ring(self) -> None:
        """Enter the round-robin queues, or park while the next item lacks room for its answer."""
        if self.ringed_requests and self.ringed_events:
            return
        shared = self.shared
        has_room = self.has_room_for_call()
        if self.requests and not self.ringed_requests:
            if has_room:
                self.ringed_requests = True
                shared.request_ring.append(self)
            else:
                shared.parked.add(self)
        if self.events and not self.ringed_events:
            if has_room or self.events[0][0] != EdgeEventKind.HTTP_OPENED:
                self.ringed_events = True
                shared.event_ring.append(self)
            else:
                shared.parked.add(self)

    def has_room_for_call(self) -> bool:
        """Return whether `poll` may return a call of this connection."""
        # Calls of a closing connection pass, so that the loop receives their ENDED events.
        return self.closing or (
            self.http_calls < self.shared.limits.http_calls_per_connection_max
            and self.shared.room.has_room(self.account)
        )

    def is_clogged(self) -> bool:
        """Return whether the client has more unread answers than it may."""
        return self.account.answers > self.shared.limits.connection_unread_bytes_max

    def block(self, call: EdgeCall, size: int) -> None:
        """Count bytes queued for the client."""
        if call.kind == CallKind.STREAMING:
            self.shared.room.give(self.account, 0, size)
            return
        was_clogged = self.is_clogged()
        self.shared.room.give(self.account, size, 0)
        if self.is_clogged() and not was_clogged:
            self.note("calls_delayed", "http2: the client does not read its answers")

    def unblock(self, call: EdgeCall, size: int) -> None:
        """Count bytes that have left."""
        if call.kind == CallKind.STREAMING:
            self.shared.room.take(self.account, 0, size)
        else:
            self.shared.room.take(self.account, size, 0)

    def weigh(self, call: EdgeCall) -> bool:
        """Update the count of a call's incomplete message; return whether to refuse the call."""
        size = 0 if call.parser is None else call.parser.partial_bytes
        more = size - call.partial_bytes
        call.partial_bytes = size
        self.partial_bytes += more
        self.shared.partial_bytes += more
        limits = self.shared.limits
        return more > 0 and (
            self.partial_bytes > limits.connection_partial_bytes_max
            or (
                self.shared.partial_bytes > limits.queued_bytes_max
                and self.partial_bytes > self.shared.share_of(limits.queued_bytes_max)
            )
        )

    def push_message(self, call: EdgeCall, data: bytes, wire_bytes: int) -> None:
        """Queue a message or a piece of a body."""
        call.queued_messages += 1
        self.push_event(EdgeEventKind.MESSAGE, call, data, wire_bytes)

    def push_event(
        self, kind: EdgeEventKind, call: EdgeCall, detail: object = None, wire_bytes: int = 0
    ) -> None:
        """Queue an event."""
        self.events.append((kind, call, detail, wire_bytes))
        self.shared.hold(self, event_bytes(kind, detail))
        self.ring()
