"""How a machine's member exchanges messages with others: plainly, or by production's protocol.

Plain messages fare as badly as raft tolerates: lost, late, doubled, out of order. Snapshots and
requests go separately, whole or not at all. The protocol is production's `Peering` with its
transport, over connections of `kvorum.sim.links`.
"""

from collections.abc import Callable, Container, Iterable
from math import inf
from random import Random

from kvorum.member import peer_requests
from kvorum.member.member import Member
from kvorum.member.outbox import Question, SnapshotTransfer
from kvorum.member.waits import Answer, Steps
from kvorum.network.dialer.interface import DialEvent
from kvorum.network.edge.interface import Event, Headers
from kvorum.raft.wire import decode_message, encode_message
from kvorum.server.peer.cluster.answers import PEER
from kvorum.server.peer.cluster.joining import find_start
from kvorum.server.peer.cluster.peering import Peering, PeeringSettings
from kvorum.server.peer.transport.databases import OtherDatabaseError, check_database
from kvorum.sim.departures import Departures
from kvorum.sim.entering import Entrance
from kvorum.sim.links import Links
from kvorum.sim.machine import Machine
from kvorum.sim.moments import Kind
from kvorum.sim.network import Network
from kvorum.sim.surroundings import WithoutPort
from kvorum.sim.trace import describe
from kvorum.sim.world import World
from kvorum.storage.backend.copies import CopyError
from kvorum.storage.files.interface import read_file
from kvorum.storage.snap import ReceivedDatabase

SNAPSHOT_SECONDS = (0.01, 0.3)
SNAPSHOT_PIECES = 4
"""Each piece may be lost, and with it the whole snapshot."""

FIRST_CALL = 1 << 48
"""Requests of peers are numbered like calls, from here on; no edge counts so far."""

Find = Callable[[int], Machine | None]
"""Finds a machine by the id of its member; None if there is none."""


