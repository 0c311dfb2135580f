"""A member's edge in the simulator: calls of clients, delayed and broken off.

It implements the part of `kvorum.network.edge.interface.Edge` that a server uses. Bytes go in and
out; a connection may break before a request arrives or before its answer does, and breaks when
the member crashes. The client then does not know the outcome of its request. An HTTP request is a
stream whose client takes the head of its answer before the rest.
"""

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Any, NamedTuple, Protocol

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import Headers
from kvorum.server.server import Server
from kvorum.server.shutdown import ServerPhase
from kvorum.sim.arrivals import Arrivals
from kvorum.sim.faults import Faults
from kvorum.sim.violation import Violation
from kvorum.sim.world import World

CLIENT_DELAY = (0.0001, 0.002)
STREAM_TAKEN_BYTES = 64 * 1024
STALLED_FACTOR = 64
"""The factor by which unread bytes count: runs are short, and streams seldom full."""

Lost = None
"""The result that a client gets when its connection broke."""

Answered = Callable[[bytes | Status | None], None]


class Head(NamedTuple):
    """The head of an HTTP answer."""

    status: int
    headers: Headers


class Host(Protocol):
    """The machine whose process answers."""

    name: str
    server: Server | None
    arrivals: Arrivals

    def check_before_output(self) -> None:
        """Check the member before it sends anything."""

    def output(self) -> None:
        """Let one more output leave the process, unless it ends here."""


class _Call(NamedTuple):
    answered: Answered
    """Takes the end of the call; Lost if the connection broke."""
    message: Callable[[Any], None] | None
    """Takes a message of the stream, or head and pieces of an HTTP answer; None: it is unary."""


