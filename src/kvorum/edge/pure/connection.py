"""One client's socket: reading, writing, holding back, closing.

Its protocol is left to a dialect, HTTP/1.1 or HTTP/2, chosen by the first bytes. Rules of this
module:

- Bytes to be written gather in `out` and are written by `flush`, once per batch.
- Bytes that wait, for the client or for `poll`, are counted, per connection and in total. Above
  the limits the socket is not read. An incomplete message is not counted: polling cannot take it,
  so a connection held back for it would never move again.
- A connection that ends breaks its references, so that no cycle keeps its memory.
"""

import select
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from kvorum.api.errors import Status
from kvorum.edge.interface import EventKind, Headers, Serves
from kvorum.edge.pure.call import Call, CallKind
from kvorum.edge.pure.listener import Listener
from kvorum.edge.pure.room import Account
from kvorum.edge.pure.shared import ENTRY_BYTES, Shared, event_bytes, metadata_bytes
from kvorum.edge.pure.tls import HANDSHAKE, NO_TLS, Session, TlsError

READ_BYTES = 64 * 1024
LINGER_SECONDS = 1.0
"""How long a client may take to receive the last bytes: closing a socket with unread bytes in it
would make the system discard them."""

UNPACKED_BYTES_MAX = 1024 * 1024
"""How much of compressed messages is unpacked at a time; the last one may exceed it."""

PREFACE = b"PRI * HTTP/2.0"
NO_HTTP2 = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""How Go's server answers HTTP/2 where it speaks only HTTP/1.1."""


