"""Connections between members: the peer protocol's bytes, in order, late, and broken.

Every machine has a port: an edge for the requests of others, and a dialer for its own. A request is
a connection with two flows of pieces. A flow keeps its order, as TCP does: pieces are late, slow,
or wait while their direction is cut off or the receiver is paused. Waiting pieces are not lost
unless the connection breaks: because it is reset, because one end crashes, or because the protocol
itself cancels it. Both ends learn of that, each after some time.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from kvorum.api.errors import Code, Status
from kvorum.network.dialer.interface import WRITABLE_BYTES, DialEvent, DialEventKind
from kvorum.network.edge.interface import EdgeEventKind, Headers
from kvorum.sim.faults import Faults
from kvorum.sim.world import World

FIRST_CALL = 1 << 40
"""Calls of members are numbered from here on; the calls of clients stay below."""
PEER_LISTENER = 1
CONNECT_SECONDS_MAX = 1.5
FULL_BYTES = 1 << 30
"""A queue that counts as full reports this many bytes more than it holds."""
_CHECK_SECONDS = 0.05
_POWER_CUT_SECONDS = (0.2, 4.0)
"""How long others take to notice that a machine without power does not answer."""

PeerEvent = tuple[int, int, Any]
"""Kind, call and detail; the detail of HTTP_OPENED is listener, method, target and headers."""


class Host(Protocol):
    """The machine that a port belongs to."""

    number: int

    @property
    def paused_until(self) -> float:
        """When the pause ends, if the process is paused."""

    @property
    def member(self) -> object | None:
        """The process that listens at the port; None while there is none."""

    def note_peer_events(self) -> None:
        """Request a turn: something arrived."""


class Flow:
    """One direction of a connection."""

    __slots__ = (
        "_connection",
        "_deliver",
        "_held",
        "_last",
        "_links",
        "is_paused",
        "pending",
        "sender",
        "to",
    )

    def __init__(
        self,
        links: "Links",
        connection: "Connection",
        sender: Host,
        to: Host,
        deliver: Callable[["Connection", int, Any, int], None],
    ) -> None:
        self._links = links
        self._connection = connection
        self._deliver = deliver
        self.sender = sender
        self.to = to
        self.pending = 0
        self.is_paused = False
        self._last = 0.0
        # Pieces that arrived and cannot be delivered yet, in order.
        self._held: list[tuple[int, Any, int]] = []

    def push(self, kind: int, detail: Any, size: int = 0, *, joined: bool = False) -> None:
        """Send a piece after those on their way; `joined`: it arrives with the last one."""
        links = self._links
        world = links.world
        self.pending += size
        arrival = self._last if joined else max(self._last, world.now + links.delay())
        if links.faults.link_bytes_per_second:
            arrival += size / links.faults.link_bytes_per_second
        self._last = arrival
        links.busy_until = max(links.busy_until, arrival)
        world.at(arrival, self._arrive, kind, detail, size)

    def _arrive(self, kind: int, detail: Any, size: int) -> None:
        if self._connection.is_broken:
            return
        if self._held or self._is_blocked():
            self._held.append((kind, detail, size))
            if len(self._held) == 1:
                self._links.world.after(_CHECK_SECONDS, self.deliver_pending)
        else:
            self.pending -= size
            self._deliver(self._connection, kind, detail, size)

    def _is_blocked(self) -> bool:
        links = self._links
        return (
            self.is_paused
            or links.is_cut(self.sender.number, self.to.number)
            or self.to.paused_until > links.world.now
        )

    def deliver_pending(self) -> None:
        """Deliver the held pieces, once that is possible."""
        if not self._held or self._connection.is_broken:
            return
        if self._is_blocked():
            self._links.world.after(_CHECK_SECONDS, self.deliver_pending)
            return
        held, self._held = self._held, []
        for kind, detail, size in held:
            self.pending -= size
            self._deliver(self._connection, kind, detail, size)


class Connection:
    """One request between two ports, from its beginning to its end."""

    __slots__ = ("answer", "call", "client", "is_broken", "number", "request", "server")

    def __init__(self, links: "Links", client: "Port", server: "Port", number: int) -> None:
        self.client = client
        self.server = server
        self.number = number
        self.call = FIRST_CALL + number
        self.is_broken = False
        self.request = Flow(links, self, client.host, server.host, _take_request_piece)
        self.answer = Flow(links, self, server.host, client.host, _take_answer_piece)


def _take_request_piece(connection: Connection, kind: int, detail: Any, size: int) -> None:
    """Deliver a piece of a request to its server."""
    server, call = connection.server, connection.call
    if server.host.member is None:
        server.links.break_off(connection)
        return
    pending = connection.request.pending
    if pending + size >= WRITABLE_BYTES > pending:
        connection.answer.push(DialEventKind.WRITABLE, None)
    if kind == EdgeEventKind.HTTP_OPENED:
        server.calls[call] = connection
    elif call not in server.calls:
        return
    elif kind == EdgeEventKind.ENDED:
        del server.calls[call]
    server.events.append((kind, call, detail))
    server.host.note_peer_events()


def _take_answer_piece(connection: Connection, kind: int, detail: Any, _size: int) -> None:
    """Deliver a piece of an answer to its client."""
    client, number = connection.client, connection.number
    if number not in client.requests:
        return
    if kind in (DialEventKind.COMPLETED, DialEventKind.FAILED):
        del client.requests[number]
    client.dial_events.append(DialEvent(kind, number, detail))
    client.host.note_peer_events()


class Links:
    """All connections. `is_cut` says whether the link from one machine to another is cut."""

    __slots__ = (
        "_numbers",
        "_random",
        "busy_until",
        "faults",
        "is_cut",
        "ports",
        "world",
    )

    def __init__(self, world: World, faults: Faults, is_cut: Callable[[int, int], bool]) -> None:
        self.world = world
        self.faults = faults
        self.is_cut = is_cut
        self.ports: dict[str, Port] = {}
        self.busy_until = 0.0
        """When the last piece sent so far arrives, however slow its link was."""
        self._random: Random = world.stream("links")
        self._numbers = 0

    def port(self, host: Host, url: str) -> "Port":
        """Open the port of a machine at a URL."""
        port = Port(self, host)
        self.ports[url] = port
        return port

    def close(self, url: str) -> None:
        """Close a port for good: nothing listens there any more."""
        self.ports.pop(url).crash(self._random, power_cut=False)

    def delay(self) -> float:
        """Return how long the next piece takes, in seconds."""
        draw, faults = self._random.random, self.faults
        if draw() < faults.delay_chance:
            return draw()
        least, most = faults.link_delay
        return least + draw() * (most - least)

    def is_joined(self) -> bool:
        """Return whether pieces that are sent together arrive together."""
        return self._random.random() < 0.75

    def pieces(self, data: bytes) -> Sequence[bytes]:
        """Return data as it arrives: whole, or in two parts."""
        if len(data) > 1 and self._random.random() < 0.1:
            place = self._random.randrange(1, len(data))
            return data[:place], data[place:]
        return (data,)

    def open(
        self,
        client: "Port",
        url: str,
        head: tuple[str, str, Headers],
        body: bytes | None,
    ) -> int:
        """Start a request; return its number."""
        self._numbers += 1
        server = self.ports.get(url)
        one, other = client.host.number, 0 if server is None else server.host.number
        is_reachable = server is not None and not (
            self.is_cut(one, other) or self.is_cut(other, one)
        )
        if server is None or not is_reachable or server.host.member is None:
            connection = Connection(self, client, server or client, self._numbers)
            client.requests[connection.number] = connection
            if is_reachable:
                self.world.after(self.delay(), self._end, connection, DialEventKind.REFUSED)
            else:
                seconds = CONNECT_SECONDS_MAX
                self.world.after(seconds, self._end, connection, DialEventKind.FAILED)
            return connection.number
        connection = Connection(self, client, server, self._numbers)
        client.requests[connection.number] = connection
        connection.request.push(EdgeEventKind.HTTP_OPENED, (PEER_LISTENER, *head))
        if body is not None:
            joined = self.is_joined()
            if body:
                connection.request.push(EdgeEventKind.MESSAGE, body, len(body), joined=joined)
            connection.request.push(EdgeEventKind.HALF_CLOSED, None, joined=joined)
        return connection.number

    def probe_host(self, client: "Port", number: int) -> int:
        """Probe the machine that serves a request; return the number of the probe.

        The machine answers while its process is paused, too.
        """
        self._numbers += 1
        asked = client.requests.get(number)
        server = client if asked is None else asked.server
        one, other = client.host.number, server.host.number
        connection = Connection(self, client, server, self._numbers)
        client.requests[connection.number] = connection
        if self.is_cut(one, other) or self.is_cut(other, one):
            self.world.after(CONNECT_SECONDS_MAX, self._end, connection, DialEventKind.FAILED)
        else:
            is_there = server.host.member is not None
            kind = DialEventKind.COMPLETED if is_there else DialEventKind.REFUSED
            self.world.after(self.delay(), self._end, connection, kind)
        return connection.number

    def _end(self, connection: Connection, kind: DialEventKind) -> None:
        client = connection.client
        if client.requests.pop(connection.number, None) is not None:
            client.dial_events.append(DialEvent(kind, connection.number, "no connection"))
            client.host.note_peer_events()

    def break_off(self, connection: Connection, seconds: float | None = None) -> None:
        """Break a connection; its ends learn of it, each after some time."""
        if connection.is_broken:
            return
        connection.is_broken = True
        client, server = connection.client, connection.server
        if connection.number in client.requests:
            self.world.after(
                self.delay() if seconds is None else seconds, self._reset_client, connection
            )
        if connection.call in server.calls:
            self.world.after(
                self.delay() if seconds is None else seconds, self._reset_server, connection
            )

    def _reset_client(self, connection: Connection) -> None:
        client = connection.client
        if client.requests.pop(connection.number, None) is not None:
            client.dial_events.append(
                DialEvent(DialEventKind.FAILED, connection.number, "connection reset")
            )
            client.host.note_peer_events()

    def _reset_server(self, connection: Connection) -> None:
        server = connection.server
        if server.calls.pop(connection.call, None) is not None:
            server.events.append((EdgeEventKind.ENDED, connection.call, None))
            server.host.note_peer_events()

    def connections(self) -> list[Connection]:
        """Return the open connections, in the order in which they were opened."""
        found = {
            each.number: each
            for port in self.ports.values()
            for each in (*port.requests.values(), *port.calls.values())
        }
        return [found[number] for number in sorted(found)]

    def reset(self, random: Random) -> bool:
        """Break one connection, if there is any."""
        connections = self.connections()
        if connections:
            self.break_off(random.choice(connections))
        return bool(connections)


class Port:
    """The connections of a machine's process; a new process starts with none."""

    __slots__ = ("calls", "dial_events", "dialer", "edge", "events", "host", "links", "requests")

    def __init__(self, links: Links, host: Host) -> None:
        self.links = links
        self.host = host
        self.requests: dict[int, Connection] = {}
        self.calls: dict[int, Connection] = {}
        self.events: list[PeerEvent] = []
        self.dial_events: list[DialEvent] = []
        self.edge = PeerEdge(links, self)
        self.dialer = SimulatedDialer(links, self)

    def crash(self, random: Random, *, power_cut: bool) -> None:
        """Break all connections; after a power cut, others notice late."""
        connections = [*self.requests.values(), *self.calls.values()]
        self.requests.clear()
        self.calls.clear()
        self.events = []
        self.dial_events = []
        for connection in connections:
            seconds = random.uniform(*_POWER_CUT_SECONDS) if power_cut else None
            self.links.break_off(connection, seconds)

    def take_events(self) -> list[PeerEvent]:
        """Return the events that arrived for the edge."""
        taken, self.events = self.events, []
        return taken


