"""Clients that inspect the members: their status, whether they are equal, the data they hold.

They ask for status, hashes, snapshots, members, alarms and leases, and check each answer as far as
one client can. After the run they compare hashes with those of the history.
"""

from random import Random
from typing import NamedTuple

from kvorum.api.errors import NO_LEADER, Code, Status
from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    AuthStatusRequest,
    CompactionRequest,
    HashKVRequest,
    HashRequest,
    LeaseGrantRequest,
    LeaseLeasesRequest,
    LeaseTimeToLiveRequest,
    MemberListRequest,
    StatusRequest,
    StatusResponse,
)
from kvorum.sim.calls import Caller, Calls, PlannedRequest
from kvorum.sim.cluster import Cluster
from kvorum.sim.history import History, Record, Row
from kvorum.sim.images import GUARANTEE as SNAPSHOTS
from kvorum.sim.images import Blobs, check_content
from kvorum.sim.machine import Machine
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.mvcc.hashes import hash_rows

FIRST_NUMBER = 3000
GAP_SECONDS = 0.15
PATIENCE = (0.5, 3.0)
EXTENSION_SECONDS_MAX = 2
"""A new leader extends every lease by an election timeout, which is counted in whole seconds."""
SNAPSHOT_PATH = "/etcdserverpb.Maintenance/Snapshot"
STATUS = "status and members are told as they are"
HASHES = "members are equal by HashKV"
_KINDS = ("status", "hash", "hash all", "snapshot", "members", "lease", "other", "compact")
_WEIGHTS = (4.0, 4.0, 0.5, 1.5, 1.5, 1.0, 1.0, 2.5)


class Before(NamedTuple):
    """A machine's state when an inspector asked it."""

    machine: Machine
    incarnation: int
    applied: int
    revision: int
    """The last entry and the revision that its member had applied."""
    is_damaged: bool

    def is_the_same(self) -> bool:
        """Return whether the same process runs, with a disk that was never damaged."""
        machine = self.machine
        is_sound = not (self.is_damaged or machine.disk.is_damaged)
        return is_sound and machine.incarnation == self.incarnation


