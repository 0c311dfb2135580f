"""State shared by the connections of an edge: limits, counters, round-robin queues, byte counts."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from kvorum.network.edge.interface import (
    COUNTERS,
    INCIDENTS,
    EdgeEventKind,
    Event,
    Incident,
    Limits,
    ListenerKind,
    Metadata,
    Request,
)
from kvorum.network.edge.pure.call import CallKind, EdgeCall
from kvorum.network.edge.pure.grpc import MethodTable
from kvorum.network.edge.pure.headers import Wanted
from kvorum.network.edge.pure.room import UnreadLimiter
from kvorum.network.edge.pure.timers import Timers
from kvorum.storage.platform.readiness import Poller

if TYPE_CHECKING:
    from kvorum.network.edge.pure.connection import EdgeConnection, HttpProtocol


ENTRY_BYTES = 256
"""Cost of a queued request or event besides its bytes, so that many empty ones count, too."""


def event_bytes(kind: EdgeEventKind, detail: Any) -> int:
    """Return the bytes that an event counts while it waits for `poll`."""
    if kind == EdgeEventKind.MESSAGE:
        return ENTRY_BYTES + len(detail)
    if kind == EdgeEventKind.OPENED:
        return ENTRY_BYTES + metadata_bytes(detail[1])
    if kind == EdgeEventKind.HTTP_OPENED:
        return (
            ENTRY_BYTES + len(detail[2]) + sum(len(name) + len(value) for name, value in detail[3])
        )
    return ENTRY_BYTES


def metadata_bytes(metadata: Metadata | None) -> int:
    """Return the total length of the values of metadata."""
    return 0 if metadata is None else sum(map(len, metadata.values()))


class Counters:
    """The edge's counters."""

    __slots__: ClassVar = COUNTERS

    connections_accepted: int
    connections_open: int
    calls_received: int
    calls_open: int
    messages_received: int
    messages_sent: int
    bytes_read: int
    bytes_written: int
    deadlines_exceeded: int
    requests_refused: int
    tls_handshakes: int

    def __init__(self) -> None:
        for name in COUNTERS:
            setattr(self, name, 0)


