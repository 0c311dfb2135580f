"""What the connections of one edge share: limits, counters, queues in turn, accounts of bytes."""

import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from kvorum.edge.interface import (
    COUNTERS,
    INCIDENTS,
    Event,
    EventKind,
    Incident,
    Limits,
    Request,
)
from kvorum.edge.pure.call import Call, CallKind
from kvorum.edge.pure.grpc import MethodTable
from kvorum.edge.pure.timers import Timers

if TYPE_CHECKING:
    from kvorum.edge.pure.connection import Connection, Dialect


ENTRY_BYTES = 256
"""What a queued request or event counts besides its bytes; many empty ones cost memory too."""


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


class Shared:
    """One per edge.

    A connection with something to hand out stands in a ring, once; each time its turn comes
    it gives one thing and goes to the end.
    """

    def __init__(
        self,
        methods: Sequence[tuple[str, bool]],
        metadata_keys: Sequence[str],
        limits: Limits,
        http1: "Callable[[Connection], Dialect]",
        http2: "Callable[[Connection], Dialect]",
    ) -> None:
        self.limits = limits
        self.methods = MethodTable(methods)
        self.metadata_keys = [(key.encode(), key) for key in metadata_keys]
        self.http1 = http1
        self.http2 = http2
        self.counters = Counters()
        self.incident_totals = dict.fromkeys(INCIDENTS, 0)
        self.recent: dict[str, Incident] = {}
        """The last incident of each name since they were last taken."""
        self.epoll = select.epoll()
        self.timers = Timers(self._is_due)
        self.now = time.monotonic
        self.draining = False

        self.connections: dict[int, Connection] = {}
        self.by_descriptor: dict[int, Connection] = {}
        self.request_ring: deque[Connection] = deque()
        self.event_ring: deque[Connection] = deque()
        self.late: deque[int] = deque()
        """Calls marked as waiting after they had ended."""
        self.queued_bytes = 0
        """Received and not polled, or answered and not written, on all connections."""
        self.partial_bytes = 0
        """Bytes of incomplete messages on all connections."""
        self.held: set[Connection] = set()
        """Connections that are not read."""
        self.unflushed: set[Connection] = set()

    def find(self, number: int) -> "tuple[Connection, Call] | None":
        """Return a call that is open."""
        connection = self.connections.get(number >> 32)
        if connection is None:
            return None
        call = connection.calls.get(number & 0xFFFFFFFF)
        return None if call is None else (connection, call)

    def forget(self, connection: "Connection") -> None:
        """Let go of a connection that is about to close its socket."""
        self.epoll.unregister(connection.socket.fileno())
        del self.by_descriptor[connection.socket.fileno()]
        del self.connections[connection.number]
        self.held.discard(connection)
        self.unflushed.discard(connection)
        self.counters.connections_open -= 1

    def note(self, name: str, listener: int, peer: str, text: str) -> None:
        """Remember that a client was refused or held back."""
        self.incident_totals[name] += 1
        before = self.recent.get(name)
        times = 1 if before is None else before.times + 1
        self.recent[name] = Incident(name, listener, peer, text, times)

    def hold(self, connection: "Connection", size: int) -> None:
        """Count bytes that wait for `poll`."""
        connection.received_bytes += size
        self.queued_bytes += size

    def release(self, connection: "Connection", size: int) -> None:
        """Count bytes that wait no more."""
        connection.received_bytes -= size
        self.queued_bytes -= size
        assert connection.received_bytes >= 0 and self.queued_bytes >= 0

    def flush(self) -> None:
        """Write what this batch has left on its connections, and read where that was held back."""
        while self.unflushed:
            self.unflushed.pop().flush()
        if self.held and self.queued_bytes <= self.limits.queued_bytes_max:
            for connection in list(self.held):
                connection.release()

    def take_requests(self, count: int, bytes_max: int) -> list[Request]:
        """Take unary requests, at least one if there is any."""
        ring = self.request_ring
        taken: list[Request] = []
        while ring and len(taken) < count and bytes_max > 0:
            connection = ring.popleft()
            connection.ringed_requests = False
            if connection.is_clogged():
                continue
            waiting = connection.requests
            while waiting:
                call = waiting.popleft()
                payload = call.payload
                assert payload is not None
                self.release(connection, len(payload) + ENTRY_BYTES)
                if not call.ended:
                    call.announced = True
                    taken.append((call.number, call.method, payload, call.metadata))
                    bytes_max -= len(payload)
                    break
            connection.ring_requests()
        return taken

    def take_events(self, count: int, bytes_max: int) -> list[Event]:
        """Take events, at least one if there is any."""
        late = self.late
        taken: list[Event] = []
        while late and len(taken) < count:
            taken.append((EventKind.ENDED, late.popleft(), None))
        ring = self.event_ring
        while ring and len(taken) < count and bytes_max > 0:
            connection = ring.popleft()
            waiting = connection.events
            while waiting:
                kind, call, detail, wire_bytes = waiting.popleft()
                self.release(connection, ENTRY_BYTES)
                if kind == EventKind.MESSAGE:
                    call.queued_messages -= 1
                    bytes_max -= len(detail)
                    self.release(connection, len(detail))
                    if connection.dialect is not None:
                        connection.dialect.polled(call, wire_bytes)
                        self.unflushed.add(connection)
                if call.announced or not call.ended:
                    call.announced = True
                    taken.append((kind, call.number, detail))
                    break
            if waiting:
                ring.append(connection)
            else:
                connection.ringed_events = False
        return taken

    def _is_due(self, number: int, moment: float) -> bool:
        if not number & 0xFFFFFFFF:
            connection = self.connections.get(number >> 32)
            return connection is not None and connection.timeout == moment
        found = self.find(number)
        return found is not None and found[1].deadline == moment

    def expire(self, number: int) -> None:
        """Do what is due for a connection or a call."""
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
        """Remember that the loop wants to hear if a unary call ends."""
        found = self.find(number)
        if found is None:
            self.late.append(number)
        elif found[1].kind == CallKind.UNARY:
            found[1].waiting = True