class Dialect(ABC):
    """HTTP/1.1 or HTTP/2 on one connection.

    The methods that answer a call are used only while the call is open and not finished.
    """

    received_bytes_max: int
    """Above so many bytes that wait for `poll`, the socket is not read."""
    ahead_bytes: int
    """Bytes read but not looked at yet."""
    is_paused: bool
    """Whether the loop wants nothing to be read for now."""
    is_caller: bool
    """Whether the client may open RPCs: it has not yet confirmed the request to open no more."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Take what the client sent."""

    @abstractmethod
    def polled(self, call: Call, wire_bytes: int) -> None:
        """Note that the loop has taken a message."""

    @abstractmethod
    def unpack(self) -> None:
        """Go on with messages for which there was no room."""

    @abstractmethod
    def fill(self) -> None:
        """Move what may be sent now into the connection's `out`."""

    @abstractmethod
    def start(self, call: Call, metadata: Headers) -> None:
        """Send an RPC's initial metadata."""

    @abstractmethod
    def send(self, call: Call, data: bytes) -> None:
        """Send a message or a piece of a body."""

    @abstractmethod
    def finish(self, call: Call, status: Status, trailers: Headers) -> None:
        """End the call after what was sent."""

    @abstractmethod
    def respond(self, call: Call, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request."""

    @abstractmethod
    def pause(self, call: Call) -> None:
        """Take no more of a request's body."""

    @abstractmethod
    def resume(self, call: Call) -> None:
        """Take a request's body again."""

    @abstractmethod
    def expire(self, call: Call) -> None:
        """End a call whose deadline has passed."""

    @abstractmethod
    def pending_bytes(self, call: Call) -> int:
        """Return how much of what was sent is still here."""

    @abstractmethod
    def time_out(self) -> bool:
        """Handle the end of a time limit; return whether the connection goes on all the same."""

    @abstractmethod
    def turn_away(self) -> None:
        """End the connection of a client that sends requests and does not read answers."""

    @abstractmethod
    def drain(self) -> None:
        """Tell the client to open no more calls."""

    @abstractmethod
    def close(self) -> None:
        """Break references that would be cycles."""


class Connection:
    """A socket and what waits on it."""

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
        shared: Shared,
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
        """The listener's TLS, until the client's first byte has decided about it."""
        self.tls: Session | None = None
        self._farewell = False
        self.dialect: Dialect | None = None
        self._first = b""
        self.calls: dict[int, Call] = {}

        self.requests: deque[Call] = deque()
        self.events: deque[tuple[EventKind, Call, Any, int]] = deque()
        """What happened, to which call, the detail, and a message's size on the wire."""
        self.ringed_requests = False
        self.ringed_events = False
        self.received_bytes = 0
        """Bytes in `requests` and `events`."""

        self.out = bytearray()
        self._out_counted = 0
        self.partial_bytes = 0
        """Bytes of incomplete messages."""
        self.http_calls = 0
        """HTTP requests that the loop has and that are not finished."""
        self.account = Account()
        """Bytes that the client does not take. Reading goes on all the same: a frame that opens a
        window has to be read. But calls that need more answers are not handed out."""
        self.closing = False
        self.held = False
        self.hung_up = False
        self.timeout = 0.0
        if listener.tls is not None:
            self.set_timeout(shared.limits.handshake_seconds_max)
        else:
            self._await_request()
        self._interest = select.EPOLLIN
        shared.epoll.register(sock.fileno(), self._interest)

    # The socket.

    def read(self) -> None:
        """Read once, and answer what can be answered at once."""
        if not self._may_read():
            if self.is_clogged() and self.dialect is not None:
                # It must be ended: what opens its windows is behind its requests, and would not be
                # read.
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
        """Return the bytes for the dialect; there are none during the handshake."""
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
        """Write what can be written."""
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
        """Take nothing more from this client, and close when it has received what is in `out`."""
        if not self.closing:
            self.closing = True
            self.end_calls()
            self.set_timeout(0)

    def _say_goodbye(self) -> bool:
        """End TLS properly; returns whether everything has left."""
        if self.tls is None:
            return True
        if not self._farewell:
            self._farewell = True
            self.tls.say_goodbye()
            try:
                del self.tls.wire[: self.socket.send(self.tls.wire)]
            except BlockingIOError:
                # The end of an answer may be among it, and leaves when there is room.
                pass
            except OSError:
                self.tls.wire.clear()
        return not self.tls.wire

    def note(self, name: str, text: str) -> None:
        """Remember that this client was refused or held back."""
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
        """Close so that the client does not take what it got for complete."""
        if self.socket.fileno() >= 0:
            at_once = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.lose()

    def release(self) -> None:
        """Read again after having been held back."""
        if self._may_read():
            self.held = False
            self.shared.held.discard(self)
            self._watch()

    def set_timeout(self, seconds: float) -> None:
        """Close the connection at this time; 0 cancels that."""
        self.timeout = self.shared.now() + seconds if seconds else 0.0
        if seconds:
            self.shared.timers.add(self.timeout, self.number << 32)

    def _await_request(self) -> None:
        limits = self.shared.limits
        self.set_timeout(
            limits.http1_idle_seconds_max if self.http1_only else limits.header_read_seconds_max
        )

    def _count_out(self, size: int) -> None:
        """Count what the socket does not accept as an answer that is not taken."""
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
        """Return whether more may wait for `poll`."""
        return self.received_bytes <= self.shared.queued_bytes_max()

    def may_unpack(self) -> bool:
        """Return whether a compressed message may be unpacked now."""
        return self.shared.unpacked_bytes < UNPACKED_BYTES_MAX and self.has_queue_room()

    def _watch(self) -> None:
        reading = 0 if self.held or self.hung_up else select.EPOLLIN
        waiting = self.out or (self.tls is not None and self.tls.wire)
        interest = reading | (select.EPOLLOUT if waiting else 0)
        if interest != self._interest and self.socket.fileno() >= 0:
            self._interest = interest
            self.shared.epoll.modify(self.socket.fileno(), interest)

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
        # Where only gRPC is served, HTTP/1.1 is HTTP/2 with a wrong preface, as it is to grpc-go.
        is_http2 = is_http2 or self.serves == Serves.GRPC
        self.dialect = (self.shared.http2 if is_http2 else self.shared.http1)(self)
        self.dialect.receive(data)

    def _hang_up(self) -> None:
        if self.tls is not None and not self.tls.is_ready and not self.closing:
            self.note("tls_handshakes_failed", "EOF")
        # It may have closed only its sending half, and still read answers.
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

    def open_call(self, call: Call) -> None:
        """Begin a call."""
        self.calls[call.stream] = call
        self.shared.counters.calls_received += 1
        self.shared.counters.calls_open += 1

    def end_call(self, call: Call, report: bool) -> None:
        """Forget a call; `report` tells the loop where it wants to know."""
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
            self.push_event(EventKind.ENDED, call)

    def may_call(self) -> bool:
        """Return whether the client may open RPCs."""
        return self.dialect is not None and self.dialect.is_caller and not self.closing

    def end_calls(self) -> None:
        """End all calls, as the client is gone."""
        for call in list(self.calls.values()):
            self.end_call(call, report=True)

    def push_request(self, call: Call) -> None:
        """Queue a complete unary request."""
        assert call.payload is not None
        self.requests.append(call)
        call.request_bytes = len(call.payload) + metadata_bytes(call.metadata) + ENTRY_BYTES
        self.shared.hold(self, call.request_bytes)
        self.ring()

    def ring(self) -> None:
        """Queue for a turn, or park if the next item needs room for an answer."""
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
            if has_room or self.events[0][0] != EventKind.HTTP_OPENED:
                self.ringed_events = True
                shared.event_ring.append(self)
            else:
                shared.parked.add(self)

    def has_room_for_call(self) -> bool:
        """Return whether an item that needs an answer may be handed out."""
        # The loop has to be told that a closing connection has ended.
        return self.closing or (
            self.http_calls < self.shared.limits.http_calls_per_connection_max
            and self.shared.room.has_room(self.account)
        )

    def is_clogged(self) -> bool:
        """Return whether the client lets its answers pile up here."""
        return self.account.answers > self.shared.limits.connection_unread_bytes_max

    def block(self, call: Call, size: int) -> None:
        """Count bytes that the client is to take."""
        if call.kind == CallKind.STREAMING:
            self.shared.room.give(self.account, 0, size)
            return
        was_clogged = self.is_clogged()
        self.shared.room.give(self.account, size, 0)
        if self.is_clogged() and not was_clogged:
            self.note("calls_delayed", "http2: the client does not read its answers")

    def unblock(self, call: Call, size: int) -> None:
        """Count bytes that have left."""
        if call.kind == CallKind.STREAMING:
            self.shared.room.take(self.account, 0, size)
        else:
            self.shared.room.take(self.account, size, 0)

    def weigh(self, call: Call) -> bool:
        """Count a call's incomplete message; return whether it has to be refused."""
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

    def push_message(self, call: Call, data: bytes, wire_bytes: int) -> None:
        """Queue a message or a piece of a body."""
        call.queued_messages += 1
        self.push_event(EventKind.MESSAGE, call, data, wire_bytes)

    def push_event(
        self, kind: EventKind, call: Call, detail: object = None, wire_bytes: int = 0
    ) -> None:
        """Queue an event."""
        self.events.append((kind, call, detail, wire_bytes))
        self.shared.hold(self, event_bytes(kind, detail))
        self.ring()
