"""A cluster of machines, the network between them, and how clients reach them.

This is also where members are looked at: after every turn, from outside, for what no member may
ever show.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from kvorum.api.errors import Status
from kvorum.edge.interface import EventKind
from kvorum.member.config import MemberConfig
from kvorum.member.member import Member
from kvorum.member.outbox import SnapshotTransfer
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message
from kvorum.rpc.services import Services
from sim.edge import CLIENT_DELAY, SimulatedEdge
from sim.faults import Faults, without_faults
from sim.history import History
from sim.machine import Front, Machine
from sim.nemesis import Nemesis
from sim.network import Network
from sim.violation import Violation
from sim.world import World

METHOD_NUMBERS = {path: number for number, (path, _) in enumerate(Services.METHODS)}
SNAPSHOT_SECONDS = (0.01, 0.3)


def services(member: Member, edge: SimulatedEdge) -> Front:
    """Return what stands between a member and its clients in production."""
    return Services(member, edge)


class Cluster:
    """Members, numbered from 1, and their world."""

    __slots__ = (
        "_calls",
        "_clients",
        "_numbers",
        "_random",
        "_world",
        "faults",
        "history",
        "leaders",
        "machines",
        "members",
        "nemesis",
        "network",
        "snapshots",
    )

    def __init__(
        self,
        world: World,
        size: int,
        faults: Faults,
        directory: str,
        options: dict[str, object],
        make_front: Callable[[Member, SimulatedEdge], Front] = services,
    ) -> None:
        self._world = world
        self._random: Random = world.stream("cluster")
        self._clients: Random = world.stream("connections")
        self._calls = 0
        self.faults = faults
        self.history = History()
        self.network = Network(world, faults, self._deliver)
        self.members: Sequence[int] = range(1, size + 1)
        # Who led each term, by raft's own ids.
        self.leaders: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self.snapshots = 0
        initial = {f"m{each}": (f"http://m{each}:2380",) for each in self.members}
        self.machines: dict[int, Machine] = {}
        for number in self.members:
            config = MemberConfig(
                name=f"m{number}",
                directory="/data/member",
                initial_cluster=initial,
                client_urls=(f"http://m{number}:2379",),
                **options,  # type: ignore[arg-type]
            )
            databases = Path(directory, f"m{number}")
            databases.mkdir()
            self.machines[number] = Machine(
                world, self, number, config, faults, str(databases), make_front
            )
        self.nemesis = Nemesis(world, faults, self.machines, self.network, self.leaders)

    def start(self) -> None:
        """Start all members, and let things go wrong."""
        for machine in self.machines.values():
            machine.files.make_directory("/data")
            machine.files.sync_directory("/")
            machine.start()
        self.nemesis.start()

    def stopped(self, machine: Machine) -> None:
        """Note that a member stopped itself, and had to: its disk failed or is damaged."""
        self.nemesis.stopped(machine)

    def stop_faults(self) -> None:
        """Let nothing go wrong any more, and start whoever is down."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, "---", "faults end")
        self.faults = self.network.faults = without_faults()
        for machine in self.machines.values():
            machine.faults = machine.edge.faults = self.faults
        self.nemesis.stop(self.faults)

    # What passes between members.

    def _number_of(self, raft_id: int) -> int | None:
        number = self._numbers.get(raft_id)
        if number is None:
            for machine in self.machines.values():
                if machine.member is not None:
                    self._numbers[machine.member.id] = machine.number
            number = self._numbers.get(raft_id)
        return number

    def carry(self, sender: int, message: Message) -> None:
        """Bring a raft message to the member it is for, if it can be."""
        to = self._number_of(message.to)
        if to is not None:
            self.network.send(sender, to, message)
        if (
            message.type == MessageType.VOTE_RESP
            and not message.reject
            and self._random.random() < self.faults.vote_crash_chance
        ):
            machine = self.machines[sender]
            delay = self._random.uniform(0.0, 0.01)
            self._world.after(delay, self.nemesis.crash_voter, machine)

    def _deliver(self, sender: int, to: int, frame: bytes) -> None:
        self.machines[to].receive(sender, frame)

    def carry_snapshot(self, sender: int, transfer: SnapshotTransfer, image: bytes) -> None:
        """Bring a snapshot and its file to the member it is for, if it can be."""
        to = self._number_of(transfer.message.to)
        frame = encode_message(transfer.message)
        incarnation = self.machines[sender].incarnation
        self._world.after(
            self._random.uniform(*SNAPSHOT_SECONDS),
            self._deliver_snapshot,
            sender,
            incarnation,
            to,
            frame,
            image,
            transfer,
        )

    def _deliver_snapshot(
        self,
        sender: int,
        incarnation: int,
        to: int | None,
        frame: bytes,
        image: bytes,
        transfer: SnapshotTransfer,
    ) -> None:
        self.snapshots += 1
        arrived = (
            to is not None
            and not self.network.is_cut(sender, to)
            and self._random.random() >= self.faults.drop_chance
            and self.machines[to].receive_snapshot(sender, frame, image)
        )
        self.machines[sender].snapshot_sent(incarnation, transfer, failed=not arrived)

    def ask(self, sender: int, number: int, peer: int, path: str, body: bytes) -> None:
        """Ask another member something that is no raft message."""
        to = self._number_of(peer)
        delay = self._random.uniform(*self.faults.link_delay)
        incarnation = self.machines[sender].incarnation
        self._world.after(delay, self._asked, sender, incarnation, number, to, path, body)

    def _asked(
        self, sender: int, incarnation: int, number: int, to: int | None, path: str, body: bytes
    ) -> None:
        machine = self.machines[sender]
        if (
            to is None
            or self.network.is_cut(sender, to)
            or self.network.is_cut(to, sender)
            or self._random.random() < self.faults.drop_chance
        ):
            machine.told(incarnation, number, None)
            return
        self.machines[to].asked(
            path, body, lambda answer: machine.told(incarnation, number, answer)
        )

    # How clients reach members.

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Callable[[bytes | Status | None], None],
    ) -> int:
        """Send a request; the answer, or None if the connection broke, is told later."""
        self._calls += 1
        random = self._clients
        delay = random.uniform(*CLIENT_DELAY)
        if random.random() < self.faults.connection_chance:
            self._world.after(delay, answered, None)
        else:
            self._world.after(
                delay,
                self.machines[member].serve,
                self._calls,
                METHOD_NUMBERS[path],
                payload,
                answered,
            )
        return self._calls

    def hang_up(self, member: int, call: int) -> None:
        """Wait no longer for an answer, or break a stream off."""
        self.machines[member].hang_up(call)

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Callable[[bytes | Status | None], None],
        message: Callable[[bytes], None],
    ) -> int:
        """Open a stream; its end is told, None if the connection broke."""
        self._calls += 1
        self._world.after(
            0.0,
            self.machines[member].open_stream,
            self._calls,
            METHOD_NUMBERS[path],
            answered,
            message,
        )
        return self._calls

    def send(self, member: int, call: int, payload: bytes) -> None:
        """Send a message on a stream."""
        self._world.after(
            CLIENT_DELAY[1], self.machines[member].stream_event, EventKind.MESSAGE, call, payload
        )

    def stall(self, member: int, call: int, seconds: float) -> None:
        """Take nothing from a stream for a while."""
        machine = self.machines[member]
        machine.edge.stall(call)
        self._world.after(seconds, machine.unstall, call)

    # What no member may ever show.

    def turned(self, machine: Machine) -> None:
        """Look at a member after its turn."""
        member = machine.member
        assert member is not None
        store = member.store
        revision = store.revision
        if revision != machine.seen_revision:
            if revision < machine.seen_revision:
                raise Violation(
                    "revisions and terms never go back",
                    f"{machine.name} went from revision {machine.seen_revision} to {revision}",
                )
            first = machine.seen_revision + 1
            rows = member.backend.scan_rows(first << 32, (revision + 1 << 32) - 1, 1 << 30)
            self.history.observe(
                self._world.now,
                machine.name,
                max(2, first),
                revision,
                store.compacted_revision,
                rows,
            )
            machine.seen_revision = revision
            if self._world.trace is not None:
                self._world.trace.line(
                    self._world.now,
                    machine.name,
                    f"applied {member.applied} revision {revision}",
                )
        term = member.term
        if term != machine.seen_term:
            if term < machine.seen_term:
                raise Violation(
                    "revisions and terms never go back",
                    f"{machine.name} went from term {machine.seen_term} to {term}",
                )
            machine.seen_term = term
        if member.is_leader:
            known = self.leaders.setdefault(term, machine.number)
            if known != machine.number:
                raise Violation(
                    "one leader per term", f"m{known} and {machine.name} lead term {term}"
                )
