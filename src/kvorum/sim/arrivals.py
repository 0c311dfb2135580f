"""Requests and events from clients, queued until a turn of the process's server or proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import EdgeEventKind, Event, Headers, Metadata, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvorum.sim.edge import Answered, Head, SimulatedEdge

REFUSED = Status(Code.UNAVAILABLE, "connection refused")
"""The answer of a process that is down: the request was not even sent."""
CLIENT_LISTENER = 0
_OPENINGS = (EdgeEventKind.OPENED, EdgeEventKind.HTTP_OPENED)


class Front(Protocol):
    """The process that answers clients: a machine with its member, or a proxy."""

    number: int
    is_dead: bool
    edge: SimulatedEdge
    arrivals: Arrivals

    @property
    def member(self) -> object:
        """The member or proxy that serves; None while the process is down."""

    @property
    def incarnation(self) -> int:
        """A number that changes with every start and every end of the process."""

    def later(self, call: Callable[..., None], *arguments: object) -> bool:
        """Defer a call while the process is paused; return whether it was deferred."""

    def request_turn(self) -> None:
        """Schedule a turn soon."""


class Arrivals:
    """The requests and events that arrived at one process; they wait while its server is full."""

    __slots__ = ("_abandoned", "_events", "_machine", "_requests")

    def __init__(self, machine: Front) -> None:
        self._machine = machine
        self._requests: list[Request] = []
        self._events: list[Event] = []
        # Calls whose clients hung up before they arrived; also some that have ended.
        self._abandoned: set[int] = set()

    def take(self) -> tuple[list[Request], list[Event]]:
        """Return the queued requests and events, and empty the queues."""
        requests, self._requests = self._requests, []
        events, self._events = self._events, []
        return requests, events

    def forget(self) -> None:
        """Empty the queues: the process has ended."""
        self._requests, self._events = [], []

    def calls(self) -> set[int]:
        """Return the unary calls that wait for a turn."""
        return {request[0] for request in self._requests}

    def events(self) -> set[tuple[int, int]]:
        """Return the kind and the call of every event that waits for a turn."""
        return {event[:2] for event in self._events}

    def serve(
        self,
        call: int,
        method: int,
        payload: bytes,
        answered: Answered,
        metadata: Metadata | None = None,
    ) -> None:
        """Take a unary request; a machine that is down refuses the connection."""
        machine = self._machine
        if machine.member is None or machine.edge.is_closed:
            answered(REFUSED)
            return
        if machine.later(self.serve, call, method, payload, answered, metadata):
            return
        if call in self._abandoned:
            return
        machine.edge.register(call, answered)
        self._requests.append((call, method, payload, metadata))
        machine.request_turn()

    def open_stream(
        self,
        call: int,
        method: int,
        answered: Answered,
        message: Callable[[bytes], None],
        metadata: Metadata | None = None,
    ) -> None:
        """Open a stream; a machine that is down refuses the connection."""
        machine = self._machine
        if machine.member is None or machine.edge.is_closed:
            answered(REFUSED)
        elif call not in self._abandoned:
            machine.edge.register_stream(call, answered, message)
            self.stream_event(EdgeEventKind.OPENED, call, (method, metadata))

    def open_http(
        self,
        call: int,
        target: str,
        headers: Headers,
        answered: Answered,
        piece: Callable[[bytes | Head], None],
        incarnation: int | None = None,
    ) -> None:
        """Take the head of an HTTP request; a machine that is down refuses the connection.

        If the process is paused, and ends before it reads the head, the connection breaks.
        """
        machine = self._machine
        now = machine.incarnation
        if machine.member is None or machine.edge.is_closed:
            answered(REFUSED)
        elif incarnation not in (None, now):
            answered(None)
        elif (
            not machine.later(self.open_http, call, target, headers, answered, piece, now)
            and call not in self._abandoned
        ):
            machine.edge.register_http(call, answered, piece)
            method = "GET" if ("upgrade", "websocket") in headers else "POST"
            detail = (CLIENT_LISTENER, method, target, headers)
            self.stream_event(EdgeEventKind.HTTP_OPENED, call, detail)

    def stream_event(self, kind: EdgeEventKind, call: int, detail: object) -> None:
        """Queue an event of a stream."""
        machine = self._machine
        if machine.is_dead or not machine.edge.is_open(call):
            return
        if machine.later(self.stream_event, kind, call, detail):
            return
        if kind == EdgeEventKind.ENDED:
            machine.edge.forget(call)
        self._events.append((kind, call, detail))
        machine.request_turn()

    def hang_up(self, call: int) -> None:
        """Handle a client that hangs up: report the end of a stream or a marked unary call.

        The server never sees a call that no turn has taken yet.
        """
        edge = self._machine.edge
        if self._withdraw(call):
            edge.forget(call)
        elif edge.reports_end(call):
            self.stream_event(EdgeEventKind.ENDED, call, None)
        elif not edge.forget(call):
            # The call may not have arrived yet.
            self._abandoned.add(call)

    def _withdraw(self, call: int) -> bool:
        """Remove a call from the queues; return whether it was there."""
        requests, events = self._requests, self._events
        if any(request[0] == call for request in requests):
            self._requests = [request for request in requests if request[0] != call]
        elif any(event[0] in _OPENINGS and event[1] == call for event in events):
            self._events = [event for event in events if event[1] != call]
        else:
            return False
        return True

    def ended_before(self, call: int) -> None:
        """Report the end of a unary call that ended before the server asked for the report."""
        self._events.append((EdgeEventKind.ENDED, call, None))
        self._machine.request_turn()

    def unstall(self, call: int) -> None:
        """Let the client of a stream read the data that waits for it."""
        if self._machine.edge.unstall(call):
            self.stream_event(EdgeEventKind.WRITABLE, call, None)