class PlainPeers(WithoutPort):
    """Carries messages, snapshots and requests of one machine through the network."""

    __slots__ = (
        "_arrived",
        "_asked",
        "_departures",
        "_find",
        "_generation",
        "_is_stopped",
        "_machine",
        "_network",
        "_random",
        "_world",
    )

    def __init__(self, world: World, machine: Machine, network: Network, find: Find) -> None:
        self._world = world
        self._machine = machine
        self._network = network
        self._find = find
        self._generation = 0
        # Arrivals from others since the last turn, as calls of the member.
        self._arrived: list[Callable[[Member], None]] = []
        self._departures = Departures()
        self._is_stopped = False
        self._asked = 0
        self._random: Random = world.stream(f"{machine.name}/peers")

    def begin(self, member: Member) -> None:
        """Report all peers as connected; plain messages do not show otherwise."""
        self._generation = member.state.cluster.generation
        member.replica.snapshots.takes_copies = self._takes_copies
        for each in member.state.cluster.members:
            member.note_connected(each.id, -inf)

    def _takes_copies(self, peer: int) -> bool:
        to = self._find(peer)
        own = self._machine.disk.environments.exports
        return own and to is not None and to.disk.environments.exports

    def enter(self) -> None:
        """Return None: the machine was set up with its place."""

    def crash(self, *, power_cut: bool) -> None:  # noqa: ARG002 (nothing is noticed late)
        """Drop arrivals that no turn has taken."""
        self._arrived = []
        self._departures = Departures()
        self._is_stopped = False

    def hand_in(self, call: Callable[[Member], None]) -> bool:
        """Queue a call of the member for its next turn; return whether it takes calls."""
        if self._machine.member is None or self._is_stopped:
            return False
        self._arrived.append(call)
        self._machine.request_turn()
        return True

    def stop(self) -> None:
        """As `Peering.stop`: drop all arrivals, and lose everything that the member sends."""
        self._is_stopped = True
        self._arrived = []

    def pass_time(self, _now: float) -> float:
        """Give the member the arrivals from others."""
        member = self._machine.member
        assert member is not None
        arrived, self._arrived = self._arrived, []
        for call in arrived:
            call(member)
        self._departures.note(member.replica.node.raft)
        return inf

    def deliver(self, _now: float) -> None:
        """Send the member's messages, snapshots and requests to its peers."""
        machine = self._machine
        member = machine.member
        assert member is not None
        machine.check_before_output()
        if member.state.cluster.generation != self._generation:
            self.begin(member)
        if self._is_stopped:
            member.out.take_messages()
            member.out.take_snapshots()
            member.out.take_questions()
            return
        for message in member.out.take_messages():
            self._departures.left(machine.name, message)
            machine.note_sent(message)
            machine.output()
            to = self._find(message.to)
            if to is not None:
                self._network.send(machine.number, to.number, message)
        for transfer in member.out.take_snapshots():
            machine.output()
            _sends(machine, transfer)
            self._send_snapshot(transfer, read_file(machine.files, transfer.path))
        for question in member.out.take_questions():
            machine.output()
            delay = self._random.uniform(*machine.faults.link_delay)
            self._world.after(delay, self._ask, machine.incarnation, question)

    # Snapshots.

    def _send_snapshot(self, transfer: SnapshotTransfer, image: bytes) -> None:
        machine = self._machine
        frame = encode_message(transfer.message)
        seconds = self._random.uniform(*SNAPSHOT_SECONDS)

        def arrive(incarnation: int) -> None:
            to = self._find(transfer.message.to)
            is_lost = self._random.random() < SNAPSHOT_PIECES * machine.faults.drop_chance
            has_arrived = (
                to is not None
                and not is_lost
                and not self._network.is_cut(machine.number, to.number)
                and receive_snapshot(to, machine.number, frame, image, is_copy=transfer.is_copy)
            )
            if incarnation == machine.incarnation:
                self.hand_in(
                    lambda member: member.report_snapshot(transfer, failed=not has_arrived)
                )

        self._world.after(seconds, arrive, machine.incarnation)

    # Requests to peers.

    def _ask(self, incarnation: int, question: Question) -> None:
        machine, network = self._machine, self._network

        def take(answer: Answer) -> None:
            if incarnation == machine.incarnation:
                self.hand_in(lambda member: member.take_answer(question.number, answer))

        to = self._find(question.peer)
        self._asked += 1
        call = FIRST_CALL * machine.number + self._asked
        is_lost = self._random.random() < machine.faults.drop_chance
        if (
            to is None
            or is_lost
            or network.is_cut(machine.number, to.number)
            or network.is_cut(to.number, machine.number)
            or to.paused_until > self._world.now
            or not _plain(to).hand_in(
                lambda member: member.start(call, PEER, _answer(member, question, take))
            )
        ):
            take(None)
            return
        asked, answering = to, to.incarnation

        def give_up() -> None:
            # A transport does not wait for ever either; a second answer is ignored.
            take(None)
            if asked.incarnation == answering:
                _plain(asked).hand_in(lambda member: member.cancel(call))

        self._world.after(machine.config.request_seconds_max, give_up)


def _answer(member: Member, question: Question, take: Callable[[Answer], None]) -> Steps:
    answered = yield from peer_requests.answer_request(
        member, question.path, question.body, dict(question.headers)
    )
    take(peer_requests.interpret_answer(question.path, answered.status, answered.body))
    return None


def receive(
    machine: Machine, sender: int, frame: bytes, world: World, incarnation: int | None = None
) -> None:
    """Deliver a message to a machine; drop it if it had to wait and the process has ended."""
    if machine.is_dead or incarnation not in (None, machine.incarnation):
        return
    if machine.deaf_until > world.now:
        arguments = machine, sender, frame, world, machine.incarnation
        world.at(machine.deaf_until, receive, *arguments)
        return
    message = decode_message(frame)
    if world.trace is not None:
        machine.line(f"< m{sender} {describe(message)}")
    _plain(machine).hand_in(lambda member: member.receive(message))