class EdgeState:
    """The shared state of one edge.

    Round-robin: a connection with requests or events for `poll` is in a ring at most once. At its
    turn it yields one item and moves to the end.
    """

    def __init__(
        self,
        methods: Sequence[tuple[str, bool]],
        metadata_keys: Sequence[str],
        limits: Limits,
        http_headers: Sequence[str],
        http1: "Callable[[EdgeConnection], HttpProtocol]",
        http2: "Callable[[EdgeConnection], HttpProtocol]",
    ) -> None:
        self.limits = limits
        self.methods = MethodTable(methods)
        self.metadata_keys = [(key.encode(), key) for key in metadata_keys]
        self.http_headers = Wanted(http_headers)
        self.http1 = http1
        self.http2 = http2
        self.counters = Counters()
        self.incident_totals = dict.fromkeys(INCIDENTS, 0)
        self.recent: dict[str, Incident] = {}
        """The latest incident of each name since the previous `Edge.incidents`."""
        self.poller = Poller()
        self.timers = Timers(self._is_due)
        self.now = time.monotonic
        self.draining = False

        self.connections: dict[int, EdgeConnection] = {}
        self.by_descriptor: dict[int, EdgeConnection] = {}
        self.open_by_kind = dict.fromkeys(ListenerKind, 0)
        self.request_ring: deque[EdgeConnection] = deque()
        self.event_ring: deque[EdgeConnection] = deque()
        self.ended_before_wait: deque[int] = deque()
        """Calls that had ended before `mark_waiting`; `poll` reports ENDED for them."""
        self.queued_bytes = 0
        """Bytes received but not polled on all connections."""
        self.room = UnreadLimiter(limits)
        self.partial_bytes = 0
        """Bytes of incomplete messages on all connections."""
        self.held: set[EdgeConnection] = set()
        """Connections that have stopped reading because of a limit or `pause`."""
        self.parked: set[EdgeConnection] = set()
        """Connections whose next item lacks room for its answer."""
        self.packed: set[EdgeConnection] = set()
        """Connections with messages that are not decompressed yet."""
        self.unpacked_bytes = 0
        """Bytes of messages decompressed since the previous `poll`."""
        self.unflushed: set[EdgeConnection] = set()

    def find(self, number: int) -> "tuple[EdgeConnection, EdgeCall] | None":
        """Return an open call and its connection, or None."""
        connection = self.connections.get(number >> 32)
        if connection is None:
            return None
        call = connection.calls.get(number & 0xFFFFFFFF)
        return None if call is None else (connection, call)

    def forget(self, connection: "EdgeConnection") -> None:
        """Forget a connection that is about to close its socket."""
        self.poller.unregister(connection.socket.fileno())
        del self.by_descriptor[connection.socket.fileno()]
        del self.connections[connection.number]
        self.open_by_kind[connection.kind] -= 1
        self.held.discard(connection)
        self.parked.discard(connection)
        self.packed.discard(connection)
        self.unflushed.discard(connection)
        self.counters.connections_open -= 1

    def note(self, name: str, listener: int, peer: str, text: str) -> None:
        """Record an incident: the edge refused or delayed a client."""
        self.incident_totals[name] += 1
        before = self.recent.get(name)
        times = 1 if before is None else before.times + 1
        self.recent[name] = Incident(name, listener, peer, text, times)

    def hold(self, connection: "EdgeConnection", size: int) -> None:
        """Count bytes that are queued for `poll`."""
        connection.received_bytes += size
        self.queued_bytes += size

    def release(self, connection: "EdgeConnection", size: int) -> None:
        """Count bytes that have left the queue for `poll`."""
        connection.received_bytes -= size
        self.queued_bytes -= size
        assert connection.received_bytes >= 0 and self.queued_bytes >= 0

    def flush(self) -> None:
        """Write this batch's output, and resume connections that waited for room."""
        while self.unflushed:
            self.unflushed.pop().flush()
        for connection in list(self.held):
            connection.release()
        for connection in list(self.packed):
            if connection.dialect is not None and connection.may_unpack():
                connection.dialect.unpack()
                connection.flush()
        if self.parked:
            parked, self.parked = self.parked, set()
            for connection in parked:
                connection.ring()

    @property
    def has_work(self) -> bool:
        """Whether `poll` has something to return or to decompress."""
        return bool(
            self.request_ring
            or self.event_ring
            or self.ended_before_wait
            or any(connection.has_queue_room() for connection in self.packed)
        )

    def queued_bytes_max(self) -> int:
        """Return how many bytes a connection may have queued.

        It is less while all connections together have too much, so that connections that queue
        little are still served.
        """
        limits = self.limits
        if self.queued_bytes <= limits.queued_bytes_max:
            return limits.connection_queued_bytes_max
        return min(limits.connection_queued_bytes_max, self.share_of(limits.queued_bytes_max))

    def share_of(self, size: int) -> int:
        """Return each connection's equal share of a common limit."""
        return size // max(1, len(self.connections))

    def take_requests(self, count: int, bytes_max: int) -> list[Request]:
        """Take unary requests, at least one if there is any."""
        ring = self.request_ring
        taken: list[Request] = []
        while ring and len(taken) < count and bytes_max > 0:
            connection = ring.popleft()
            connection.ringed_requests = False
            if not connection.has_room_for_call():
                self.parked.add(connection)
                continue
            waiting = connection.requests
            while waiting:
                call = waiting.popleft()
                payload = call.payload
                assert payload is not None
                self.release(connection, call.request_bytes)
                if not call.ended:
                    call.announced = True
                    taken.append((call.number, call.method, payload, call.metadata))
                    bytes_max -= len(payload)
                    break
            connection.ring()
        return taken

    def take_events(self, count: int, bytes_max: int) -> list[Event]:
        """Take events, at least one if there is any."""
        ended = self.ended_before_wait
        taken: list[Event] = []
        while ended and len(taken) < count:
            taken.append((EdgeEventKind.ENDED, ended.popleft(), None))
        ring = self.event_ring
        while ring and len(taken) < count and bytes_max > 0:
            connection = ring.popleft()
            connection.ringed_events = False
            waiting = connection.events
            if waiting[0][0] == EdgeEventKind.HTTP_OPENED and not connection.has_room_for_call():
                self.parked.add(connection)
                continue
            while waiting:
                kind, call, detail, wire_bytes = waiting.popleft()
                size = event_bytes(kind, detail)
                self.release(connection, size)
                if kind == EdgeEventKind.MESSAGE:
                    call.queued_messages -= 1
                    bytes_max -= len(detail)
                    if connection.dialect is not None:
                        connection.dialect.polled(call, wire_bytes)
                        self.unflushed.add(connection)
                if call.announced or not call.ended:
                    if kind == EdgeEventKind.HTTP_OPENED:
                        connection.http_calls += 1
                    call.announced = True
                    taken.append((kind, call.number, detail))
                    break
            connection.ring()
        return taken

    def _is_due(self, number: int, moment: float) -> bool:
        if not number & 0xFFFFFFFF:
            connection = self.connections.get(number >> 32)
            return connection is not None and connection.timeout == moment
        found = self.find(number)
        return found is not None and found[1].deadline == moment

    def expire(self, number: int) -> None:
        """Handle the timeout of a connection or the deadline of a call."""
        connection = self.connections.get(number >> 32)
        if connection is not None and not number & 0xFFFFFFFF:
            connection.time_out()
        found = self.find(number)
        if found is not None:
            connection, call = found
            assert connection.dialect is not None
            self.counters.deadlines_exceeded += 1
            connection.dialect.expire(call)
            self.unflushed.add(connection)

    def mark_waiting(self, number: int) -> None:
        """Record that the loop needs ENDED for a unary call."""
        found = self.find(number)
        if found is None:
            self.ended_before_wait.append(number)
        elif found[1].kind == CallKind.UNARY:
            found[1].waiting = True