class PeerEdge:
    """The part of an edge that answers requests of other members."""

    __slots__ = ("_links", "_port")

    def __init__(self, links: Links, port: Port) -> None:
        self._links = links
        self._port = port

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer a request; with body None, pieces and the end follow."""
        connection = self._port.calls.get(call)
        if connection is None:
            return
        lower = [(name.lower(), value) for name, value in headers]
        connection.answer.push(DialEventKind.RESPONDED, (status, lower))
        if body is not None:
            joined = self._links.is_joined()
            for piece in self._links.pieces(body) if body else ():
                connection.answer.push(DialEventKind.PIECE, piece, len(piece), joined=joined)
            del self._port.calls[call]
            connection.answer.push(DialEventKind.COMPLETED, None, joined=joined)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send pieces of answers."""
        for call, data in batch:
            connection = self._port.calls.get(call)
            if connection is not None:
                for piece in self._links.pieces(data):
                    connection.answer.push(DialEventKind.PIECE, piece, len(piece))

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:  # noqa: ARG002
        """End an answer, or break it off."""
        connection = self._port.calls.pop(call, None)
        if connection is not None:
            if status.code is Code.OK:
                connection.answer.push(DialEventKind.COMPLETED, None)
            else:
                connection.answer.push(DialEventKind.FAILED, status.text)

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes of an answer are on their way; far more if the queue is full."""
        connection = self._port.calls.get(call)
        pending = 0 if connection is None else connection.answer.pending
        is_full = self._links.faults.link_queue_bytes and (
            pending > self._links.faults.link_queue_bytes
        )
        return FULL_BYTES + pending if is_full else pending

    def peer(self, call: int) -> str:
        """Return the name of the machine that made a request."""
        connection = self._port.calls.get(call)
        return "" if connection is None else f"m{connection.request.sender.number}"

    def pause(self, call: int) -> None:
        """Read no more of a request's body."""
        connection = self._port.calls.get(call)
        if connection is not None:
            connection.request.is_paused = True

    def resume(self, call: int) -> None:
        """Read a request's body again."""
        connection = self._port.calls.get(call)
        if connection is not None:
            connection.request.is_paused = False
            connection.request.deliver_pending()