class SimulatedEdge:
    """The calls that clients have open with one member."""

    __slots__ = (
        "_calls",
        "_host",
        "_last",
        "_quiet_at",
        "_random",
        "_stalled",
        "_waiting",
        "_world",
        "faults",
        "http",
        "http_ever",
        "pending",
        "stalled_factor",
        "unary",
    )

    def __init__(
        self, world: World, host: Host, faults: Faults, stalled_factor: int = STALLED_FACTOR
    ) -> None:
        self._world = world
        self.stalled_factor = stalled_factor
        self._host = host
        self._random: Random = world.stream(f"{host.name}/edge")
        self.faults = faults
        self._calls: dict[int, _Call] = {}
        # The unary calls that are open, in order.
        self.unary: dict[int, None] = {}
        # The open HTTP requests, and all HTTP requests so far.
        self.http: dict[int, None] = {}
        self.http_ever: set[int] = set()
        # When the last message of each stream arrives: messages keep their order.
        self._last: dict[int, float] = {}
        # Streams whose client reads nothing for now, and the data that waits for it.
        self._stalled: dict[int, list[bytes | Head]] = {}
        self.pending: dict[int, int] = {}
        # Unary calls whose end the server wants to know.
        self._waiting: set[int] = set()
        # When the last client learns that no more calls are served; None: they are served.
        self._quiet_at: float | None = None

    def open(self) -> None:
        """Start to take calls."""
        self._quiet_at = None

    @property
    def is_closed(self) -> bool:
        """Whether clients know that the edge takes no more calls."""
        return self._quiet_at is not None and self._quiet_at <= self._world.now

    def register(self, call: int, answered: Answered) -> None:
        """Register a unary call whose request has arrived."""
        self._calls[call] = _Call(answered, None)
        self.unary[call] = None

    def register_stream(
        self, call: int, answered: Answered, message: Callable[[bytes], None]
    ) -> None:
        """Register a streaming call."""
        self._calls[call] = _Call(answered, message)
        self.pending[call] = 0

    def register_http(
        self, call: int, answered: Answered, piece: Callable[[bytes | Head], None]
    ) -> None:
        """Register an HTTP request; a status ends its answer."""
        self.register_stream(call, answered, piece)
        self.http[call] = None
        self.http_ever.add(call)

    def is_open(self, call: int) -> bool:
        """Return whether a call has not ended."""
        return call in self._calls

    def is_stream(self, call: int) -> bool:
        """Return whether a call is an open stream."""
        return call in self._calls and self._calls[call].message is not None

    def reports_end(self, call: int) -> bool:
        """Return whether the server learns of a call's end: a stream's, or a marked call's."""
        return call in self._calls and (self.is_stream(call) or call in self._waiting)

    def forget(self, call: int) -> bool:
        """Forget a call whose client is gone; return whether it was open."""
        self._last.pop(call, None)
        self._waiting.discard(call)
        self._stalled.pop(call, None)
        self.pending.pop(call, None)
        self.unary.pop(call, None)
        self.http.pop(call, None)
        return self._calls.pop(call, None) is not None

    def crash(self) -> None:
        """Break all connections."""
        calls, self._calls = self._calls, {}
        self.unary.clear()
        self.http.clear()
        self._last.clear()
        self._waiting.clear()
        self._stalled.clear()
        self.pending.clear()
        for call in calls.values():
            self._world.after(self._random.uniform(*CLIENT_DELAY), call.answered, Lost)

    def break_one(self) -> int | None:
        """Break the connection of a random call under its client; return the call, if any."""
        if not self._calls:
            return None
        call = self._random.choice(list(self._calls))
        self._world.after(self._random.uniform(*CLIENT_DELAY), self._calls[call].answered, Lost)
        return call

    def stall(self, call: int) -> None:
        """Let a stream's client stop reading."""
        if call in self._calls:
            self._stalled.setdefault(call, [])

    def is_stalled(self, call: int) -> bool:
        """Return whether a stream's client reads nothing for now."""
        return call in self._stalled

    def unstall(self, call: int) -> bool:
        """Let a client read the data that waits; return whether its stream counted as full."""
        waiting = self._stalled.pop(call, [])
        was_full = self.pending.get(call, 0) >= STREAM_TAKEN_BYTES
        if call in self._calls:
            self.pending[call] = 0
            for data in waiting:
                self._carry(call, self._calls[call], data)
        return was_full and call in self._calls

    # The interface for the server.

    def _check_output(self) -> None:
        """Check and count an output to clients; there may be none after the drain."""
        host = self._host
        host.check_before_output()
        if host.server is not None and host.server.phase not in (
            ServerPhase.SERVING,
            ServerPhase.DRAINING,
        ):
            raise Violation(
                "nothing is answered after the drain",
                f"{host.name} speaks to clients when it {host.server.phase.value}",
            )
        host.output()

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        self._check_output()
        for call, result in batch:
            known = self._calls.pop(call, None)
            self.unary.pop(call, None)
            self._waiting.discard(call)
            if known is None:
                continue
            random = self._random
            if random.random() < self.faults.connection_chance:
                self._world.after(random.uniform(*CLIENT_DELAY), known.answered, Lost)
            else:
                self._world.after(random.uniform(*CLIENT_DELAY), known.answered, result)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams, in order."""
        self._check_output()
        for call, data in batch:
            known = self._calls.get(call)
            if known is None:
                continue
            self._hand(call, known, data)
            if call in self._stalled:
                self.pending[call] += self.stalled_factor * len(data)

    def _hand(self, call: int, known: _Call, data: bytes | Head) -> None:
        """Send data to a client, or queue it while the client reads nothing."""
        waiting = self._stalled.get(call)
        if waiting is None:
            self._carry(call, known, data)
        else:
            waiting.append(data)

    def _carry(self, call: int, known: _Call, data: bytes | Head) -> None:
        assert known.message is not None, f"a message on call {call}, which is no stream"
        world = self._world
        arrival = max(
            world.now + self._random.uniform(*CLIENT_DELAY), self._last.get(call, world.now)
        )
        self._last[call] = arrival
        world.at(arrival, known.message, data)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:  # noqa: ARG002
        """End a stream after the messages already sent."""
        self._check_output()
        known = self._calls.get(call)
        if known is not None:
            self._end(call, known, status)

    def _end(self, call: int, known: _Call, status: Status | None) -> None:
        # A client that reads nothing for now reads on when there is nothing more to come.
        for data in self._stalled.pop(call, ()):
            self._carry(call, known, data)
        world = self._world
        arrival = max(world.now + CLIENT_DELAY[1], self._last.get(call, world.now))
        self.forget(call)
        world.at(arrival, known.answered, status)

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes of a stream its client has not read."""
        return self.pending.get(call, 0)

    def mark_waiting(self, call: int) -> None:
        """Ask for a report if a unary call ends before its reply, or has ended already."""
        if call in self._calls:
            self._waiting.add(call)
        else:
            self._host.arrivals.ended_before(call)

    def pause(self, call: int) -> None:
        """Do nothing: a client of the simulator sends little."""

    def resume(self, call: int) -> None:
        """Do nothing."""

    def has_room(self, call: int, is_long: bool = False) -> bool:  # noqa: ARG002
        """Take every answer."""
        return True

    def peer(self, call: int) -> str:
        """Return the name of an open call's client."""
        return f"call {call}" if call in self._calls else ""

    def peer_certificate(self, call: int) -> None:
        """Return no certificate: no client shows one."""

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request; without a body, pieces of the body follow."""
        self._check_output()
        known = self._calls.get(call)
        if known is None:
            return
        assert call in self.http, f"{call} is no HTTP request, and answered with {status}"
        self._hand(call, known, Head(status, headers))
        if body is not None:
            self._hand(call, known, body)
            is_broken = self._random.random() < self.faults.connection_chance
            self._end(call, known, Lost if is_broken else Status(Code.OK, ""))

    def drain(self) -> None:
        """Ask clients for no more calls; some stop at once, some late or never."""
        random, now = self._random, self._world.now
        if random.random() < self.faults.deaf_chance:
            self._quiet_at = now + random.choice([0.5, 3.0, inf])
        else:
            self._quiet_at = now + random.uniform(*CLIENT_DELAY)

    def is_quiet(self) -> bool:
        """Return whether no more calls come."""
        return self.is_closed

    def is_drained(self) -> bool:
        """Return whether the last call is over, and no more calls come."""
        return self.is_closed and not self._calls
