"""The pure-Python calling side: connections in one poller, and the methods of `Upstream`.

`poll` and `announce_sleep` do all input and output, in their caller's thread.
"""

import os
import re
import socket
import time
import weakref
from base64 import b64encode
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from kvorum.client.grpc.wire import End
from kvorum.network.edge.pure.dialing import NEVER, Dialed, DialError, ThreadedLookups
from kvorum.network.edge.pure.timers import Timers
from kvorum.network.edge.relay import RelayRules
from kvorum.network.edge.upstream import (
    UPSTREAM_COUNTERS,
    Metadata,
    Unary,
    UpstreamEvent,
    UpstreamEventKind,
    UpstreamSettings,
    UpstreamTls,
)
from kvorum.storage.platform.readiness import READABLE, Poller

SOCKETS_PER_PASS: Final = 1024
EVENT_BYTES: Final = 256
"""Cost of a queued event besides its bytes."""
_CANCELLED, _INTERNAL, _UNAVAILABLE = 1, 13, 14
_GIVEN_UP: Final = "the connection was given up"
_LEFT: Final = "the server asked for no more calls"
_PATH: Final = re.compile(r"/[!-~]*", re.ASCII)
_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")
_OF_ENDPOINTS: Final = (
    UpstreamEventKind.CONNECTED,
    UpstreamEventKind.DISCONNECTED,
    UpstreamEventKind.LEAVING,
)
_ENDS: Final = (UpstreamEventKind.ANSWERED, UpstreamEventKind.ENDED)


_open: "weakref.WeakSet[PureUpstream]" = weakref.WeakSet()


class _Call:
    """A call whose end the loop has not polled."""

    __slots__ = (
        "answer",
        "endpoint",
        "has_more",
        "held",
        "is_full",
        "is_paused",
        "is_unary",
        "queued_bytes",
    )

    def __init__(self, endpoint: int, *, is_unary: bool) -> None:
        self.endpoint = endpoint
        self.is_unary = is_unary
        self.answer: bytes | None = None
        """The answer to a unary call."""
        self.has_more = False
        """Whether a unary call has more than one answer."""
        self.is_paused = False
        self.held: deque[UpstreamEvent] = deque()
        """Events that `resume` releases."""
        self.queued_bytes = 0
        """Bytes of messages that the loop has not polled."""
        self.is_full = False
        """Whether pending bytes reached `writable_bytes`, so that WRITABLE is due."""


