"""Simulated connections from a proxy to members, as `kvorum.network.edge.upstream.Upstream`.

A connection breaks with the process at its other end, at random, or while the proxy is partitioned
from its member; then all of its calls end. During a partition output and input wait, and both keep
their order. A draining member refuses calls without processing them.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from kvorum.api.errors import Code, Status
from kvorum.network.edge.relay import RelayRules
from kvorum.network.edge.upstream import (
    UPSTREAM_COUNTERS,
    Unary,
    UpstreamEvent,
    UpstreamEventKind,
    UpstreamSettings,
)
from kvorum.sim.arrivals import REFUSED
from kvorum.sim.edge import CLIENT_DELAY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from kvorum.network.edge.upstream import End, Metadata, UpstreamTls
    from kvorum.sim.arrivals import Front
    from kvorum.sim.cluster import Cluster
    from kvorum.sim.world import World

BREAK_CHANCE = 0.5
"""Chance that a lost answer breaks its connection, and that a partition does."""
ONE_WAY_CHANCE = 0.6
"""Chance that a partition stops only one direction."""
LOOKED_AT_CHANCE = 0.5
"""Chance that a call which a dying process refused is reported as not processed."""
_SETTINGS = UpstreamSettings()

Deed = tuple["Callable[..., None]", tuple[Any, ...]]


class _Connection:
    """A connection to one process of a machine."""

    __slots__ = (
        "calls",
        "endpoint",
        "incarnation",
        "incoming",
        "is_leaving",
        "is_lost",
        "machine",
        "outgoing",
    )

    def __init__(self, endpoint: int, machine: Front) -> None:
        self.endpoint = endpoint
        self.machine = machine
        self.incarnation = machine.incarnation
        self.calls: dict[int, _Call] = {}
        self.is_lost = False
        self.is_leaving = False
        self.outgoing: deque[Deed] = deque()
        self.incoming: deque[Deed] = deque()

    @property
    def is_gone(self) -> bool:
        """Whether the process at the other end has ended."""
        return self.machine.incarnation != self.incarnation or self.machine.is_dead


class _Call:
    """A call; `there` is its number in the cluster, None until it has left."""

    __slots__ = (
        "connection",
        "held",
        "is_ended",
        "is_over",
        "is_paused",
        "is_stalled",
        "number",
        "pending_bytes",
        "queued_bytes",
        "there",
        "was_full",
    )

    def __init__(self, number: int, connection: _Connection) -> None:
        self.number = number
        self.connection = connection
        self.there: int | None = None
        self.is_ended = False
        """Whether no more input will arrive for the call."""
        self.is_over = False
        """Whether the proxy gets no more events of the call."""
        self.is_paused = False
        self.held: deque[UpstreamEvent] = deque()
        """Events that arrived while the call was paused."""
        self.queued_bytes = 0
        """Bytes received and not yet polled."""
        self.is_stalled = False
        """Whether back-pressure stops the member from sending."""
        self.pending_bytes = 0
        """Bytes sent that have not left yet."""
        self.was_full = False


class SimulatedUpstream:
    """The connections of one proxy process."""

    __slots__ = (
        "_calls",
        "_cluster",
        "_connecting",
        "_current",
        "_cut_until",
        "_deaf_until",
        "_events",
        "_is_stopped",
        "_queued_bytes_max",
        "_random",
        "_wake",
        "_world",
        "connected",
        "lost",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        random: Random,
        queued_bytes_max: int,
        wake: Callable[[], None],
    ) -> None:
        """Make the connections; they call `wake` whenever there is an event to poll."""
        self._world = world
        self._cluster = cluster
        self._random = random
        self._queued_bytes_max = queued_bytes_max
        self._wake = wake
        self._current: dict[int, _Connection] = {}
        self._connecting: set[int] = set()
        self._calls: dict[int, _Call] = {}
        # Each event with its call, if it belongs to one.
        self._events: deque[tuple[UpstreamEvent, _Call | None]] = deque()
        # By machine: until when nothing passes to it, and nothing arrives from it.
        self._cut_until: dict[int, float] = {}
        self._deaf_until: dict[int, float] = {}
        self._is_stopped = False
        self.connected = 0
        self.lost = 0

    # Requests of the proxy.

    def connect(
        self, endpoint: int, address: str, authority: str, tls: UpstreamTls | None = None
    ) -> None:
        """Connect soon, or after the partition unless that exceeds the connect timeout."""
        del authority, tls
        world, number = self._world, int(address.partition(":")[0].removeprefix("m"))
        self._connecting.add(endpoint)
        seconds = _SETTINGS.connect_seconds_max
        until = max(self._cut_until.get(number, 0.0), self._deaf_until.get(number, 0.0))
        if until > world.now + seconds:
            world.after(seconds, self._connected, endpoint, number, True)
        else:
            arrival = world.now + self._random.uniform(*CLIENT_DELAY)
            world.at(max(arrival, until), self._connected, endpoint, number, False)

    def disconnect(self, endpoint: int) -> None:
        """Close a connection or stop connecting."""
        connection = self._current.get(endpoint)
        if connection is not None:
            self._lose(connection, "it was given up", Code.CANCELLED)
        elif endpoint in self._connecting:
            self._connecting.discard(endpoint)
            self._report_event(UpstreamEventKind.DISCONNECTED, endpoint, "it was given up")

    def call(self, batch: Sequence[Unary]) -> None:
        """Make unary calls."""
        for number, endpoint, path, message, metadata in batch:
            call = self._make(number, endpoint)
            if call is not None:
                self._depart(call.connection, self._begin, call, path, metadata, message)

    def open(self, call: int, endpoint: int, path: str, metadata: Metadata) -> None:
        """Open a stream."""
        made = self._make(call, endpoint)
        if made is not None:
            self._depart(made.connection, self._begin, made, path, metadata, None)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""
        for number, message in batch:
            call = self._calls.get(number)
            if call is not None:
                call.pending_bytes += len(message)
                call.was_full |= call.pending_bytes >= _SETTINGS.writable_bytes
                self._depart(call.connection, self._send, call, message)

    def half_close(self, call: int) -> None:
        """Announce that no more messages will be sent on a stream."""
        found = self._calls.get(call)
        if found is not None:
            self._depart(found.connection, self._half_close, found)

    def cancel(self, call: int) -> None:
        """Cancel a call and forget it."""
        found = self._calls.get(call)
        if found is not None:
            self._forget(found)
            if not found.is_ended:
                self._depart(found.connection, self._hang_up, found)
                self._end_of(found)

    def pause(self, call: int) -> None:
        """Return no more events of a stream from `poll` until `resume`."""
        found = self._calls.get(call)
        if found is not None and not found.is_paused:
            found.is_paused = True
            found.held.extend(event for event, call in self._events if call is found)
            kept = [each for each in self._events if each[1] is not found]
            self._events = deque(kept)
            self._pause(found)

    def resume(self, call: int) -> None:
        """Return a stream's events from `poll` again."""
        found = self._calls.get(call)
        if found is not None and found.is_paused:
            found.is_paused = False
            self._events.extend((event, found) for event in found.held)
            found.held.clear()
            self._resume(found)
            self._wake()

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes sent on a stream have not left yet."""
        found = self._calls.get(call)
        return 0 if found is None else found.pending_bytes

    def poll(self, events_max: int, bytes_max: int) -> list[UpstreamEvent]:
        """Return the next events, in order for each endpoint and call."""
        taken: list[UpstreamEvent] = []
        while self._events and len(taken) < events_max and bytes_max > 0:
            event, call = self._events.popleft()
            if call is not None:
                if call.is_over:
                    continue
                kind, _, detail = event
                if isinstance(detail, bytes):
                    bytes_max -= len(detail)
                    call.queued_bytes -= len(detail)
                    self._resume(call)
                if kind in (UpstreamEventKind.ANSWERED, UpstreamEventKind.ENDED):
                    self._forget(call)
            taken.append(event)
        return taken

    def is_paused(self, call: int) -> bool:
        """Return whether a stream is paused."""
        return call in self._calls and self._calls[call].is_paused

    @property
    def has_more(self) -> bool:
        """Whether there is an event to poll."""
        return any(call is None or not call.is_over for _, call in self._events)

    def fileno(self) -> int:
        """Fail: the simulated proxy never sleeps on a descriptor."""
        raise AssertionError("there is no descriptor")

    def announce_sleep(self) -> bool:
        """Return whether the proxy may sleep because there is no event to poll."""
        return not self._events

    def awake(self) -> None:
        """Do nothing: every arrival requests a turn."""

    def relay(self, rules: RelayRules) -> None:
        """Return None, so that the loop forwards the calls."""

    def counters(self) -> dict[str, int]:
        """Return zero totals; the simulation does not read them."""
        return dict.fromkeys(UPSTREAM_COUNTERS, 0)

    def stop(self) -> None:
        """Close everything now."""
        self._is_stopped = True
        self._connecting.clear()
        for connection in list(self._current.values()):
            connection.is_lost = True
        self._current.clear()
        self._events.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.is_over = True
            if not call.is_ended:
                self._hang_up(call)

    @property
    def calls_open(self) -> int:
        """How many calls have not ended."""
        return len(self._calls)

    # Faults.

    def cut_off(self, number: int, until: float) -> None:
        """Partition the proxy from a machine until a moment, often in one direction only."""
        choice = self._random.random()
        if choice >= ONE_WAY_CHANCE / 2:
            self._cut_until[number] = max(until, self._cut_until.get(number, 0.0))
        if choice < 1 - ONE_WAY_CHANCE / 2:
            self._deaf_until[number] = max(until, self._deaf_until.get(number, 0.0))
        for connection in list(self._current.values()):
            if connection.machine.number == number and self._random.random() < BREAK_CHANCE:
                seconds = self._random.uniform(0.0, until - self._world.now)
                self._world.after(seconds, self._lose, connection, "the server is silent")

    def break_one(self) -> bool:
        """Break a random connection; return whether there was one."""
        connections = list(self._current.values())
        if connections:
            self._lose(self._random.choice(connections), "connection reset by peer")
        return bool(connections)

    def _cut(self, connection: _Connection) -> float:
        return self._cut_until.get(connection.machine.number, 0.0)

    def _deaf(self, connection: _Connection) -> float:
        return self._deaf_until.get(connection.machine.number, 0.0)

    # To members.

    def _connected(self, endpoint: int, number: int, is_late: bool) -> None:
        if endpoint not in self._connecting:
            return
        machine = self._cluster.machines.get(number)
        self._connecting.discard(endpoint)
        if is_late:
            self._report_event(UpstreamEventKind.DISCONNECTED, endpoint, "no answer in time")
        elif machine is None or machine.member is None or machine.edge.is_closed:
            self._report_event(UpstreamEventKind.DISCONNECTED, endpoint, "connection refused")
        else:
            self.connected += 1
            self._current[endpoint] = _Connection(endpoint, machine)
            self._report_event(UpstreamEventKind.CONNECTED, endpoint, None)

    def _make(self, number: int, endpoint: int) -> _Call | None:
        """Return a new call; None, after an event that ends it, without a connection."""
        connection = self._current.get(endpoint)
        if connection is None or connection.is_leaving:
            end = (int(Code.UNAVAILABLE), "not connected", True)
            self._report_event(UpstreamEventKind.ENDED, number, end)
            return None
        made = self._calls[number] = connection.calls[number] = _Call(number, connection)
        return made

    def _depart(self, connection: _Connection, deed: Callable[..., None], *arguments: Any) -> None:
        """Run `deed` when output can leave, after the output that already waits."""
        is_first = not connection.outgoing
        if is_first and self._cut(connection) <= self._world.now:
            deed(*arguments)
            return
        connection.outgoing.append((deed, arguments))
        if is_first:
            self._world.at(self._cut(connection), self._flush, connection)

    def _flush(self, connection: _Connection) -> None:
        if self._cut(connection) > self._world.now:
            self._world.at(self._cut(connection), self._flush, connection)
            return
        while connection.outgoing:
            deed, arguments = connection.outgoing.popleft()
            deed(*arguments)

    def _begin(self, call: _Call, path: str, metadata: Metadata, message: bytes | None) -> None:
        connection, cluster = call.connection, self._cluster
        if call.is_over or call.is_ended:
            return
        if connection.is_gone:
            # The machine runs another process by now, which does not know this connection.
            delay = self._random.uniform(*CLIENT_DELAY)
            self._world.after(delay, self._arrive, connection, self._reset, connection)
            return
        answered = partial(self._arrive, connection, self._end, call)
        member, fields = connection.machine.number, dict(metadata)
        if message is None:
            took = partial(self._arrive, connection, self._take, call)
            call.there = cluster.open_stream(member, path, answered, took, fields)
        else:
            call.there = cluster.call(member, path, message, answered, fields)

    def _send(self, call: _Call, message: bytes) -> None:
        call.pending_bytes -= len(message)
        if call.was_full and call.pending_bytes < _SETTINGS.writable_bytes:
            call.was_full = False
            self._report_event(UpstreamEventKind.WRITABLE, call.number, None, call)
        if call.there is not None and not call.is_over:
            self._cluster.send(call.connection.machine.number, call.there, message)

    def _half_close(self, call: _Call) -> None:
        if call.there is not None and not call.is_over:
            self._cluster.half_close(call.connection.machine.number, call.there)

    def _hang_up(self, call: _Call) -> None:
        if call.there is not None:
            self._cluster.hang_up(call.connection.machine.number, call.there)

    # Back-pressure on members.

    def _pause(self, call: _Call) -> None:
        if not call.is_stalled and call.there is not None:
            call.is_stalled = True
            call.connection.machine.edge.stall(call.there)

    def _resume(self, call: _Call) -> None:
        is_full = call.queued_bytes >= self._queued_bytes_max
        if call.is_stalled and call.there is not None and not call.is_paused and not is_full:
            call.is_stalled = False
            call.connection.machine.arrivals.unstall(call.there)

    # From members.

    def _report_event(
        self, kind: UpstreamEventKind, number: int, detail: object, call: _Call | None = None
    ) -> None:
        event = (kind, number, detail)
        if call is not None and call.is_paused:
            call.held.append(event)
        else:
            self._events.append((event, call))
        if not self._is_stopped:
            self._wake()

    def _arrive(self, connection: _Connection, deed: Callable[..., None], *arguments: Any) -> None:
        """Run `deed` when input can arrive, after the input that already waits."""
        if connection.is_lost:
            return
        is_first = not connection.incoming
        if is_first and self._deaf(connection) <= self._world.now:
            deed(*arguments)
            return
        connection.incoming.append((deed, arguments))
        if is_first:
            self._world.at(self._deaf(connection), self._read, connection)

    def _read(self, connection: _Connection) -> None:
        if self._deaf(connection) > self._world.now:
            self._world.at(self._deaf(connection), self._read, connection)
            return
        while connection.incoming and not connection.is_lost:
            deed, arguments = connection.incoming.popleft()
            deed(*arguments)

    def _take(self, call: _Call, message: bytes) -> None:
        if call.is_over or call.is_ended:
            return
        call.queued_bytes += len(message)
        self._report_event(UpstreamEventKind.MESSAGE, call.number, message, call)
        if call.queued_bytes >= self._queued_bytes_max:
            self._pause(call)

    def _end(self, call: _Call, result: bytes | Status | None) -> None:
        if call.is_over or call.is_ended:
            return
        connection = call.connection
        machine = connection.machine
        if result is REFUSED and machine.edge.is_closed and not machine.is_dead:
            self._leave(connection)
            self._finish(call, (int(Code.UNAVAILABLE), "the server refused the call", True))
        elif result is REFUSED:
            if self._random.random() < LOOKED_AT_CHANCE:
                self._finish(call, (int(Code.UNAVAILABLE), "the server refused the call", True))
            self._reset(connection)
        elif result is None:
            if connection.is_gone or self._random.random() < BREAK_CHANCE:
                self._reset(connection)
            else:
                code = self._random.choice([Code.UNAVAILABLE, Code.INTERNAL])
                self._finish(call, (int(code), "the server reset the call", False))
        elif isinstance(result, bytes):
            call.queued_bytes += len(result)
            self._report_event(UpstreamEventKind.ANSWERED, call.number, result, call)
            self._end_of(call)
        else:
            self._finish(call, (int(result.code), result.text, False))

    def _finish(self, call: _Call, end: End) -> None:
        self._report_event(UpstreamEventKind.ENDED, call.number, end, call)
        self._end_of(call)

    def _end_of(self, call: _Call) -> None:
        """Record that no more input arrives for a call; its last events may not be polled yet."""
        call.is_ended = True
        connection = call.connection
        connection.calls.pop(call.number, None)
        if connection.is_leaving and not connection.calls and not connection.is_lost:
            connection.is_lost = True
            del self._current[connection.endpoint]
            self._report_event(UpstreamEventKind.DISCONNECTED, connection.endpoint, "it has left")

    def _forget(self, call: _Call) -> None:
        call.is_over = True
        self._calls.pop(call.number, None)

    def _reset(self, connection: _Connection) -> None:
        self._lose(connection, "connection reset by peer")

    def _leave(self, connection: _Connection) -> None:
        """Report that a member accepts no more calls; open calls continue."""
        if not connection.is_leaving:
            connection.is_leaving = True
            self._report_event(UpstreamEventKind.LEAVING, connection.endpoint, None)

    def _lose(self, connection: _Connection, reason: str, code: Code = Code.UNAVAILABLE) -> None:
        if connection.is_lost or self._is_stopped:
            return
        connection.is_lost = True
        self.lost += 1
        del self._current[connection.endpoint]
        for call in list(connection.calls.values()):
            self._end_of(call)
            self._hang_up(call)
            self._report_event(
                UpstreamEventKind.ENDED, call.number, (int(code), reason, False), call
            )
        self._report_event(UpstreamEventKind.DISCONNECTED, connection.endpoint, reason)