class Inspector:
    """One inspector."""

    __slots__ = (
        "_call",
        "_caller",
        "_calls",
        "_cluster",
        "_hashers",
        "_history",
        "_installing",
        "_random",
        "_statuses",
        "_world",
        "hashes",
        "is_stopped",
        "name",
        "snapshots",
    )

    def __init__(
        self, world: World, cluster: Cluster, calls: Calls, history: History, number: int
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._calls = calls
        self._history = history
        self.name = f"i{number}"
        self._random: Random = world.stream(f"inspector {number}")
        self._caller = Caller(world, calls, history, FIRST_NUMBER + number, self.name)
        # Callers for hashes at an installation: the second one has to wait for the first.
        self._hashers = [
            Caller(world, calls, history, FIRST_NUMBER + number, f"{self.name}{letter}")
            for letter in "ab"
        ]
        # The stream of a snapshot, and the member that sends it.
        self._call: tuple[int, int] | None = None
        # The last status of every process.
        self._statuses: dict[tuple[int, int], StatusResponse] = {}
        # The installation at which hashes were requested last.
        self._installing: tuple[int, int, int] = (0, 0, 0)
        self.hashes: list[Record] = []
        self.snapshots = 0
        self.is_stopped = False

    def start(self) -> None:
        """Send the first request soon, and ask for hashes at every installation."""
        self._cluster.installing = self.check_installation
        self._world.after(self._random.uniform(0.0, 1.0), self._next)

    def stop(self) -> None:
        """Send no more requests, and stop waiting for answers."""
        self.is_stopped = True
        for caller in (self._caller, *self._hashers):
            caller.abandon()
        if self._call is not None:
            (member, call), self._call = self._call, None
            self._calls.hang_up(member, call)

    def _later(self) -> None:
        self._world.after(self._random.expovariate(1 / GAP_SECONDS), self._next)

    def _next(self) -> None:
        if self.is_stopped:
            return
        kind = self._random.choices(_KINDS, _WEIGHTS)[0]
        member = self._random.choice(self._cluster.members)
        if member not in self._cluster.machines:
            self._later()
        elif kind == "snapshot":
            self._ask_for_snapshot(member)
        else:
            self._ask(self._caller, member, self._request(kind))

    def _request(self, kind: str) -> PlannedRequest:
        random, history = self._random, self._history
        if kind == "hash":
            revision = 0
            if random.random() < 0.5:
                revision = max(0, history.revision - random.choice([0, 2, 10]))
            return PlannedRequest("hash", HashKVRequest(revision=revision))
        if kind == "hash all":
            return PlannedRequest("hash all", HashRequest())
        if kind == "members":
            return PlannedRequest("members", MemberListRequest(linearizable=random.random() < 0.5))
        if kind == "compact" and history.revision > 1:
            revision = max(1, history.revision - random.choice([0, 5, 20]))
            return PlannedRequest("compact", CompactionRequest(revision=revision))
        if kind == "lease":
            granted = [
                record.response.ID
                for record in history.records
                if isinstance(record.request, LeaseGrantRequest) and record.is_answered
            ]
            if granted:
                lease = random.choice(granted[-5:])
                return PlannedRequest("ttl", LeaseTimeToLiveRequest(ID=lease, keys=True))
        if kind == "other":
            some = [AlarmRequest(), LeaseLeasesRequest(), AuthStatusRequest()]
            return PlannedRequest("other", random.choice(some))
        return PlannedRequest("status", StatusRequest())

    def _before(self, member: int) -> Before:
        machine = self._cluster.machines[member]
        applied = 0 if machine.member is None else machine.member.state.applied
        return Before(
            machine, machine.incarnation, applied, machine.seen_revision, machine.disk.is_damaged
        )

    def _ask(self, caller: Caller, member: int, asked: PlannedRequest) -> None:
        caller.member = member
        before = self._before(member)

        def answered(record: Record) -> None:
            if record.is_answered:
                self._check(record, before)
            if caller is self._caller:
                self._later()

        caller.ask(asked, self._random.uniform(*PATIENCE), answered)

    def check_installation(self, machine: Machine) -> None:
        """Ask a member for two hashes when it is about to install a snapshot."""
        member = machine.member
        assert member is not None
        of = machine.number, machine.incarnation, member.replica.snapshots.index
        if self.is_stopped or of == self._installing:
            return
        self._installing = of
        for caller in self._hashers:
            caller.abandon()
            self._ask(caller, machine.number, PlannedRequest("hash", HashKVRequest()))

    # Answers.

    def _raise_violation(self, guarantee: str, record: Record, text: str) -> None:
        raise Violation(guarantee, f"{record.kind} #{record.invoked} at m{record.member}: {text}")

    def _check(self, record: Record, before: Before) -> None:
        header, machine = record.response.header, before.machine
        if header.revision > self._history.revision:
            self._raise_violation(STATUS, record, f"revision {header.revision} is in the future")
        if isinstance(record.request, StatusRequest):
            self._check_status(record, record.response, machine, before)
        elif isinstance(record.request, HashKVRequest):
            if before.is_the_same():
                self.hashes.append(record)
        elif isinstance(record.request, MemberListRequest):
            # The cluster does not record the configurations of damaged machines.
            if before.is_the_same():
                self._check_members(record)
        elif isinstance(record.request, LeaseTimeToLiveRequest):
            told = record.response
            is_long = told.TTL - told.grantedTTL > EXTENSION_SECONDS_MAX
            if is_long or len(told.keys) != len(set(told.keys)):
                self._raise_violation(STATUS, record, f"told {told!r}")

    def _check_status(
        self, record: Record, told: StatusResponse, machine: Machine, before: Before
    ) -> None:
        member = machine.member
        if machine.incarnation != before.incarnation or member is None:
            return
        last = self._statuses.get((machine.number, before.incarnation), StatusResponse())
        self._statuses[machine.number, before.incarnation] = told
        is_back = (
            told.raftTerm < last.raftTerm
            or told.raftIndex < last.raftIndex
            or told.raftAppliedIndex < last.raftAppliedIndex
            or told.header.revision < max(last.header.revision, before.revision)
        )
        if is_back:
            self._raise_violation(STATUS, record, f"told {told!r} after {last!r}")
        is_plausible = (
            told.header.member_id == member.id
            and told.raftTerm <= told.header.raft_term
            and told.raftAppliedIndex <= told.raftIndex
            and 0 < told.dbSizeInUse <= told.dbSize
            and (NO_LEADER.text in told.errors) == (not told.leader)
        )
        if not is_plausible:
            self._raise_violation(STATUS, record, f"told {told!r}")
        # The answer has the term of the last applied entry; its leader may be of a later term.
        leaders = self._cluster.leader_ids
        if told.leader and all(
            term < told.raftTerm or leader != told.leader for term, leader in leaders.items()
        ):
            self._raise_violation(STATUS, record, f"told {told!r}, but leaders were {leaders}")

    def _check_members(self, record: Record) -> None:
        told = record.response.members
        voters = sorted(each.ID for each in told if not each.isLearner)
        learners = sorted(each.ID for each in told if each.isLearner)
        if not self._cluster.has_had(voters, learners):
            self._raise_violation(STATUS, record, f"there never were {told!r}")

    # Snapshots.

    def _ask_for_snapshot(self, member: int) -> None:
        calls, before = self._calls, self._before(member)
        name = f"a snapshot of m{member}, asked for by {self.name} at {self._world.now:.6f},"
        blobs = Blobs(name)
        call = 0

        def ended(result: bytes | Status | None) -> None:
            if self._call != (member, call):
                return
            self._call = None
            self._line("lost" if result is None else f"snapshot {result!r}")
            if isinstance(result, Status) and result.code == Code.OK:
                self._take_snapshot(name, blobs, before)
            self._later()

        def message(data: bytes) -> None:
            if self._call == (member, call):
                blobs.take(data)

        call = calls.open_stream(member, SNAPSHOT_PATH, ended, message)
        self._call = (member, call)
        self._line(f"snapshot at m{member}")
        calls.send(member, call, b"")
        if self._random.random() < 0.3:
            seconds = self._random.uniform(0.05, 1.0)
            self._world.after(0.001, calls.stall, member, call, seconds)
        patience = self._random.uniform(*PATIENCE)
        self._world.after(patience, self._abandon_snapshot, member, call)

    def _abandon_snapshot(self, member: int, call: int) -> None:
        if self._call == (member, call):
            self._call = None
            self._calls.hang_up(member, call)
            self._later()

    def _take_snapshot(self, name: str, blobs: Blobs, before: Before) -> None:
        if not before.is_the_same():
            return
        self.snapshots += 1
        content = blobs.content()
        if content.revision < before.revision or content.applied < before.applied:
            raise Violation(
                SNAPSHOTS,
                f"{name} is at revision {content.revision} and entry {content.applied}, and it had "
                f"{before.revision} and {before.applied}",
            )
        check_content(self._history, self._world.now, name, content)

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what)

    # After the run.

    def check_hashes(self) -> None:
        """Compare the hashes in answers with those of the history."""
        for record in self.hashes:
            told, asked = record.response, record.request.revision
            if not told.hash_revision <= told.header.revision or (
                told.hash_revision != (asked or told.header.revision)
            ):
                self._raise_violation(HASHES, record, f"told {told!r}")
            expected = _hashes(self._history, told.hash_revision, told.compact_revision)
            if expected and told.hash not in expected:
                self._raise_violation(HASHES, record, f"told {told!r}; the history has {expected}")


def _hashes(history: History, revision: int, compacted: int) -> list[int]:
    """Return the hashes of the history's rows: of a revision, and of a compaction.

    Return nothing if the history lacks a revision.
    """
    if any(main not in history.effects for main in range(2, revision + 1)):
        return []

    def rows_to(main: int) -> list[Row]:
        return [row for each in range(2, main + 1) for row in history.effects.get(each, ())]

    return [
        hash_rows(lambda main: iter(rows_to(main)), revision, compacted, is_compaction=is_kept)
        for is_kept in (False, True)
    ]
