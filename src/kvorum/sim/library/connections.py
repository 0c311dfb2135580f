"""Simulated connections for the calls of a library's core, as `kvorum.client.interface.Transport`.

A connection breaks with the process at its other end, at random, or because its client is
partitioned; then all of its calls end. While a client is partitioned its output waits, and while it
cannot read its input waits; both keep their order.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from kvorum.api.errors import Code, Status
from kvorum.client import rpcs
from kvorum.client.core import Core
from kvorum.client.grpc.wire import End, Metadata
from kvorum.sim.arrivals import REFUSED, Front
from kvorum.sim.cluster import Cluster
from kvorum.sim.edge import CLIENT_DELAY
from kvorum.sim.library.process import Process
from kvorum.sim.world import World

CONNECT_SECONDS_MAX = 5.0
_BREAK_CHANCE = 0.5
"""Chance that a lost answer breaks its connection, and that a partition does."""
_STREAMS = (rpcs.RANGE_STREAM.path, rpcs.SNAPSHOT.path)
"""Calls with one request and many responses."""
_READ_METADATA = ("token", "hasleader", "client-api-version")

Deed = tuple[Callable[..., None], tuple[Any, ...]]


class _Connection:
    """A connection to one process of a machine."""

    __slots__ = ("calls", "endpoint", "incarnation", "incoming", "is_lost", "machine", "outgoing")

    def __init__(self, endpoint: int, machine: Front) -> None:
        self.endpoint = endpoint
        self.machine = machine
        self.incarnation = machine.incarnation
        self.calls: dict[int, _Call] = {}
        self.is_lost = False
        self.outgoing: deque[Deed] = deque()
        self.incoming: deque[Deed] = deque()


class _Call:
    """A call; `there` is its number in the cluster, None until it has left."""

    __slots__ = ("connection", "is_stream", "number", "there")

    def __init__(self, number: int, connection: _Connection, is_stream: bool) -> None:
        self.number = number
        self.connection = connection
        self.is_stream = is_stream
        self.there: int | None = None


class Connections:
    """The connections of one core, as its transport."""

    __slots__ = (
        "_calls",
        "_cluster",
        "_connecting",
        "_core",
        "_current",
        "_process",
        "_random",
        "_runs_at",
        "_settle",
        "_world",
        "connected",
        "is_closed",
        "lost",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        process: Process,
        core: Core,
        name: str,
        runs_at: Callable[[], float],
        settle: Callable[[], None],
    ) -> None:
        """Make the transport; it calls `settle` after each input to the core."""
        self._world = world
        self._cluster = cluster
        self._process = process
        self._core = core
        self._random: Random = world.stream(f"connections {name}")
        self._runs_at = runs_at
        self._settle = settle
        self._current: dict[int, _Connection] = {}
        self._connecting: dict[int, int] = {}
        self._calls: dict[int, _Call] = {}
        self.is_closed = False
        self.connected = 0
        self.lost = 0

    # Requests of the core.

    def connect(self, endpoint: int) -> None:
        """Connect soon, or after the partition unless that exceeds the connect timeout."""
        world = self._world
        attempt = self._connecting[endpoint] = self._connecting.get(endpoint, 0) + 1
        arrival = world.now + self._random.uniform(*CLIENT_DELAY)
        if self._process.cut_until > world.now + CONNECT_SECONDS_MAX:
            world.after(CONNECT_SECONDS_MAX, self._connected, endpoint, attempt, True)
        else:
            arrival = max(arrival, self._process.cut_until)
            world.at(arrival, self._connected, endpoint, attempt, False)

    def disconnect(self, endpoint: int) -> None:
        """Close a connection or stop connecting."""
        self._connecting[endpoint] = self._connecting.get(endpoint, 0) + 1
        connection = self._current.pop(endpoint, None)
        if connection is not None:
            self._lose(connection, "the connection was closed")

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        """Start a call."""
        connection = self._current[endpoint]
        is_stream = not ends or path in _STREAMS
        made = self._calls[call] = connection.calls[call] = _Call(call, connection, is_stream)
        fields = {key: value.encode() for key, value in metadata if key in _READ_METADATA}
        self._depart(connection, self._begin, made, path, fields, message)

    def send(self, call: int, message: bytes) -> None:
        """Send another message of a call."""
        found = self._calls.get(call)
        if found is not None:
            self._depart(found.connection, self._send, found, message)

    def cancel(self, call: int) -> None:
        """Cancel a call."""
        found = self._calls.pop(call, None)
        if found is not None:
            del found.connection.calls[call]
            self._depart(found.connection, self._hang_up, found)

    def close(self) -> None:
        """Break all connections because the process ends."""
        self.is_closed = True
        self._current.clear()
        for call in list(self._calls.values()):
            self._lose(call.connection, "the client is closed")

    # To members.

    def _connected(self, endpoint: int, attempt: int, is_late: bool) -> None:
        if self.is_closed or self._connecting.get(endpoint) != attempt:
            return
        if self._process.later(self._runs_at, self._connected, endpoint, attempt, is_late):
            return
        host = self._core.endpoints.known[endpoint].address.host
        machine = self._cluster.front(int(host.removeprefix("m")))
        self._core.now = self._process.clock()
        if is_late:
            self._core.note_disconnected(endpoint, "no answer in time")
        elif machine is None or machine.member is None or machine.edge.is_closed:
            self._core.note_disconnected(endpoint, "connection refused")
        else:
            self.connected += 1
            self._current[endpoint] = _Connection(endpoint, machine)
            self._core.note_connected(endpoint)
        self._settle()

    def _depart(self, connection: _Connection, deed: Callable[..., None], *arguments: Any) -> None:
        """Run `deed` when output can leave, after the output that already waits."""
        is_first = not connection.outgoing
        if is_first and self._process.cut_until <= self._world.now:
            deed(*arguments)
            return
        connection.outgoing.append((deed, arguments))
        if is_first:
            if self._random.random() < _BREAK_CHANCE:
                seconds = self._random.uniform(0.0, self._process.cut_until - self._world.now)
                self._world.after(seconds, self._notice, connection)
            self._world.at(self._process.cut_until, self._flush, connection)

    def _flush(self, connection: _Connection) -> None:
        if self._process.later(lambda: self._process.cut_until, self._flush, connection):
            return
        while connection.outgoing:
            deed, arguments = connection.outgoing.popleft()
            deed(*arguments)

    def _notice(self, connection: _Connection) -> None:
        """Close a connection because the server no longer answers."""
        if not self._process.later(self._runs_at, self._notice, connection):
            self._lose(connection, "the server is silent")

    def _begin(self, call: _Call, path: str, metadata: dict[str, bytes], message: bytes) -> None:
        connection, cluster = call.connection, self._cluster
        if self._calls.get(call.number) is not call:
            return
        machine = connection.machine
        if machine.incarnation != connection.incarnation or machine.is_dead:
            # The machine runs another process by now, which does not know this connection.
            delay = self._random.uniform(*CLIENT_DELAY)
            self._world.after(delay, self._arrive, connection, self._reset, connection)
            return
        answered = partial(self._arrive, connection, self._end, call)
        member = machine.number
        if call.is_stream:
            took = partial(self._arrive, connection, self._take, call)
            call.there = cluster.open_stream(member, path, answered, took, metadata)
            cluster.send(member, call.there, message)
        else:
            call.there = cluster.call(member, path, message, answered, metadata)

    def _send(self, call: _Call, message: bytes) -> None:
        if call.there is not None and self._calls.get(call.number) is call:
            self._cluster.send(call.connection.machine.number, call.there, message)

    def _hang_up(self, call: _Call) -> None:
        if call.there is not None:
            self._cluster.hang_up(call.connection.machine.number, call.there)

    # From members.

    def _readable_at(self) -> float:
        return max(self._runs_at(), self._process.hears_at())

    def _arrive(self, connection: _Connection, deed: Callable[..., None], *arguments: Any) -> None:
        """Run `deed` when the client can read, after the input that already waits."""
        if connection.is_lost:
            return
        is_first = not connection.incoming
        if is_first and self._readable_at() <= self._world.now:
            deed(*arguments)
            return
        connection.incoming.append((deed, arguments))
        if is_first:
            self._world.at(self._readable_at(), self._read, connection)

    def _read(self, connection: _Connection) -> None:
        if self._process.later(self._readable_at, self._read, connection):
            return
        while connection.incoming and not connection.is_lost:
            deed, arguments = connection.incoming.popleft()
            deed(*arguments)

    def _take(self, call: _Call, message: bytes) -> None:
        if self._calls.get(call.number) is call:
            self._core.now = self._process.clock()
            self._core.take_message(call.number, message)
            self._settle()

    def _end(self, call: _Call, result: bytes | Status | None) -> None:
        if self._calls.get(call.number) is not call:
            return
        connection = call.connection
        machine = connection.machine
        if result is REFUSED and machine.edge.is_closed and not machine.is_dead:
            self._go_away(connection)
            self._finish(call, End(Code.UNAVAILABLE, "the server refused the call", True))
        elif result is REFUSED or (result is None and self._breaks(connection)):
            self._lose(connection, "connection reset by peer")
        elif result is None:
            code = self._random.choice([Code.UNAVAILABLE, Code.INTERNAL])
            self._finish(call, End(code, "the server reset the call"))
        elif isinstance(result, bytes):
            self._take(call, result)
            self._finish(call, End(Code.OK, ""))
        else:
            self._finish(call, End(result.code, result.text))

    def _breaks(self, connection: _Connection) -> bool:
        machine = connection.machine
        is_gone = machine.incarnation != connection.incarnation or machine.is_dead
        return is_gone or self._random.random() < _BREAK_CHANCE

    def _finish(self, call: _Call, end: End) -> None:
        if self._calls.pop(call.number, None) is not None:
            del call.connection.calls[call.number]
            self._core.now = self._process.clock()
            self._core.take_end(call.number, end)
            self._settle()

    def _reset(self, connection: _Connection) -> None:
        self._lose(connection, "connection reset by peer")

    def _go_away(self, connection: _Connection) -> None:
        """Start no more calls on a connection; its open calls continue."""
        if self._current.get(connection.endpoint) is connection:
            del self._current[connection.endpoint]
            self._core.now = self._process.clock()
            self._core.note_disconnected(connection.endpoint, "the server is going away")

    def _lose(self, connection: _Connection, reason: str) -> None:
        if connection.is_lost:
            return
        connection.is_lost = True
        self.lost += 1
        self._core.now = self._process.clock()
        if self._current.get(connection.endpoint) is connection:
            del self._current[connection.endpoint]
            self._core.note_disconnected(connection.endpoint, reason)
        calls = list(connection.calls.values())
        connection.calls.clear()
        for call in calls:
            del self._calls[call.number]
            self._hang_up(call)
        for call in calls:
            self._core.take_end(call.number, End(Code.UNAVAILABLE, reason))
        self._settle()
