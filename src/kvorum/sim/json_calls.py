"""Clients that speak JSON: their calls are HTTP requests below `/v3/`, some of them WebSockets.

A body comes in one to three pieces, at once or one after the other, and its client may break off in
the middle of it. A bidirectional stream has a body that stays open. RPCs without a route go over
gRPC. `kvorum.sim.exchanges` reads the answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from kvorum.api.errors import Status
from kvorum.network.edge.interface import EdgeEventKind, Headers, Metadata
from kvorum.sim.arrivals import REFUSED
from kvorum.sim.cluster import Cluster
from kvorum.sim.edge import CLIENT_DELAY, Answered
from kvorum.sim.exchanges import ROUTES, SOCKET_KEY, Exchange, Route, SocketExchange, written
from kvorum.sim.machine import Machine
from kvorum.sim.world import World

CHANCE = 0.25
_CUTS = (0, 0, 1, 2)
"""In how many places a client cuts a body or a frame."""
_GAPS = (0.0, 0.0, 0.0, 0.001, 0.05)
"""Seconds until the next piece of a body."""
_OLD_CHANCE = 0.05
"""The chance that a request uses the old name of the routes."""
_MORE_CHANCE = 0.1
"""The chance that a body goes on after its value; no member reads the rest."""
_MORE = (b"\n", b" {}", b" and more", b'{"key":')
_CLOSE_CHANCE = 0.2
"""The chance that the client of a bidirectional stream closes its side after a message."""
_SECONDS = (0.05, 0.5, 2.0, 3600.0)
"""Deadlines of calls, in seconds; `_STREAM_SECONDS` has those of streams."""
_STREAM_SECONDS = (0.5, 2.0, 3600.0)

Event = tuple[EdgeEventKind, bytes | None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Dialects:
    """How the clients of a run call members, where some clients speak JSON."""

    share: float
    """The share of clients that speak JSON."""
    socket_share: float
    """The share of those clients that use WebSockets."""
    leader_share: float
    """The share of the other JSON clients that members without a leader must refuse."""
    deadline_chance: float
    """The chance that a call has a deadline, while there are faults."""


def draw_dialects(random: Random) -> Dialects | None:
    """Return how clients speak; None, in most runs, if all of them speak gRPC."""
    if random.random() >= CHANCE:
        return None
    return Dialects(
        share=random.choice([0.3, 0.6, 1.0]),
        socket_share=random.choice([0.0, 0.2, 0.5]),
        leader_share=random.choice([0.0, 0.3]),
        deadline_chance=random.choice([0.0, 0.05, 0.2]),
    )


class _Sending:
    """A request without an answer, and the state of its sending."""

    __slots__ = ("call", "exchange", "is_closed", "machine", "until", "waiting")

    def __init__(self, call: int, machine: Machine, until: float) -> None:
        self.call = call
        self.machine = machine
        self.exchange: Exchange
        # When its last piece arrives: pieces keep their order.
        self.until = until
        self.is_closed = False
        # Messages to send once the WebSocket is open.
        self.waiting: list[bytes] = []


class JsonCalls:
    """The transport of one client that speaks JSON."""

    __slots__ = (
        "_by_grpc",
        "_cluster",
        "_dialects",
        "_has_sockets",
        "_name",
        "_open",
        "_random",
        "_requires_leader",
        "_world",
        "calls",
    )

    def __init__(self, world: World, cluster: Cluster, dialects: Dialects, name: str) -> None:
        self._world = world
        self._cluster = cluster
        self._dialects = dialects
        self._name = name
        self._random: Random = world.stream(f"json {name}")
        self._has_sockets = self._random.random() < dialects.socket_share
        self._requires_leader = self._random.random() < dialects.leader_share
        self._open: dict[int, _Sending] = {}
        # Streams of RPCs without a route.
        self._by_grpc: set[int] = set()
        # How many calls this client has made.
        self.calls = 0

    @property
    def members(self) -> Sequence[int]:
        """The members that clients can ask."""
        return self._cluster.members

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Answered,
        metadata: Metadata | None = None,
    ) -> int:
        """Send a request, like `Cluster.call`."""
        if path not in ROUTES:
            return self._cluster.call(member, path, payload, answered, metadata)
        call = self._begin(member, ROUTES[path], answered, None, metadata)
        self.send(member, call, payload)
        return call

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Answered,
        message: Callable[[bytes], None],
        metadata: Metadata | None = None,
    ) -> int:
        """Start a request whose answer comes line by line, like `Cluster.open_stream`."""
        if path not in ROUTES:
            call = self._cluster.open_stream(member, path, answered, message, metadata)
            self._by_grpc.add(call)
            return call
        return self._begin(member, ROUTES[path], answered, message, metadata)

    def send(self, member: int, call: int, payload: bytes) -> None:
        """Send a message: the whole body, or one value of it where streams go both ways."""
        sending = self._open.get(call)
        if call in self._by_grpc:
            self._cluster.send(member, call, payload)
        if sending is None or sending.is_closed:
            return
        random, exchange, route = self._random, sending.exchange, sending.exchange.route
        text = written(random, route, payload)
        if isinstance(exchange, SocketExchange):
            sending.waiting.append(text)
            self._send_frames(sending)
            return
        is_one = not route.is_both_ways
        if is_one and random.random() < _MORE_CHANCE:
            text += random.choice(_MORE)
        events: list[Event] = [(EdgeEventKind.MESSAGE, piece) for piece in self._pieces(text)]
        if is_one or random.random() < _CLOSE_CHANCE:
            sending.is_closed = True
            events.append((EdgeEventKind.HALF_CLOSED, None))
        if is_one and random.random() < self._cluster.faults.connection_chance:
            # The connection breaks somewhere on the way.
            events[random.randrange(len(events)) :] = [(EdgeEventKind.ENDED, None)]
        self._send(sending, events)

    def hang_up(self, member: int, call: int) -> None:
        """Abandon a call, or break off a stream; a WebSocket may be closed instead."""
        sending = self._open.pop(call, None)
        exchange = None if sending is None else sending.exchange
        if (
            sending is not None
            and isinstance(exchange, SocketExchange)
            and exchange.is_accepted
            and self._random.random() < 0.5
        ):
            self._cluster.forget(call)
            self._send(sending, [(EdgeEventKind.MESSAGE, exchange.leave())])
        else:
            self._cluster.hang_up(member, call)

    def stall(self, member: int, call: int, seconds: float) -> None:
        """Stop reading a stream for a while."""
        self._cluster.stall(member, call, seconds)

    def is_ready(self) -> bool:
        """Return True: the client may always send its next request."""
        return True

    def stays(self, name: str, member: int) -> bool:
        """Return whether a client keeps to its member although that was removed."""
        return self._cluster.stays(name, member)

    # Sending.

    def _begin(
        self,
        member: int,
        route: Route,
        answered: Answered,
        message: Callable[[bytes], None] | None,
        metadata: Metadata | None,
    ) -> int:
        """Send the head of a request."""
        world, random, cluster = self._world, self._random, self._cluster
        self.calls += 1

        def ended(result: bytes | Status | None) -> None:
            self._open.pop(call, None)
            answered(result)

        def accepted() -> None:
            if call in self._open:
                self._send_frames(self._open[call])

        call, told = cluster.begin(member, ended)
        arrival = world.now + random.uniform(*CLIENT_DELAY)
        machine = cluster.machines.get(member)
        if machine is None:
            world.at(arrival, told, REFUSED)
            return call
        if self._has_sockets:
            exchange: Exchange = SocketExchange(self._name, route, told, message, accepted)
            headers = _socket_headers(random, metadata)
        else:
            exchange = Exchange(self._name, route, told, message)
            headers = self._headers(route, metadata)
        target = random.choice(route.targets)
        if random.random() < _OLD_CHANCE:
            target = target.replace("/v3/", "/v3beta/", 1)
        sending = self._open[call] = _Sending(call, machine, arrival)
        sending.exchange = exchange
        world.at(
            arrival,
            machine.arrivals.open_http,
            call,
            target,
            headers,
            exchange.take_end,
            exchange.take_piece,
        )
        return call

    def _headers(self, route: Route, metadata: Metadata | None) -> Headers:
        headers = [("content-type", "application/json"), ("accept", "*/*")]
        for key, value in (metadata or {}).items():
            name = key if key == "authorization" else f"grpc-metadata-{key}"
            headers.append((name, value.decode()))
        if self._requires_leader:
            headers.append(("grpc-metadata-hasleader", "true"))
        is_early = self._world.now < self._cluster.nemesis.peace_at
        if is_early and self._random.random() < self._dialects.deadline_chance:
            seconds = self._random.choice(_STREAM_SECONDS if route.is_stream else _SECONDS)
            headers.append(("grpc-timeout", f"{seconds * 1000:.0f}m"))
        return headers

    def _pieces(self, text: bytes) -> list[bytes]:
        """Return a text in one to three pieces."""
        cuts = sorted(self._random.randint(0, len(text)) for _ in range(self._random.choice(_CUTS)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
        return [piece for piece in pieces if piece]

    def _send_frames(self, sending: _Sending) -> None:
        exchange = sending.exchange
        assert isinstance(exchange, SocketExchange)
        if exchange.is_accepted:
            waiting, sending.waiting = sending.waiting, []
            for text in waiting:
                pieces = self._pieces(exchange.frame(text))
                self._send(sending, [(EdgeEventKind.MESSAGE, piece) for piece in pieces])

    def _send(self, sending: _Sending, events: list[Event]) -> None:
        """Let events of a request arrive at the member, one after the other."""
        world, random = self._world, self._random
        sending.until = max(sending.until, world.now + random.uniform(*CLIENT_DELAY))
        for kind, detail in events:
            world.at(sending.until, self._arrive, sending, kind, detail)
            sending.until += random.choice(_GAPS)

    def _arrive(self, sending: _Sending, kind: EdgeEventKind, detail: bytes | None) -> None:
        machine, call = sending.machine, sending.call
        if machine.later(self._arrive, sending, kind, detail):
            return
        if kind is not EdgeEventKind.ENDED:
            machine.arrivals.stream_event(kind, call, detail)
        elif machine.edge.is_open(call):
            machine.arrivals.hang_up(call)
            sending.exchange.take_end(None)


def _socket_headers(random: Random, metadata: Metadata | None) -> Headers:
    """Return the headers of a handshake; browsers can show a token in the same ways."""
    headers = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", SOCKET_KEY),
    ]
    for value in (metadata or {}).values():
        token = value.decode().removeprefix("Bearer ")
        shown = [("sec-websocket-protocol", f"Bearer, {token}"), ("cookie", f"token={token}")]
        headers.append(random.choice(shown))
    return headers