class PureUpstream:
    """An `Upstream` that works in its caller's thread; see `kvorum.network.edge.upstream`."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._poller = Poller()
        self._lookups = ThreadedLookups()
        self._timers = Timers(self._is_live)
        self._poller.register(self._lookups.fileno(), READABLE)
        self._poller.register(self._timers.fileno(), READABLE)
        self._connections: dict[int, Dialed] = {}
        self._by_descriptor: dict[int, tuple[Dialed, socket.socket, int]] = {}
        """Watched sockets, each with its connection and event mask."""
        self._calls: dict[int, _Call] = {}
        self._events: deque[tuple[UpstreamEvent, Dialed | None]] = deque()
        self._resumed: deque[UpstreamEvent] = deque()
        self._changed: dict[int, Dialed] = {}
        """Connections that may have output, a new event mask or a new deadline."""
        self._full_calls: dict[int, None] = {}
        """Streams for which WRITABLE is due."""
        self._counters = dict.fromkeys(UPSTREAM_COUNTERS, 0)
        self._is_stopped = False
        _open.add(self)

    def _check(self) -> None:
        if self._is_stopped:
            raise ValueError("upstream is stopped")

    # Endpoints.

    def connect(
        self, endpoint: int, address: str, authority: str, tls: UpstreamTls | None = None
    ) -> None:
        """Start connecting."""
        self._check()
        now = time.monotonic()
        connection = Dialed(endpoint, address, authority, tls, self._settings, self, now)
        self._connections[endpoint] = connection
        try:
            connection.dial(self._lookups, now)
        except DialError as error:
            self._lose(connection, str(error))
        else:
            self._changed[endpoint] = connection

    def disconnect(self, endpoint: int) -> None:
        """Close a connection."""
        self._check()
        connection = self._connections.get(endpoint)
        if connection is not None:
            self._lose(connection, _GIVEN_UP, _CANCELLED)

    # Calls.

    def call(self, batch: Sequence[Unary]) -> None:
        """Make unary calls."""
        self._check()
        for call, endpoint, path, message, metadata in batch:
            self._begin(call, endpoint, path, metadata, message)

    def open(self, call: int, endpoint: int, path: str, metadata: Metadata) -> None:
        """Start a stream."""
        self._check()
        self._begin(call, endpoint, path, metadata, None)

    def _begin(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes | None
    ) -> None:
        self._counters["calls_started"] += 1
        is_unary = message is not None
        self._calls[call] = _Call(endpoint, is_unary=is_unary)
        connection = self._connections.get(endpoint)
        problem = _problem(path, metadata)
        if problem:
            self.take_end(call, End(_INTERNAL, problem, True))
        elif connection is None or not connection.is_open:
            self.take_end(call, End(_UNAVAILABLE, "the endpoint is not connected", True))
        else:
            connection.begins_call()
            self._counters["messages_sent"] += is_unary
            fields = tuple((name, _text(name, value)) for name, value in metadata)
            connection.wire.start(call, path, fields, message, ends=is_unary)
            self._changed[endpoint] = connection

    def _stream(self, call: int) -> tuple[_Call, Dialed] | None:
        """Return a stream that has not ended, and its connection."""
        open_call = self._calls.get(call)
        if open_call is None or open_call.is_unary:
            return None
        connection = self._connections.get(open_call.endpoint)
        return None if connection is None else (open_call, connection)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streams."""
        self._check()
        for call, message in batch:
            if (found := self._stream(call)) is not None:
                open_call, connection = found
                self._counters["messages_sent"] += 1
                connection.wire.send(call, message)
                self._changed[open_call.endpoint] = connection
                if connection.wire.pending_bytes(call) >= self._settings.writable_bytes:
                    open_call.is_full = True
                    self._full_calls[call] = None

    def half_close(self, call: int) -> None:
        """Send no more messages of a stream."""
        self._check()
        if (found := self._stream(call)) is not None:
            found[1].wire.half_close(call)
            self._changed[found[1].endpoint] = found[1]

    def cancel(self, call: int) -> None:
        """Cancel a call."""
        self._check()
        open_call = self._calls.pop(call, None)
        if open_call is None:
            return
        connection = self._connections.get(open_call.endpoint)
        if connection is not None:
            connection.wire.cancel(call)
            self._changed[open_call.endpoint] = connection

    def pause(self, call: int) -> None:
        """Report no messages or end of a stream until `resume`."""
        self._check()
        open_call = self._calls.get(call)
        if open_call is not None and not open_call.is_unary:
            open_call.is_paused = True

    def resume(self, call: int) -> None:
        """Report a stream's messages and end again."""
        self._check()
        open_call = self._calls.get(call)
        if open_call is not None:
            open_call.is_paused = False
            self._resumed.extend(open_call.held)
            open_call.held.clear()

    def pending_bytes(self, call: int) -> int:
        """Return the number of a stream's bytes that have not left."""
        self._check()
        found = self._stream(call)
        return 0 if found is None else found[1].wire.pending_bytes(call)

    # Callbacks from connections.

    def take_message(self, call: int, message: bytes) -> None:
        """Take a message from a server."""
        open_call = self._calls.get(call)
        if open_call is None:
            return
        self._counters["messages_received"] += 1
        if open_call.is_unary:
            open_call.has_more = open_call.answer is not None
            open_call.answer = message
            return
        open_call.queued_bytes += len(message)
        self._push_event(UpstreamEventKind.MESSAGE, call, message, open_call.endpoint, len(message))
        self._hold(call, open_call)

    def _hold(self, call: int, open_call: _Call) -> None:
        """Set or release back-pressure on a call, by the bytes that the loop has not polled."""
        connection = self._connections.get(open_call.endpoint)
        if connection is not None:
            is_held = open_call.queued_bytes >= max(self._settings.stream_queued_bytes_max // 2, 1)
            connection.wire.hold(call, is_held=is_held)

    def take_end(self, call: int, end: End) -> None:
        """Take the end of a call."""
        open_call = self._calls.get(call)
        if open_call is None:
            return
        if open_call.is_unary and end.code == 0:
            if open_call.answer is None:
                end = End(_INTERNAL, "the server answered without a message")
            elif open_call.has_more:
                end = End(_INTERNAL, "the server answered with several messages")
            else:
                answer = open_call.answer
                kind = UpstreamEventKind.ANSWERED
                self._push_event(kind, call, answer, open_call.endpoint, len(answer))
                return
        detail = (end.code, end.text, end.is_unprocessed)
        self._push_event(UpstreamEventKind.ENDED, call, detail, open_call.endpoint, len(end.text))

    def _push_event(
        self, kind: UpstreamEventKind, number: int, detail: Any, endpoint: int, size: int
    ) -> None:
        connection = self._connections.get(endpoint)
        self._events.append(((kind, number, detail), connection))
        if connection is not None:
            connection.queued_bytes += size + EVENT_BYTES
            if connection.queued_bytes > self._settings.connection_queued_bytes_max:
                connection.is_held = True
                self._changed[endpoint] = connection

    def _push_connection_event(
        self, connection: Dialed, kind: UpstreamEventKind, detail: Any = None
    ) -> None:
        self._push_event(kind, connection.endpoint, detail, connection.endpoint, 0)

    # The loop's side.

    def fileno(self) -> int:
        """Return the poller's descriptor, which is readable when a watched descriptor is ready."""
        self._check()
        return self._poller.fileno()

    def announce_sleep(self) -> bool:
        """Return whether the loop may wait for `fileno`."""
        self._check()
        self._flush()
        if self._events or self._resumed:
            return False
        self._timers.arm()
        return True

    def awake(self) -> None:
        """Do nothing: the poller needs no wake-up writes."""
        self._check()

    def poll(self, events_max: int, bytes_max: int) -> list[UpstreamEvent]:
        """Do all input and output that is possible, then take events."""
        self._check()
        self._pump()
        taken: list[UpstreamEvent] = []
        count = 0
        while count < events_max and bytes_max > 0 and (self._resumed or self._events):
            if self._resumed:
                event = self._resumed.popleft()
            else:
                event, connection = self._events.popleft()
                self._take_off(connection, _size(event))
            count += 1
            bytes_max -= _size(event)
            if self._is_wanted(event):
                taken.append(event)
        self._flush()
        return taken

    def _take_off(self, connection: Dialed | None, size: int) -> None:
        if connection is None:
            return
        connection.queued_bytes -= size + EVENT_BYTES
        is_short = connection.queued_bytes <= self._settings.connection_queued_bytes_max
        if connection.is_held and is_short:
            connection.resumes()
            self._changed[connection.endpoint] = connection

    def _is_wanted(self, event: UpstreamEvent) -> bool:
        """Return whether `poll` returns an event now: not of a paused or cancelled call."""
        kind, number, detail = event
        if kind in _OF_ENDPOINTS:
            return True
        open_call = self._calls.get(number)
        if open_call is None:
            return False
        if open_call.is_paused and kind != UpstreamEventKind.WRITABLE:
            open_call.held.append(event)
            return False
        if kind in _ENDS:
            del self._calls[number]
        elif kind == UpstreamEventKind.MESSAGE:
            open_call.queued_bytes -= len(detail)
            self._hold(number, open_call)
            connection = self._connections.get(open_call.endpoint)
            if connection is not None:
                self._changed[open_call.endpoint] = connection
        return True

    def relay(self, rules: RelayRules) -> None:
        """Return None: with this edge the loop forwards all calls."""

    def counters(self) -> dict[str, int]:
        """Return the counters."""
        counters = dict(self._counters)
        counters["calls_open"] = len(self._calls)
        for connection in self._connections.values():
            counters["bytes_read"] += connection.bytes_read
            counters["bytes_written"] += connection.bytes_written
        return counters

    def stop(self) -> None:
        """Close everything."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._by_descriptor.clear()
        self._timers.close()
        self._lookups.close()
        self._poller.close()

    # Input and output.

    def _pump(self) -> None:
        now = time.monotonic()
        for number, found in self._lookups.take():
            connection = self._connections.get(number)
            if connection is not None:
                try:
                    connection.take_addresses(found, now)
                    self._changed[number] = connection
                except DialError as error:
                    self._lose(connection, str(error))
        for number in self._timers.due(now):
            self._pass_time(self._connections[number], now)
        for descriptor, mask in self._poller.poll(0, SOCKETS_PER_PASS):
            watched = self._by_descriptor.get(descriptor)
            if watched is not None:
                self._handle(watched[0], mask, now)
        self._flush()

    def _handle(self, connection: Dialed, mask: int, now: float) -> None:
        try:
            connection.handle(mask, now)
        except DialError as error:
            self._lose(connection, str(error))
            return
        self._changed[connection.endpoint] = connection
        if not connection.is_open and connection.wire.connection.has_settings:
            connection.is_open = True
            self._counters["connections_made"] += 1
            self._push_connection_event(connection, UpstreamEventKind.CONNECTED)
        if connection.wire.connection.is_going_away and not connection.link.is_leaving:
            connection.link.is_leaving = True
            self._push_connection_event(connection, UpstreamEventKind.LEAVING)

    def _pass_time(self, connection: Dialed, now: float) -> None:
        connection.timer_at = NEVER
        try:
            connection.pass_time(now)
        except DialError as error:
            self._lose(connection, str(error))
        else:
            self._changed[connection.endpoint] = connection

    def _flush(self) -> None:
        """Write pending output, then update event masks and timers."""
        while self._changed:
            endpoint, connection = self._changed.popitem()
            if self._connections.get(endpoint) is not connection:
                continue
            try:
                connection.write()
            except DialError as error:
                self._lose(connection, str(error))
                continue
            if connection.link.is_leaving and not connection.wire.calls_open:
                self._lose(connection, _LEFT)
                continue
            self._watch(connection)
            moment = connection.wake_at(time.monotonic())
            if moment < connection.timer_at:
                connection.timer_at = moment
                self._timers.add(moment, endpoint)
        for call in list(self._full_calls):
            self._check_writable(call)

    def _check_writable(self, call: int) -> None:
        found = self._stream(call)
        if found is None:
            del self._full_calls[call]
        elif found[1].wire.pending_bytes(call) < self._settings.writable_bytes:
            del self._full_calls[call]
            found[0].is_full = False
            self._push_event(UpstreamEventKind.WRITABLE, call, None, found[0].endpoint, 0)

    def _watch(self, connection: Dialed) -> None:
        """Update the event mask of a connection's socket, which may be a new socket."""
        if connection.socket is None:
            return
        descriptor, mask = connection.socket.fileno(), connection.mask
        watched = self._by_descriptor.get(descriptor)
        is_known = watched is not None and watched[1] is connection.socket
        if is_known and watched is not None and watched[2] == mask:
            return
        self._by_descriptor.pop(descriptor, None)
        if not mask:
            # Unregister: with an empty mask epoll would still report a reset, again and again.
            if is_known:
                self._poller.unregister(descriptor)
            return
        if is_known:
            self._poller.modify(descriptor, mask)
        else:
            self._poller.register(descriptor, mask)
        self._by_descriptor[descriptor] = (connection, connection.socket, mask)

    def _lose(self, connection: Dialed, reason: str, code: int = _UNAVAILABLE) -> None:
        """Close a connection, end its calls, and report DISCONNECTED."""
        self._forget(connection)
        self._counters["bytes_read"] += connection.bytes_read
        self._counters["bytes_written"] += connection.bytes_written
        if not connection.is_open:
            self._counters["connections_failed"] += 1
        connection.wire.lose(reason, code)
        self._push_connection_event(connection, UpstreamEventKind.DISCONNECTED, reason)
        del self._connections[connection.endpoint]

    def _forget(self, connection: Dialed) -> None:
        mine = [each for each, (one, *_) in self._by_descriptor.items() if one is connection]
        for descriptor in mine:
            del self._by_descriptor[descriptor]
        connection.close()

    def _is_live(self, number: int, moment: float) -> bool:
        connection = self._connections.get(number)
        return connection is not None and connection.timer_at == moment


def _problem(path: str, metadata: Metadata) -> str:
    """Return why a call cannot be sent; empty if it can."""
    if _PATH.fullmatch(path) is None:
        return f'the path "{path}" cannot be sent'
    for name, value in metadata:
        is_plain = not name.endswith("-bin")
        if _NAME.fullmatch(name) is None or (is_plain and _VALUE.fullmatch(value) is None):
            return f'the metadata "{name}" cannot be sent'
    return ""


def _text(name: str, value: bytes) -> str:
    if name.endswith("-bin"):
        return b64encode(value).decode().rstrip("=")
    return value.decode("latin-1")


def _size(event: UpstreamEvent) -> int:
    kind, _, detail = event
    if kind == UpstreamEventKind.ENDED:
        return len(detail[1])
    return len(detail) if isinstance(detail, bytes) else 0


def _stop_all() -> None:
    for upstream in list(_open):
        upstream.stop()


# A forked child must not keep connections open that its parent has closed.
os.register_at_fork(after_in_child=_stop_all)