class SimulatedDialer:
    """Sends requests to other members."""

    __slots__ = ("_links", "_port")

    def __init__(self, links: Links, port: Port) -> None:
        self._links = links
        self._port = port

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        """Start a request; return its number."""
        lower = [(name.lower(), value) for name, value in headers]
        return self._links.open(self._port, url, (method, target, lower), body)

    def send(self, number: int, piece: bytes) -> None:
        """Send a piece of a request's body."""
        connection = self._port.requests.get(number)
        if connection is not None:
            for part in self._links.pieces(piece):
                connection.request.push(EdgeEventKind.MESSAGE, part, len(part))

    def finish(self, number: int) -> None:
        """End a request's body."""
        connection = self._port.requests.get(number)
        if connection is not None:
            connection.request.push(EdgeEventKind.HALF_CLOSED, None)

    def pending_bytes(self, number: int) -> int:
        """Return how many bytes of a request are on their way."""
        connection = self._port.requests.get(number)
        return 0 if connection is None else connection.request.pending

    def probe_host(self, number: int) -> int:
        """Probe the machine that serves a request."""
        return self._links.probe_host(self._port, number)

    def cancel(self, number: int) -> None:
        """Cancel a request."""
        connection = self._port.requests.pop(number, None)
        if connection is not None:
            connection.request.push(EdgeEventKind.ENDED, None)

    def poll(self) -> list[DialEvent]:
        """Return the events that arrived, in order."""
        taken, self._port.dial_events = self._port.dial_events, []
        return taken