def receive_snapshot(
    machine: Machine, sender: int, frame: bytes, image: bytes, *, is_copy: bool
) -> bool:
    """Deliver a snapshot and its file to a machine; return whether it arrived."""
    if machine.is_dead:
        return False
    message = decode_message(frame)
    snapshot = message.snapshot
    assert snapshot is not None
    machine.line(f"< m{sender} {describe(message)} with {len(image)} bytes")
    is_received = True

    directory = f"{machine.config.directory}/snap"

    def keep() -> None:
        nonlocal is_received
        try:
            received = ReceivedDatabase(machine.files, directory, snapshot.index)
            received.write(image)
            check_database(machine.files, received, snapshot, None, is_copy=is_copy)
            received.finish()
        except (OSError, CopyError, OtherDatabaseError) as error:
            # The sender learns of the failure; this member keeps its state.
            machine.line(f"cannot keep the snapshot: {error}")
            is_received = False

    machine.run_guarded(keep)
    return is_received and _plain(machine).hand_in(lambda member: member.receive(message))


def _sends(machine: Machine, transfer: SnapshotTransfer) -> None:
    machine.snapshots_sent += 1
    machine.line(f"sends {describe(transfer.message)}", Kind.SNAPSHOT_SENT)


def _plain(machine: Machine) -> PlainPeers:
    assert isinstance(machine.peers, PlainPeers)
    return machine.peers


class FramedPeers:
    """Carries everything over the machine's port, by production's peering."""

    __slots__ = ("_departures", "_machine", "_peering", "_port", "_random")

    def __init__(self, world: World, machine: Machine, links: Links) -> None:
        self._machine = machine
        self._port = links.port(machine, machine.peer_urls[0])
        self._random: Random = world.stream(f"{machine.name}/peers")
        self._peering: Peering | None = None
        self._departures = Departures()

    def begin(self, member: Member) -> None:
        """Connect a process that has started."""
        machine, port = self._machine, self._port
        settings = PeeringSettings(peer_urls=machine.peer_urls, known=machine.known)
        self._peering = Peering(member, port.edge, port.dialer, settings, machine.logs)

    def enter(self) -> Entrance:
        """Return the search of a process without a log for its place, which asks other members."""
        machine, config = self._machine, self._machine.config
        steps = find_start(
            config.initial_cluster,
            config.name,
            machine.peer_urls,
            config.initial_cluster_token,
            config.server_version,
            is_existing=machine.is_existing,
        )
        return Entrance(self._port, steps, machine.output, machine.now)

    def crash(self, *, power_cut: bool) -> None:
        """Break the connections of a process that ended."""
        self._peering = None
        self._departures = Departures()
        self._port.crash(self._random, power_cut=power_cut)

    def poll(self) -> list[DialEvent]:
        """Return the events of requests to others."""
        return self._port.dialer.poll()

    def take_events(self) -> list[Event]:
        """Return the events of requests from others."""
        return self._port.take_events()

    @property
    def _running(self) -> Peering:
        assert self._peering is not None, f"{self._machine.name} has no process"
        return self._peering

    @property
    def open(self) -> Container[int]:
        """As `Peering.open`."""
        return self._running.open

    @property
    def foreign_cluster(self) -> int:
        """As `Peering.foreign_cluster`."""
        return self._running.foreign_cluster

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """As `Peering.open_request`."""
        self._running.open_request(call, method, target, headers, now)

    def handle(self, kind: int, call: int, detail: object, now: float) -> None:
        """As `Peering.handle`."""
        self._running.handle(kind, call, detail, now)

    def take_dialed(self, events: Iterable[DialEvent], now: float) -> None:
        """As `Peering.take_dialed`."""
        self._running.take_dialed(events, now)

    def pass_time(self, now: float) -> float:
        """As `Peering.pass_time`."""
        moment = self._running.pass_time(now)
        assert self._machine.member is not None
        self._departures.note(self._machine.member.replica.node.raft)
        return moment

    def stop(self) -> None:
        """As `Peering.stop`."""
        self._running.stop()

    def deliver(self, now: float) -> None:
        """Send the member's messages, snapshots and requests to its peers."""
        machine = self._machine
        assert machine.member is not None
        out = machine.member.out
        machine.check_before_output()
        for message in out.messages:
            self._departures.left(machine.name, message)
            machine.note_sent(message)
        if out.messages:
            machine.output()
        for transfer in out.snapshots:
            _sends(machine, transfer)
        self._running.deliver(now)
