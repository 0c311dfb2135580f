"""The operator of the cluster: changes its membership, moves leadership, keeps databases small.

The operator sends real requests to some member, whose answers may get lost. So it acts on the state
of the cluster, not on the answers: it sets up an empty machine for a member without one, abandons
the machine of a removed member, promotes a learner as soon as the leader allows it, answers a
NOSPACE alarm by a compaction, by defragmenting everywhere, and by clearing the alarm, and a CORRUPT
alarm by restoring disks. A machine that is refused when it starts gets the current members and
starts again; one that lost its disk stays down, and is replaced.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as etcd
from kvorum.member.member import Member
from kvorum.server.peer.cluster.joining import Joined, Start
from kvorum.sim.addresses import name_of, number_of, url_of
from kvorum.sim.calls import Calls
from kvorum.sim.describe import outcome
from kvorum.sim.entering import Entrance
from kvorum.sim.faults import Faults
from kvorum.sim.history import History, Record
from kvorum.sim.machine import Machine
from kvorum.sim.moments import Kind
from kvorum.sim.network import Network
from kvorum.sim.recalls import RECALL_SECONDS, recall
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    InitialCluster,
    initial_members,
    is_bootstrapped,
)
from kvorum.state.membership.identity import cluster_id

CHECK_SECONDS = 0.2
PATIENCE_SECONDS = 3.0
LEAVE_SECONDS = (0.5, 3.0)
"""When the operator abandons the machine of a removed member that has not left by itself, unless
the faults let it stay for longer."""
PLAIN_LATE_SECONDS_MAX = 0.5
FRAMED_LATE_SECONDS_MAX = 1.5
"""A change whose answer was lost may still take effect for this long after faults have ended."""
SETTLE_SECONDS_MAX = 60.0
ABSENT_LEAVE_SECONDS = (3.0, 6.0)
"""When the operator abandons the machine of a replaced member, which could not be reached."""
DIVIDED_SECONDS = (1.5, 4.0)
"""How long a replaced member, and the members it reaches, are cut off from the rest."""
MEMBERS_MAX = 5
AGAIN_SECONDS = (0.1, 1.0)
"""When the operator starts a refused machine again."""
ENTERING = "members come into their cluster, and no other"
_HAS_RUN = "has already been bootstrapped"
_REASONS = (
    _HAS_RUN,
    "cannot fetch cluster info from peer urls",
    "member count is unequal",
    "no match found for existing member",
    "no member reported its version",
)
"""Reasons to refuse a machine although its operator started it correctly."""


class Cluster(Calls, Protocol):
    """The cluster, as the operator uses it."""

    history: History
    network: Network
    machines: dict[int, Machine]
    members: list[int]

    def add_machine(self, number: int, flags: InitialCluster, start: Start) -> Machine:
        """Set up an empty machine for an added member, with `flags` as its initial cluster."""

    def remove_machine(self, machine: Machine) -> None:
        """Abandon a machine for good."""


class Operator:
    """One operator; the seed decides what it does."""

    __slots__ = (
        "_absent",
        "_alarmed",
        "_applied",
        "_cluster",
        "_cluster_id",
        "_founders",
        "_ids",
        "_is_found_out",
        "_is_framed",
        "_is_looking",
        "_is_peace",
        "_is_replacing",
        "_last_index",
        "_last_term",
        "_late_seconds",
        "_late_until",
        "_learners",
        "_leaving",
        "_next_number",
        "_open",
        "_random",
        "_removed_time",
        "_size",
        "_wiped",
        "_world",
        "avoids",
        "calls",
        "counts",
        "faults",
    )

    def __init__(self, world: World, cluster: Cluster, faults: Faults, ids: dict[int, int]) -> None:
        # Production's protocol informs a removed member, and loses nothing that comes late.
        self._is_framed = faults.frames
        self._removed_time = faults.removed_time
        self._late_seconds = FRAMED_LATE_SECONDS_MAX if faults.frames else PLAIN_LATE_SECONDS_MAX
        self._world = world
        self._cluster = cluster
        self.calls: Calls = cluster
        self._random: Random = world.stream("operator")
        self.faults = faults
        self.counts: Counter[str] = Counter()
        # The number of the machine of each member, by the member's id.
        self._ids = ids
        self._size = len(ids)
        self._founders = frozenset(ids)
        self._cluster_id = cluster_id(ids)
        # The id of the member whose machine lost its disk, and whether it may be replaced.
        self._wiped = 0
        self._is_found_out = False
        self._next_number = len(ids) + 1
        # How many learners there were at the last look.
        self._learners = 0
        # Removed members that still have a machine, and when the operator abandons it.
        self._leaving: dict[int, float] = {}
        # The id of the member that is being replaced, and whether the replacement goes on.
        self._absent = 0
        self._is_replacing = False
        # Requests without an answer.
        self._open: set[int] = set()
        # After this, all changes that will take effect have done so.
        self._late_until = 0.0
        # The end of the leader's log once all logs were of its term.
        self._last_term = self._last_index = 0
        self._alarmed: Iterator[None] | None = None
        # The highest applied index that any member had.
        self._applied = 0
        self._is_looking = False
        self._is_peace = False
        # The machine that gets no requests, because it is known to be asleep.
        self.avoids = 0

    def start(self) -> None:
        """Start the tasks that this run has."""
        faults = self.faults
        if (
            faults.change_gap
            or faults.quota_bytes
            or faults.replace_gap
            or faults.wipe_gap
            or faults.flip_gap
            or faults.sleeper_gap
            or faults.leader_removal_gap
            or faults.quorum_loss
        ):
            self._is_looking = True
            self._world.after(CHECK_SECONDS, self._check_cluster)
        for task in (
            self._change,
            self._replace,
            self._wipe,
            self._move_leader,
            self._defragment,
            self._want_snapshot,
        ):
            self._again(task)

    def _again(self, task: Callable[[], None]) -> None:
        gap = self._gap(task)
        if gap:
            self._world.after(self._random.expovariate(1 / gap), self._do, task)

    def _do(self, task: Callable[[], None]) -> None:
        if self._gap(task):
            task()
            self._again(task)

    def _gap(self, task: Callable[[], None]) -> float:
        faults = self.faults
        return {
            self._change: faults.change_gap,
            self._replace: faults.replace_gap,
            self._wipe: faults.wipe_gap,
            self._move_leader: faults.move_leader_gap,
            self._defragment: faults.defragment_gap,
            self._want_snapshot: faults.snapshot_gap,
        }[task]

    def _ask(
        self,
        number: int,
        path: str,
        request: Any,
        then: Callable[[bytes | Status | None], None] | None = None,
    ) -> None:
        """Send a request to a member, and abandon it after a while."""
        world = self._world
        call = 0

        def answered(result: bytes | Status | None) -> None:
            if call in self._open:
                self._open.discard(call)
                self._line(f"{path.rpartition('/')[2]} at m{number} {outcome(result)}")
                if then is not None:
                    then(result)

        def lose_patience() -> None:
            if call in self._open:
                self.calls.hang_up(number, call)
                answered(None)

        call = self.calls.call(number, path, request.SerializeToString(), answered)
        self._open.add(call)
        world.after(PATIENCE_SECONDS, lose_patience)

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, "op", what, Kind.OPERATOR)

    def _pick_member(self) -> int:
        return self._random.choice([each for each in self._cluster.members if each != self.avoids])

    # Membership.

    def _change(self) -> None:
        if self._wiped:
            return
        random, members = self._random, self._cluster.members
        smallest, largest = min(2, self._size), max(self._size + 1, min(MEMBERS_MAX, 3))
        may_grow = len(self._ids) - len(self._leaving) < largest
        if may_grow and (len(members) <= smallest or random.random() < 0.5):
            at, is_learner = self._pick_member(), random.random() < 0.6
            for _ in range(self.faults.learners_at_once if is_learner else 1):
                self.add(at, is_learner=is_learner)
        elif len(members) > smallest:
            self.remove(self._pick_member(), random.choice(members))

    def add(self, at: int, *, is_learner: bool) -> int:
        """Ask a member to add another; return the number of its machine."""
        number = self._next_number
        self._next_number += 1
        self.counts["learners added" if is_learner else "voters added"] += 1
        request = etcd.MemberAddRequest(peerURLs=[url_of(number)], isLearner=is_learner)
        self._line(f"adds m{number}{' as a learner' if is_learner else ''}")
        self._ask(at, "/etcdserverpb.Cluster/MemberAdd", request, self._changed)
        return number

    def remove(
        self,
        at: int,
        number: int,
        then: Callable[[bytes | Status | None], None] | None = None,
    ) -> None:
        """Ask a member to remove another, or itself."""
        self.counts["members removed"] += 1
        self._line(f"removes m{number}")
        removal = etcd.MemberRemoveRequest(ID=self._id_of(number))
        self._ask(at, "/etcdserverpb.Cluster/MemberRemove", removal, then or self._changed)

    def _id_of(self, number: int) -> int:
        return next(each for each, at in self._ids.items() if at == number)

    def _replace(self) -> None:
        """Cut a member off, remove it, and add a voter in its place."""
        random, cluster = self._random, self._cluster
        if self._is_replacing or self._wiped or len(cluster.members) < 3:
            return
        self._is_replacing = True
        number = random.choice(cluster.members)
        at = random.choice([each for each in cluster.members if each != number])
        self._absent = self._id_of(number)
        self.counts["members replaced"] += 1
        cluster.network.cut_off(number, list(cluster.machines))

        def removed(result: bytes | Status | None) -> None:
            self._changed(result)
            if isinstance(result, bytes):
                self.add(at, is_learner=False)
            else:
                self._absent = 0
                self._end_replacement()

        self.remove(at, number, removed)

    def _divide(self, absent: Machine) -> None:
        """Let a replaced member come back, with as many others as a quorum would need."""
        random, cluster = self._random, self._cluster
        self._absent = 0
        self.counts["replaced members back"] += 1
        side = random.sample(cluster.members, len(cluster.members) // 2)
        others = [each for each in cluster.machines if each not in (*side, absent.number)]
        cluster.network.divide([absent.number, *side], others)
        self._world.after(random.uniform(*DIVIDED_SECONDS), self._end_replacement)

    def _end_replacement(self) -> None:
        self._is_replacing = False
        self._cluster.network.heal()

    def _changed(self, result: bytes | Status | None) -> None:
        """Take the answer to a change; a change without one may still take effect."""
        if not isinstance(result, bytes):
            self._late_until = self._world.now + self._late_seconds
            self._last_term = 0

    def _check_cluster(self) -> None:
        """Bring machines and members in line, and react to alarms."""
        self._world.after(CHECK_SECONDS, self._check_cluster)
        member = self._newest()
        if member is None:
            return
        self._follow(member)
        if self._wiped:
            self._replace_wiped(member)
        if self._alarmed is None and member.state.alarms.raised():
            self.counts["alarms"] += 1
            self._alarmed = self._answer_alarm(member)
            self._next_step()

    def _newest(self) -> Member | None:
        """Return the member that has applied most; None if another had applied more before."""
        running = [each.member for each in self._cluster.machines.values()]
        newest = max((each for each in running if each is not None), key=_applied, default=None)
        if newest is None or newest.state.applied < self._applied:
            return None
        self._applied = newest.state.applied
        return newest

    def _follow(self, member: Member) -> None:
        cluster, known = self._cluster, member.state.cluster
        if not known.voters:
            return
        learners, self._learners = self._learners, len(known.members) - len(known.voters)
        if learners < 2 <= self._learners:
            self.counts["two learners at once"] += 1
        for each in known.members:
            number = number_of(each.peer_urls[0])
            if each.id not in self._ids:
                self._ids[each.id] = number
                self._line(f"sets up m{number}")
                start = Start(Joined(each.id, known.cluster_id, known.members), known.members)
                cluster.add_machine(number, self._flags(member, number), start).start()
            elif each.is_learner and self._random.random() < 0.5 and not self._open:
                request = etcd.MemberPromoteRequest(ID=each.id)
                path = "/etcdserverpb.Cluster/MemberPromote"
                self._ask(self._pick_member(), path, request, self._changed)
        cluster.members[:] = sorted(self._ids[each.id] for each in known.voters)
        for member_id in list(self._ids):
            if known.is_removed(member_id):
                self._wait_for_departure(member_id)

    # Starts without a log.

    def _flags(self, member: Member, number: int) -> InitialCluster:
        """Return the members for a machine's flags, as a member, or a lagging one, knows them."""
        random = self._random
        if self.faults.stale_flags_chance and random.random() < self.faults.stale_flags_chance:
            running = [each.member for each in self._cluster.machines.values()]
            told = [each for each in running if each is not None and each.state.cluster.members]
            member = random.choice(told or [member])
        flags = {name_of(each): each.peer_urls for each in member.state.cluster.members}
        return flags | {f"m{number}": (url_of(number),)}

    def admits(self, machine: Machine, start: Start, entrance: Entrance) -> bool:
        """Check where a process without a log starts; return whether it may.

        A machine that lost its log must be refused if any answer says that its member has run
        before. If none does, etcd lets it start; its operator must know better, and does here.
        """
        config = machine.config
        member_id = self._id_of(machine.number)
        if start.joined is None:
            founders = initial_members(config.initial_cluster, config.initial_cluster_token)
            if {each.id for each in founders} != self._founders or machine.is_existing:
                raise Violation(ENTERING, f"{machine.name} founds a cluster of {founders}")
        else:
            if start.joined[:2] != (member_id, self._cluster_id):
                raise Violation(ENTERING, f"{machine.name} joins elsewhere: {start.joined}")
            self.counts["members joined"] += 1
        if entrance.is_known(member_id):
            raise Violation(
                ENTERING, f"{machine.name} starts without a log, but was told that it has run"
            )
        if machine.is_wiped:
            self._line(f"ends {machine.name}, which nobody refused")
            self.counts["lost disks unnoticed"] += 1
            self._is_found_out = True
        return not machine.is_wiped

    def note_refusal(self, machine: Machine, error: ClusterSettingsError) -> None:
        """Handle a refused machine: give it the current members, or replace its member."""
        reason = next((each for each in _REASONS if each in str(error)), None)
        if reason is None or (reason == _HAS_RUN and not machine.is_wiped):
            raise Violation(ENTERING, f"{machine.name} is refused: {error}")
        self.counts["starts refused"] += 1
        if reason == _HAS_RUN:
            self.counts["lost disks refused"] += 1
            self._is_found_out = True
        else:
            seconds = self._random.uniform(*AGAIN_SECONDS)
            self._world.after(seconds, self._start_again, machine)

    def _start_again(self, machine: Machine) -> None:
        if machine.is_retired or machine.has_left or not machine.is_dead:
            return
        member = self._newest()
        if member is not None and machine.is_existing:
            flags = self._flags(member, machine.number)
            machine.config = replace(machine.config, initial_cluster=flags)
        machine.start()

    def _wipe(self) -> None:
        """Destroy a machine's disk, if the others can do without it, and start the machine."""
        random, cluster, newest = self._random, self._cluster, self._newest()
        if newest is None or len(newest.state.cluster.voters) < 3:
            return
        if self._wiped or self._leaving or self.is_changing:
            return
        number = random.choice(cluster.members)
        if not is_bootstrapped(newest.state.cluster.members, self._id_of(number)):
            return
        machine = cluster.machines[number]
        self._wiped, self._is_found_out = self._id_of(number), False
        self.counts["disks lost"] += 1
        machine.wipe()
        if self._wiped not in self._founders or random.random() < 0.5:
            machine.is_existing = True
            flags = self._flags(newest, number)
            machine.config = replace(machine.config, initial_cluster=flags)
        machine.start()

    @property
    def is_changing(self) -> bool:
        """Whether members are changing; removed members need not have left."""
        newest = self._newest()
        return bool(
            newest is None
            or len(newest.state.cluster.voters) != len(self._standing())
            or self._open
            or self._is_replacing
            or (self._late_until and self._is_undecided())
        )

    def _standing(self) -> dict[int, int]:
        """Return the ids of members that were not removed, and the numbers of their machines."""
        return {each: at for each, at in self._ids.items() if each not in self._leaving}

    def _is_removing_member(self) -> bool:
        """Return whether a removed member has yet to leave; one that cannot know may stay."""
        return any(
            not self._removed_time[1]
            or not self._is_known(each)
            or self._must_leave(self._cluster.machines[self._ids[each]])
            for each in self._leaving
        )

    def _replace_wiped(self, member: Member) -> None:
        """Remove a member that lost its disk, and add another."""
        if member.state.cluster.is_removed(self._wiped):
            self._wiped = 0
            self.add(self._pick_member(), is_learner=False)
        elif self._is_found_out and not self._open:
            self.remove(self._pick_member(), self._ids[self._wiped], self._changed)

    def _is_known(self, member_id: int) -> bool:
        """Return whether all voters know of a removal; one that does not may need that vote.

        When one of two members removes itself, only that one knows until the other learns of it.
        """
        cluster = self._cluster
        voters = [cluster.machines[number].member for number in cluster.members]
        return all(each is not None and each.state.cluster.is_removed(member_id) for each in voters)

    def _wait_for_departure(self, member_id: int) -> None:
        """Abandon the machine of a removed member, when it has left or had the time to."""
        cluster, now = self._cluster, self._world.now
        machine = cluster.machines[self._ids[member_id]]
        is_absent = member_id == self._absent
        if member_id not in self._leaving:
            span = ABSENT_LEAVE_SECONDS if is_absent else LEAVE_SECONDS
            if self._removed_time[1]:
                span = self._removed_time
            self._leaving[member_id] = now + self._random.uniform(*span)
        if is_absent and self._has_replacement(member_id) and not self._is_peace:
            self._divide(machine)
        has_left = machine.has_left
        is_given_up = now >= self._leaving[member_id] and not self._must_leave(machine)
        if (has_left or is_given_up) and self._is_known(member_id):
            self._line(f"{machine.name} {'has left' if has_left else 'is given up'}")
            self.counts["members left"] += 1
            if is_absent:
                self._absent = 0
                self._end_replacement()
            del self._leaving[member_id], self._ids[member_id]
            cluster.remove_machine(machine)

    def _has_replacement(self, absent: int) -> bool:
        """Return whether there are as many members as before, and the newest knows the removal."""
        members = self._cluster.members
        newest = self._cluster.machines[members[-1]].member
        return (
            len(members) >= self._size
            and newest is not None
            and newest.state.cluster.is_removed(absent)
        )

    def _must_leave(self, machine: Machine) -> bool:
        """Return whether a removed member must leave: it knows, or can learn of it from a peer."""
        member = machine.member
        if member is not None and member.was_removed:
            return True
        if self._is_peace and self._is_framed and member is not None:
            return any(each.id in self._ids for each in member.state.cluster.members)
        return False

    # Other tasks.

    def _move_leader(self) -> None:
        machines = self._cluster.machines.values()
        leader = next((each for each in machines if each.member and each.member.is_leader), None)
        others = [
            member_id
            for member_id, number in self._ids.items()
            if leader is not None and number != leader.number
        ]
        if leader is not None and others:
            self.move_leader(leader.number, self._random.choice(others))

    def move_leader(self, number: int, member_id: int) -> None:
        """Ask a leader to hand over to a member, given by its id."""
        self.counts["leaders moved"] += 1
        request = etcd.MoveLeaderRequest(targetID=member_id)
        self._ask(number, "/etcdserverpb.Maintenance/MoveLeader", request)

    def _defragment(self) -> None:
        self.counts["defragmentations"] += 1
        request = etcd.DefragmentRequest()
        self._ask(self._pick_member(), "/etcdserverpb.Maintenance/Defragment", request)

    def _want_snapshot(self) -> None:
        self.want_snapshot(self._cluster.machines[self._pick_member()])

    def want_snapshot(self, machine: Machine) -> None:
        """Make a member take a snapshot early."""
        if machine.member is not None:
            self.counts["early snapshots"] += 1
            machine.member.replica.snapshots.is_wanted = True
            machine.member.replica.flush_soon()

    def _answer_alarm(self, member: Member) -> Iterator[None]:
        """Mend the cause of an alarm and clear it.

        `_check_cluster` repeats this while the alarm lasts.
        """
        if member.state.alarms.raised(AlarmType.CORRUPT):
            yield from self._restore_disks()
            yield from self._clear(member, AlarmType.CORRUPT)
        if not member.state.alarms.raised(AlarmType.NO_SPACE):
            return
        self.compact(member.state.store.revision, self._next_step)
        yield
        for number in list(self._cluster.members):
            request = etcd.DefragmentRequest()
            self._ask(number, "/etcdserverpb.Maintenance/Defragment", request, self._next_step)
            yield
        yield from self._clear(member, AlarmType.NO_SPACE)

    def compact(
        self, revision: int, then: Callable[[bytes | Status | None], None] | None = None
    ) -> None:
        """Ask for a compaction."""
        compaction = etcd.CompactionRequest(revision=revision, physical=True)
        # The checks of watchers and of compactions have to know of the request.
        history, now = self._cluster.history, self._world.now
        history.records.append(Record(0, "compact", 0, compaction, history.moment(), now))
        self._ask(self._pick_member(), "/etcdserverpb.KV/Compact", compaction, then)

    def _clear(self, member: Member, alarm_type: int) -> Iterator[None]:
        for alarm in member.state.alarms.raised(alarm_type):
            clear = etcd.AlarmRequest(
                action=etcd.AlarmRequest.DEACTIVATE,
                alarm=alarm_type,  # type: ignore[arg-type]
                memberID=alarm.member_id,
            )
            self._ask(
                self._pick_member(), "/etcdserverpb.Maintenance/Alarm", clear, self._next_step
            )
            yield

    def _restore_disks(self) -> Iterator[None]:
        """Restore all damaged disks; an alarm does not say which one it is about."""
        self.counts["corruptions found"] += 1
        for machine in list(self._cluster.machines.values()):
            if machine.disk.is_damaged:
                machine.crash(power_cut=False)
                machine.disk.restore()
                if not machine.has_left:
                    machine.start()
        self._world.after(CHECK_SECONDS, self._next_step)
        yield

    def _next_step(self, _result: bytes | Status | None = None) -> None:
        assert self._alarmed is not None
        if next(self._alarmed, self) is self:
            # `_check_cluster` checks for alarms again when the effects are there.
            self._alarmed = None

    # The end.

    def stop(self, faults: Faults) -> None:
        """Finish what has started; raise Violation if that takes too long."""
        self.faults = faults
        self._is_peace = True
        if not self._is_looking:
            return
        world = self._world
        if self._late_until:
            self._late_until = world.now + self._late_seconds
        recall_at, deadline = world.now + RECALL_SECONDS, world.now + SETTLE_SECONDS_MAX
        while self._is_busy() and world.now < deadline:
            world.run_until(world.now + CHECK_SECONDS)
            if world.now >= recall_at:
                count = recall(self._cluster.machines, self._ids)
                self.counts["removed members called back"] += count
        if self._is_busy():
            raise Violation(
                "the cluster can be changed in bounded time",
                f"{SETTLE_SECONDS_MAX:.0f} s after the last fault: {self._describe()}",
            )

    def _is_busy(self) -> bool:
        member = self._newest()
        if member is None or self._open or self._is_removing_member() or self._alarmed is not None:
            return True
        machines, standing = self._cluster.machines, self._standing()
        if self._wiped or any(machines[number].member is None for number in standing.values()):
            return True
        if self._late_until and self._is_undecided():
            return True
        known = member.state.cluster
        ids = sorted(each.id for each in known.voters)
        return (
            ids != sorted(standing)
            or any(each.id not in self._ids for each in known.members)
            or bool(member.state.alarms.raised())
            or self._cluster.members != sorted(standing.values())
        )

    def _is_undecided(self) -> bool:
        """Return whether a change whose answer was lost may still take effect.

        The change may be on its way, also to a paused process, or in the log of a member. Once all
        logs end with an entry of one term, they are the leader's, or a part of it; and the entries
        that it has then are decided when all have applied them.
        """
        now = self._world.now
        machines = [self._cluster.machines[number] for number in self._standing().values()]
        if any(each.deaf_until > now for each in machines):
            self._late_until = now + self._late_seconds
        logs = [each.member.replica.node.raft.log for each in machines if each.member is not None]
        terms = {log.term(log.last_index()) for log in logs}
        if now < self._late_until or len(logs) < len(machines) or len(terms) > 1:
            return True
        if terms != {self._last_term}:
            self._last_term = terms.pop()
            self._last_index = max(log.last_index() for log in logs)
        return any(log.applied < self._last_index for log in logs)

    def _describe(self) -> str:
        member = self._newest()
        if member is None:
            return "nobody runs"
        known = ", ".join(f"{each.id:x} {each}" for each in member.state.cluster.members)
        return f"members {known}; machines {self._ids}; alarms {member.state.alarms.raised()}"


def _applied(member: Member) -> int:
    return member.state.applied
