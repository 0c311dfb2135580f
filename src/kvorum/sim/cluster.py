"""A cluster of machines, the network between them, and how clients reach them.

After every turn of a member, the cluster also checks it from outside for states that no member may
ever be in.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import CompactionRequest
from kvorum.member.member import Member
from kvorum.network.edge.interface import EdgeEventKind, Metadata
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.member import member_config
from kvorum.raft.log import RaftLog
from kvorum.raft.messages import ConfState, Message, MessageType, Snapshot
from kvorum.raft.states import Role
from kvorum.server.peer.cluster.joining import Start
from kvorum.server.rpc.table import NUMBERS
from kvorum.sim.arrivals import REFUSED, Front
from kvorum.sim.auditor import Auditor
from kvorum.sim.directed import Director
from kvorum.sim.edge import CLIENT_DELAY, Answered
from kvorum.sim.entering import Entrance
from kvorum.sim.faults import Faults, without_faults
from kvorum.sim.history import History
from kvorum.sim.links import Links
from kvorum.sim.machine import Machine
from kvorum.sim.moments import Kind, State
from kvorum.sim.nemesis import DATABASE_FLIPS, Nemesis
from kvorum.sim.network import Network
from kvorum.sim.operators import Operator
from kvorum.sim.peers import FramedPeers, PlainPeers, receive
from kvorum.sim.trace import describe
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.membership.bootstrap import ClusterSettingsError, InitialCluster, initial_members
from kvorum.state.mvcc.hashes import HashRows
from kvorum.state.mvcc.store import Store

DIFFERS = "found data inconsistency with peers"
"""The log message of a member that stops because its hash differs from those of others."""
TOKEN_SECONDS = 300.0
ROUNDING_SECONDS = 0.01
"""By how much the clocks of members may fall short of the sum of their intervals."""
ONE_CONFIGURATION = "one configuration"
_HANG_UP_SECONDS = (0.0, 0.001, 0.005, 0.03, 0.2)
"""Average delays after which impatient clients hang up, in seconds."""


class Cluster:
    """Members, numbered from 1, with their machines and the faults that hit them."""

    __slots__ = (
        "_calls",
        "_clients",
        "_committed",
        "_configurations",
        "_directory",
        "_fickle",
        "_founder_ids",
        "_founders",
        "_hang_ups",
        "_hashes",
        "_is_strict",
        "_learners_max",
        "_numbers",
        "_options",
        "_quota_bytes",
        "_random",
        "_world",
        "auditor",
        "configurations_compared",
        "director",
        "faults",
        "history",
        "installing",
        "leader_ids",
        "leaders",
        "links",
        "machines",
        "members",
        "nemesis",
        "network",
        "operator",
        "proxies",
        "token_seconds",
    )

    def __init__(
        self,
        world: World,
        size: int,
        faults: Faults,
        directory: str,
        options: dict[str, object],
    ) -> None:
        self._world = world
        self._random: Random = world.stream("cluster")
        self._clients: Random = world.stream("connections")
        self._hang_ups: Random = world.stream("hang-ups")
        self._calls = 0
        # Calls whose clients are about to hang up.
        self._fickle: set[int] = set()
        self._quota_bytes = faults.quota_bytes
        self._is_strict = faults.strict_changes
        self._learners_max = faults.learners_at_once
        self.faults = faults
        self.history = History()
        self.network = Network(world, faults, self._deliver)
        self.links = Links(world, faults, self.network.is_cut) if faults.frames else None
        # The members that clients use: voters that have a machine.
        self.members = list(range(1, size + 1))
        # Which member led each term: the number of its machine, and its id.
        self.leaders: dict[int, int] = {}
        self.leader_ids: dict[int, int] = {}
        # For each committed entry, by index: its term, and the term of the member that first knew
        # of its commit.
        self._committed: dict[int, tuple[int, int]] = {}
        # Configurations by the index of the last applied entry, from the founders' own entries on.
        self._configurations: dict[int, ConfState] = {}
        # How often a change made the check compare raft's configuration with the applied one.
        self.configurations_compared = 0
        self._founders = size
        # Called after every turn of a member that installs a snapshot.
        self.installing: Callable[[Machine], None] | None = None
        # Compares members with the ledger in runs with users; None in other runs.
        self.auditor: Auditor | None = None
        self.token_seconds = TOKEN_SECONDS
        # Hashes from machines without damage, by revision, compaction and kind.
        self._hashes: dict[tuple[int, int, bool], int] = {}
        self._numbers: dict[int, int] = {}
        self._directory = directory
        self._options = options
        self.machines: dict[int, Machine] = {}
        # Proxies between clients and members; no machine has their numbers.
        self.proxies: dict[int, Front] = {}
        initial = {f"m{each}": (f"http://m{each}:2380",) for each in self.members}
        for number in self.members:
            machine = self._set_up(number, initial)
            founders = initial_members(initial, machine.config.initial_cluster_token)
            machine.initial_start = Start(None, founders)
        self.nemesis = Nemesis(world, faults, self.machines, self.network, self.links, self.leaders)
        ids = {each.id: int(each.name.removeprefix("m")) for each in founders}
        self._founder_ids = frozenset(ids)
        self.operator = Operator(world, self, faults, ids)
        self.director = Director(world, self, faults)

    def _set_up(self, number: int, initial_cluster: InitialCluster) -> Machine:
        """Make a machine with an empty disk."""
        world, faults = self._world, self.faults
        defaults = member_config(make_config({}), "/data/member")
        config = replace(
            defaults,
            name=f"m{number}",
            client_urls=(f"http://m{number}:2379",),
            quota_bytes=self._quota_bytes or defaults.quota_bytes,
            strict_reconfig=self._is_strict,
            learners_max=self._learners_max,
            initial_cluster=initial_cluster,
            **self._options,  # type: ignore[arg-type]
        )
        databases = Path(self._directory, f"m{number}")
        databases.mkdir()
        machine = Machine(world, self, number, config, faults, str(databases))
        if self.links is not None:
            machine.peers = FramedPeers(world, machine, self.links)
        else:
            machine.peers = PlainPeers(world, machine, self.network, self._find)
        self.machines[number] = machine
        return machine

    def add_machine(self, number: int, flags: InitialCluster, start: Start) -> Machine:
        """Set up an empty machine for an added member, with `flags` as its initial cluster."""
        machine = self._set_up(number, flags)
        machine.initial_start = start
        machine.is_existing = True
        return machine

    def remove_machine(self, machine: Machine) -> None:
        """Abandon a machine for good."""
        if self.links is not None:
            self.links.close(machine.peer_urls[0])
        machine.line("given up", Kind.GIVEN_UP)
        machine.end()
        del self.machines[machine.number]

    def start(self) -> None:
        """Start all members, and start to inject faults."""
        for machine in list(self.machines.values()):
            machine.start()
        self.nemesis.start()
        self.operator.start()
        self.director.start(self.nemesis.peace_at)

    def note_stop(self, machine: Machine) -> None:
        """Report to the nemesis a member that had to stop: its disk failed or is damaged."""
        self.nemesis.note_stop(machine)

    def admits(self, machine: Machine, start: Start, entrance: Entrance) -> bool:
        """Check where a process without a log wants to start; return whether it may."""
        return self.operator.admits(machine, start, entrance)

    def note_refusal(self, machine: Machine, error: ClusterSettingsError) -> None:
        """Report to the operator that a process without a log was refused, and ended."""
        self.operator.note_refusal(machine, error)

    def accounts_for(self, error: BaseException) -> bool:
        """Return whether a member had to stop because another one is damaged.

        A starting member compares hashes with the others, and cannot tell whose rows have changed.
        """
        return bool(self.nemesis.counts[DATABASE_FLIPS]) and DIFFERS in str(error)

    def stop_faults(self) -> None:
        """Stop injecting faults, and start every member that is down."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, "---", "faults end", Kind.FAULTS_END)
        self.faults = self.network.faults = without_faults()
        if self.links is not None:
            self.links.faults = self.faults
        for machine in self.machines.values():
            machine.faults = machine.edge.faults = self.faults
        self.director.stop(self.faults)
        self.nemesis.stop(self.faults)
        self.operator.stop(self.faults)

    @property
    def snapshots(self) -> int:
        """How many snapshots members have sent to other members."""
        return sum(machine.snapshots_sent for machine in self.machines.values())

    def standing(self) -> list[Machine]:
        """Return the machines of members; machines of removed members may exist as well."""
        return [self.machines[number] for number in self.members]

    def has_committed(self, log: RaftLog) -> bool:
        """Return whether a log has, on its disk, every entry that any member knew as committed."""
        first, last = log.first_index(), log.unstable.offset - 1
        return all(
            index <= last and (index < first or log.term(index) == term)
            for index, (term, _) in self._committed.items()
        )

    def fork(self) -> None:
        """Clear the record of commits and leaders: a new cluster is forced that lacks some."""
        for known in (
            self.leaders,
            self.leader_ids,
            self._committed,
            self._configurations,
            self._hashes,
        ):
            known.clear()

    # Messages between members.

    def _find(self, raft_id: int) -> Machine | None:
        number = self._numbers.get(raft_id)
        if number is None:
            for machine in self.machines.values():
                if machine.member is not None:
                    self._numbers[machine.member.id] = machine.number
            number = self._numbers.get(raft_id)
        return None if number is None else self.machines.get(number)

    def has_had(self, voters: list[int], learners: list[int]) -> bool:
        """Return whether a configuration ever had these members; founders come one by one."""
        known = ((list(each.voters), list(each.learners)) for each in self._configurations.values())
        return any((sorted(some), sorted(more)) == (voters, learners) for some, more in known) or (
            not learners and self._founder_ids.issuperset(voters)
        )

    def note_sent(self, sender: int, message: Message) -> None:
        """Trace a raft message that leaves a member, and perhaps answer it with a fault."""
        if self.links is not None:
            self.network.sent += 1
            if self._world.trace is not None:
                to = self._find(message.to)
                name = "?" if to is None else to.name
                self._world.trace.line(
                    self._world.now, f"m{sender}", f"> {name} {describe(message)}"
                )
        if (
            message.type == MessageType.VOTE_RESP
            and not message.reject
            and self._random.random() < self.faults.vote_crash_chance
        ):
            machine = self.machines[sender]
            # Mostly before the new leader has sent it anything.
            delay = 0.01 * self._random.random() ** 3
            self._world.after(delay, self.nemesis.crash_voter, machine)
        chance = self.faults.transfer_pause_chance
        if chance and message.type == MessageType.TIMEOUT_NOW and self._random.random() < chance:
            self.nemesis.pause_soon(self.machines[sender])

    def _deliver(self, sender: int, to: int, frame: bytes) -> None:
        if to in self.machines:
            receive(self.machines[to], sender, frame, self._world)

    # Calls of clients to members and proxies.

    def front(self, number: int) -> Front | None:
        """Return the process that answers clients under a number: a machine or a proxy."""
        return self.machines.get(number) or self.proxies.get(number)

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Callable[[bytes | Status | None], None],
        metadata: Metadata | None = None,
    ) -> int:
        """Send a request; `answered` gets the answer, or None if the connection broke."""
        call, answered = self.begin(member, answered)
        random, front = self._clients, self.front(member)
        delay = random.uniform(*CLIENT_DELAY)
        if random.random() < self.faults.connection_chance:
            self._world.after(delay, answered, None)
        elif front is None:
            self._world.after(delay, answered, REFUSED)
        else:
            self._world.after(
                delay,
                front.arrivals.serve,
                call,
                NUMBERS[path],
                payload,
                answered,
                metadata,
            )
        return call

    def begin(self, member: int, answered: Answered) -> tuple[int, Answered]:
        """Return the number of a new call, and the callback for its end."""
        self._calls += 1
        return self._calls, self._hanging_up(member, answered)

    def forget(self, call: int) -> None:
        """Note that a call has ended, or that its client hung up."""
        self._fickle.discard(call)

    def hang_up(self, member: int, call: int) -> None:
        """Abandon a call, or break off a stream."""
        self.forget(call)
        front = self.front(member)
        if front is not None:
            front.arrivals.hang_up(call)

    def _hanging_up(self, member: int, answered: Answered) -> Answered:
        """Return the callback for a new call's end; its client may hang up soon."""
        chance, random = self.faults.hang_up_chance, self._hang_ups
        if not chance or random.random() >= chance:
            return answered
        call = self._calls
        self._fickle.add(call)

        def ended(result: bytes | Status | None) -> None:
            self._fickle.discard(call)
            answered(result)

        def hang_up() -> None:
            if call in self._fickle:
                self.nemesis.counts["calls hung up"] += 1
                self.hang_up(member, call)
                answered(None)

        # Before the call arrives, while it waits for a turn, for others, for the disk; or hardly
        # ever.
        usual = random.choice(_HANG_UP_SECONDS)
        self._world.after(random.expovariate(1 / usual) if usual else 0.0, hang_up)
        return ended

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Callable[[bytes | Status | None], None],
        message: Callable[[bytes], None],
        metadata: Metadata | None = None,
    ) -> int:
        """Open a stream; `answered` gets its end, or None if the connection broke."""
        call, answered = self.begin(member, answered)
        front = self.front(member)
        if front is None:
            self._world.after(CLIENT_DELAY[1], answered, REFUSED)
            return call
        self._world.after(
            0.0,
            front.arrivals.open_stream,
            call,
            NUMBERS[path],
            answered,
            message,
            metadata,
        )
        return call

    def send(self, member: int, call: int, payload: bytes) -> None:
        """Send a message on a stream."""
        self._tell(member, EdgeEventKind.MESSAGE, call, payload)

    def half_close(self, member: int, call: int) -> None:
        """Half-close a stream: its client sends nothing more."""
        self._tell(member, EdgeEventKind.HALF_CLOSED, call, None)

    def _tell(self, member: int, kind: EdgeEventKind, call: int, detail: object) -> None:
        front = self.front(member)
        if front is not None:
            arrive = front.arrivals.stream_event
            self._world.after(CLIENT_DELAY[1], arrive, kind, call, detail)

    def stall(self, member: int, call: int, seconds: float) -> None:
        """Stop reading a stream for a while."""
        front = self.front(member)
        if front is not None:
            front.edge.stall(call)
            self._world.after(seconds, front.arrivals.unstall, call)

    def is_ready(self) -> bool:
        """Return True: the client may always send its next request."""
        return True

    def stays(self, name: str, member: int) -> bool:
        """Return whether a client keeps to its member although that was removed."""
        chance = self.faults.stays_chance
        if not chance or member in self.members or member not in self.machines:
            return False
        return self._world.stream(f"stays {name}").random() < chance

    # Checks for states that no member may ever be in.

    def note_turn(self, machine: Machine) -> None:
        """Check a member after its turn."""
        member = machine.member
        assert member is not None
        if self._world.trace is not None:
            self._world.trace.moments.state(
                machine.name, state_of(machine, member, self._world.now)
            )
        if member.boundary.counts:
            raise Violation(
                "nothing unforeseen happens", f"{machine.name} {member.boundary.counts}"
            )
        store = member.state.store
        if store.compacted_revision > self.history.compacted:
            self._check_compaction(machine, store)
        revision = store.revision
        if revision != machine.seen_revision:
            if revision < machine.seen_revision:
                raise Violation(
                    "revisions and terms never go back",
                    f"{machine.name} went from revision {machine.seen_revision} to {revision}",
                )
            first = machine.seen_revision + 1
            rows = member.state.backend.scan_rows(first << 32, (revision + 1 << 32) - 1, 1 << 30)
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
                    f"applied {member.state.applied} revision {revision}",
                )
        raft = member.replica.node.raft
        term = raft.term
        if term != machine.seen_term:
            if term < machine.seen_term:
                raise Violation(
                    "revisions and terms never go back",
                    f"{machine.name} went from term {machine.seen_term} to {term}",
                )
            machine.seen_term = term
        if member.state.alarms._raised:
            self._check_alarms(machine, member)
        if raft.log.committed > machine.seen_committed:
            self._check_log(machine, member)
        # This runs twice a turn: it calls checks only where something has changed.
        snapshot = raft.log.unstable.snapshot
        index = member.state.applied if snapshot is None else snapshot.index
        config = raft.tracker.config
        if index != machine.seen_configured or config is not machine.seen_configuration:
            self._check_configuration(machine, member, index, snapshot)
        if self.installing is not None and member.replica.installation is not None:
            self.installing(machine)
        # Amid a turn raft may have stepped down while its member does not know that yet.
        if member.is_leader and raft.role == Role.LEADER:
            if term not in self.leaders:
                self.leader_ids[term] = member.id
                self._check_leader(machine, member)
            known = self.leaders.setdefault(term, machine.number)
            if known != machine.number:
                raise Violation(
                    "one leader per term",
                    f"m{known} and {machine.name} lead term {term}",
                    f"m{known}",
                    machine.name,
                )
            self.nemesis.leads(machine, term, raft.log.committed, raft.log.last_index())
        self.director.note_turn(machine, member)
        if self.auditor is not None:
            self.auditor.note_turn(machine, member)

    def _check_alarms(self, machine: Machine, member: Member) -> None:
        accused = member.state.alarms.raised(AlarmType.CORRUPT)
        if accused and not self.nemesis.counts[DATABASE_FLIPS]:
            raise Violation("members are equal by HashKV", f"{machine.name} is told: {accused}")

    def _check_compaction(self, machine: Machine, store: Store) -> None:
        """Require that a client asked for the compaction, or that retention allows it."""
        history, config, now = self.history, machine.config, self._world.now
        revision = store.compacted_revision
        history.compacted = revision
        if any(
            isinstance(record.request, CompactionRequest) and record.request.revision == revision
            for record in history.records
        ):
            return
        age = now - history.first_seen.get(revision, 0.0)
        newer = max(history.revision, store.revision) - revision
        is_old = config.retention_seconds and age >= config.retention_seconds - ROUNDING_SECONDS
        is_far = config.retention_revisions and newer >= config.retention_revisions
        if not (is_old or is_far):
            raise Violation(
                "history is kept",
                f"{machine.name} is compacted at {revision}, which nobody asked for, "
                f"{newer} revisions ago and {age:.3f} s old",
            )

    def note_hash(self, machine: Machine, job: HashRows, value: int) -> None:
        """Require that a hash over a damaged row differs from the hash without the damage."""
        of = job.revision, job.compact_revision, job.is_compaction
        if not machine.disk.is_damaged:
            self._hashes[of] = value
            return
        row = machine.disk.damaged_row()
        if row is None or row in job.pending:
            return
        if job.compact_revision < row >> 32 <= job.revision and self._hashes.get(of) == value:
            raise Violation(
                "hashes see damage",
                f"{machine.name} has damaged row {row >> 32}, and the hash of the others at {of}",
            )
        self.nemesis.counts["damaged rows hashed"] += 1

    def _check_log(self, machine: Machine, member: Member) -> None:
        """Compare the entries that a member knows as committed with those of others."""
        log, committed = member.replica.node.raft.log, self._committed
        first = max(machine.seen_committed + 1, log.first_index())
        for index in range(first, member.committed + 1):
            term = log.term(index)
            known, _ = committed.setdefault(index, (term, member.term))
            if known != term:
                raise Violation(
                    "one log",
                    f"{machine.name} committed entry {index} of term {term}, which was committed "
                    f"as one of term {known}",
                )
        if self.auditor is not None:
            self.auditor.note_committed(log, member.committed)
        machine.seen_committed = member.committed

    def _check_configuration(
        self, machine: Machine, member: Member, index: int, snapshot: Snapshot | None
    ) -> None:
        """Require that raft uses the applied membership, and that members agree on it by entry.

        Between receiving and installing a snapshot, raft uses the snapshot's membership.
        """
        config = member.replica.node.raft.tracker.config
        if machine.disk.is_damaged or (snapshot is None and member.is_installing):
            return
        machine.seen_configured, machine.seen_configuration = index, config
        self.configurations_compared += 1
        expected = (member.conf_state if snapshot is None else snapshot.conf_state).normal()
        decides = config.conf_state()
        if decides != expected:
            has = "applied" if snapshot is None else f"was sent snapshot {index} with"
            raise Violation(
                ONE_CONFIGURATION,
                f"raft decides by {decides} at {machine.name}, which {has} {expected}",
            )
        if index < self._founders:
            return  # the founders know each other before they have applied anything
        known = self._configurations.setdefault(index, decides)
        if known != decides:
            raise Violation(
                ONE_CONFIGURATION,
                f"{machine.name} decides by {decides} at entry {index}, others by {known}",
            )

    def _check_leader(self, machine: Machine, member: Member) -> None:
        """Require that a new leader has every entry committed before its term."""
        log = member.replica.node.raft.log
        first, last = log.first_index(), log.last_index()
        for index, (term, known_in) in self._committed.items():
            if known_in < member.term and (
                index > last or (index >= first and log.term(index) != term)
            ):
                raise Violation(
                    "leaders have what is committed",
                    f"{machine.name} leads term {member.term} without entry {index} of term {term}",
                )


def state_of(machine: Machine, member: Member, now: float) -> State:
    """Return the state of a member that pictures show."""
    role = member.replica.node.raft.role
    if role == Role.LEADER and not member.is_leader:
        role = Role.CANDIDATE
    return State(
        now,
        machine.starts,
        role,
        member.term,
        member.is_learner,
        member.committed,
        member.state.applied,
        member.state.store.revision,
        member.replica.snapshots.index,
        member.is_installing,
    )
