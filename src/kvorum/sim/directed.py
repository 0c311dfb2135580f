"""Directed faults: sequences of steps to states that random faults seldom reach.

Each sequence is a generator that yields how many seconds to wait before its next step. When the
faults end, the director closes it, and it mends what it broke; only a forced new cluster is
completed after the faults. Requests to members go through the operator, as real requests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from kvorum.server.shutdown import ServerPhase
from kvorum.sim.moments import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from random import Random

    from kvorum.member.member import Member
    from kvorum.sim.cluster import Cluster
    from kvorum.sim.faults import Faults
    from kvorum.sim.machine import Machine
    from kvorum.sim.world import World
    from kvorum.storage.files.memory import DiskCall

    Steps = Generator[float, None, None]
    """Yields how many seconds to wait before the next step."""

CHECK_SECONDS = 0.02
CHANGE_SECONDS_MAX = 1.5
"""How long a step waits for a change of the membership."""
ASLEEP_SECONDS = (1.0, 2.5)
_KEPT_SECONDS = (0.2, 1.0)
"""How long a member sleeps whose appends are held: most of the time is for the steps after that."""
KEPT, PAUSED, CUT_OFF, WITHOUT_POWER = "kept", "paused", "cut off", "without power"
_WAYS = (KEPT, KEPT, KEPT, KEPT, PAUSED, CUT_OFF, WITHOUT_POWER)
"""How a member sleeps. With `KEPT`, the network holds its appends until it wakes."""
_CRASH_CHANCE = 0.6
"""The chance that a member which slept crashes when it gets a snapshot."""
_COMMIT_STALL_SECONDS, _NEXT_STALL_SECONDS = (0.8, 2.0), (0.05, 0.3)
_FULL_SECONDS = (0.1, 1.5)
_ARMED_SECONDS_MAX = 3.0
_REMOVED_PAUSE_SECONDS = (0.2, 0.9)
_END_SECONDS_MAX = 1.0
MEMBERS_MAX = 5


class Director:
    """Runs the directed faults of a run. The cluster calls `note_turn` after a member's turn."""

    __slots__ = (
        "_cluster",
        "_forced",
        "_is_peace",
        "_is_stalled",
        "_random",
        "_running",
        "_size",
        "_slow",
        "_woken",
        "_world",
        "counts",
        "faults",
    )

    def __init__(self, world: World, cluster: Cluster, faults: Faults) -> None:
        self._world = world
        self._cluster = cluster
        self._size = len(cluster.members)
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self._random: Random = world.stream("directed")
        self._running: list[Steps] = []
        self._forced: Steps | None = None
        # The machine whose disk stalls when it notes that a change is committed, and the machine
        # that was woken and needs a snapshot.
        self._slow = self._woken = 0
        self._is_peace = self._is_stalled = False

    def start(self, peace_at: float) -> None:
        """Start the sequences; all faults end at `peace_at`."""
        for gap, make in (
            (self.faults.sleeper_gap, self._sleeper),
            (self.faults.growth_full_gap, self._full_at_growth),
            (self.faults.leader_removal_gap, self._removed_leader),
        ):
            if gap:
                self._run(self._again_and_again(gap, make))
        if self.faults.quorum_loss:
            self._forced = self._lose_quorum(self.faults.quorum_loss * peace_at)
            self._run(self._forced)

    def stop(self, faults: Faults) -> None:
        """Stop the sequences and mend what they broke, except for a forced new cluster."""
        self.faults = faults
        self._is_peace = True
        self._slow = self._woken = 0
        running, self._running = self._running, []
        for steps in running:
            if steps is self._forced:
                self._running.append(steps)
            else:
                steps.close()

    def _run(self, steps: Steps) -> None:
        self._running.append(steps)
        self._advance(steps)

    def _advance(self, steps: Steps) -> None:
        if steps not in self._running:
            return
        seconds = next(steps, None)
        if seconds is None:
            self._running.remove(steps)
        else:
            self._world.after(seconds, self._advance, steps)

    def _again_and_again(self, gap: float, make: Callable[[], Steps]) -> Steps:
        while True:
            yield self._random.expovariate(1 / gap)
            yield from make()

    def _until(self, condition: Callable[[], bool], seconds: float) -> Generator[float, None, bool]:
        """Wait for a condition, at most `seconds`; return whether it holds."""
        deadline = self._world.now + seconds
        while not condition():
            if self._world.now >= deadline:
                return False
            yield CHECK_SECONDS
        return True

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, "dir", what, Kind.OPERATOR)

    def _leader(self) -> Machine | None:
        leaders = [
            each for each in self._cluster.standing() if each.member and each.member.is_leader
        ]
        return max(leaders, key=_term, default=None)

    def _is_calm(self) -> bool:
        return self._leader() is not None and not self._cluster.operator.is_changing

    def note_turn(self, machine: Machine, member: Member) -> None:
        """Check a member, amid and after its turn, for the states that a sequence waits for."""
        if machine.number == self._slow and member.replica.writer.is_keeping_commit:
            self._slow = 0
            # Long enough for a snapshot to arrive while the change waits.
            self._is_stalled = True
            seconds = self._random.uniform(*_COMMIT_STALL_SECONDS)
            machine.stall(seconds)
            # The next write is slow, too, so that it does not end in the same turn.
            self._world.after(seconds, self._stall, machine, machine.incarnation)
        if machine.number == self._woken and (
            member.replica.installation is not None
            or member.replica.node.raft.log.unstable.snapshot is not None
        ):
            self._woken = 0
            self.counts["sleepers given a snapshot"] += 1
            is_waiting = member.replica.writer.is_keeping_commit
            self.counts["snapshots before a change was applied"] += is_waiting
            if not self._is_stalled and self._random.random() < _CRASH_CHANCE:
                delay = self._random.choice([0.0, 0.01, 0.1, 0.5]) * self._random.random()
                self._world.after(delay, self._crash, machine, machine.incarnation)

    def _stall(self, machine: Machine, incarnation: int) -> None:
        if not self._is_peace and machine.incarnation == incarnation:
            machine.stall(self._random.uniform(*_NEXT_STALL_SECONDS))

    def _crash(self, machine: Machine, incarnation: int) -> None:
        """Crash a member that has received a snapshot, here or between two calls."""
        # After the faults nothing would start it again.
        if not self._is_peace and machine.incarnation == incarnation:
            self.counts["crashes with a snapshot"] += 1
            if self._random.random() < 0.3:
                machine.crash_amid()
            else:
                machine.crash(power_cut=True)

    # A member that sleeps through changes.

    def _sleeper(self) -> Steps:
        """Make a member sleep while others change the membership and compact; then wake it."""
        random, cluster, network = self._random, self._cluster, self._cluster.network
        if not (yield from self._until(self._is_calm, 1.0)) or len(cluster.members) < 3:
            return
        leader = self._leader()
        assert leader is not None
        others = [each for each in cluster.members if each != leader.number]
        machine = cluster.machines[random.choice(others)]
        ways = _WAYS if cluster.links is None else _WAYS[4:]
        way = random.choice(ways)
        self.counts["sleepers"] += 1
        self._line(f"{machine.name} will sleep: {way}")
        cluster.operator.avoids = machine.number
        try:
            committing = 0
            if way == KEPT:
                committing = yield from self._keep_a_change(machine, leader)
            # Entries sent before may still arrive, so the others must compact beyond them.
            last = _last_index(self._leader() or leader)
            asleep = random.uniform(*(_KEPT_SECONDS if way == KEPT else ASLEEP_SECONDS))
            wakes_at = self._world.now + asleep
            if way == PAUSED:
                machine.pause(asleep)
            elif way == WITHOUT_POWER:
                machine.crash(power_cut=True)
            while self._world.now < wakes_at:
                if way in (KEPT, CUT_OFF):
                    # Members that were added meanwhile are cut off from it, too.
                    network.cut_off(machine.number, list(cluster.machines))
                yield from self._change_once(machine)
                yield random.uniform(0.0, 0.3)
            yield from self._forget_the_past(machine, last)
            yield from self._wake(machine, way, committing)
        finally:
            self._slow = self._woken = cluster.operator.avoids = 0
            network.end_keeping(machine.number)
            network.heal()
            _start_if_down(machine)

    def _keep_a_change(self, sleeper: Machine, leader: Machine) -> Generator[float, None, int]:
        """Hold appends to a member until they add a learner, commit that change, and go on.

        Return how many of those appends the member needs to commit the change.
        """
        cluster, network = self._cluster, self._cluster.network
        network.keep_appends(sleeper.number)
        # A new voter would count for the quorum before it has started.
        added = cluster.operator.add(leader.number, is_learner=True)
        yield from self._until(lambda: added in cluster.machines, CHANGE_SECONDS_MAX)
        # The index of the entry that adds the learner is not greater than this.
        index = _applied(self._leader() or leader)

        def is_committed() -> bool:
            return any(each.commit >= index for each in network.kept(sleeper.number))

        yield from self._until(is_committed, CHANGE_SECONDS_MAX)
        kept = network.kept(sleeper.number)
        count = next((place for place, each in enumerate(kept, 1) if each.commit >= index), 0)
        last = max((each.last for each in kept[:count]), default=0)
        yield from self._until(
            lambda: any(each.last > last for each in network.kept(sleeper.number)),
            CHANGE_SECONDS_MAX,
        )
        return count

    def _change_once(self, sleeper: Machine) -> Steps:
        """Change the membership, without the sleeper, and wait until the change is done."""
        random, cluster, operator = self._random, self._cluster, self._cluster.operator
        awake = [each for each in cluster.members if each != sleeper.number]
        leader = self._leader()
        at = random.choice(awake) if leader is None else leader.number
        # The sleeper has a vote: without it, the others must be a quorum all the time.
        if len(cluster.members) < min(MEMBERS_MAX, self._size + 1):
            added = operator.add(at, is_learner=random.random() < 0.7)
            if self.faults.learners_at_once > 1 and random.random() < 0.5:
                # Raft takes one change at a time.
                yield from self._until(lambda: added in cluster.machines, CHANGE_SECONDS_MAX)
                operator.add(at, is_learner=True)
        elif len(awake) > 2:
            operator.remove(at, random.choice([each for each in awake if each != at]))
        yield CHECK_SECONDS
        yield from self._until(lambda: not operator.is_changing, CHANGE_SECONDS_MAX)

    def _forget_the_past(self, sleeper: Machine, last: int) -> Steps:
        """Make all other members compact their stores, and their logs beyond an index."""
        cluster, operator = self._cluster, self._cluster.operator
        leader = self._leader()
        if leader is not None and leader.member is not None and self._random.random() < 0.7:
            operator.compact(leader.member.state.store.revision)

        def is_forgotten() -> bool:
            leader = self._leader()
            return leader is not None and _first_index(leader) > last + 1

        for place in range(6):
            if place == 1:
                self._move_leader(sleeper)
            for machine in cluster.standing():
                if machine is not sleeper:
                    operator.want_snapshot(machine)
            if (yield from self._until(is_forgotten, 0.3)):
                return

    def _move_leader(self, sleeper: Machine) -> None:
        """Transfer the leadership: a member that has sent a snapshot keeps its log for a while."""
        cluster, leader = self._cluster, self._leader()
        others = [
            each.member.id
            for each in cluster.standing()
            if each.member is not None and each is not leader and each is not sleeper
        ]
        if leader is not None and others:
            cluster.operator.move_leader(leader.number, self._random.choice(others))

    def _wake(self, machine: Machine, way: str, committing: int) -> Steps:
        """Wake a member, sometimes with the appends held for it, and give it time to crash.

        The first `committing` appends commit a change. The rest arrive once its disk is slow to
        note that: the member writes them before it installs a snapshot, and may apply the change
        in between.
        """
        random, network = self._random, self._cluster.network
        self._woken, self._is_stalled = machine.number, False
        if way == WITHOUT_POWER:
            _start_if_down(machine)
        elif way == KEPT:
            # The member must get the appends before it learns of a later term.
            if random.random() < 0.9:
                self._slow = machine.number
            network.release_appends(machine.number, committing)
            yield from self._until(lambda: self._is_stalled, random.uniform(0.1, 0.5))
            network.end_keeping(machine.number)
            yield random.uniform(0.02, 0.1)
            self._lose_sight(machine)
        network.heal()
        yield from self._until(lambda: machine.is_dead, 2.0 if self._is_stalled else 1.5)
        yield random.uniform(0.0, 0.3)

    def _lose_sight(self, machine: Machine) -> None:
        """Report to the leader, as a transport does, that a member could not be reached.

        The leader goes back to the last acknowledged entry, and does not wait for a refusal of
        the rest, which would wait for the member's disk.
        """
        leader = self._leader()
        if leader is not None and leader.member is not None and machine.member is not None:
            leader.member.report_unreachable(machine.member.id)

    # A disk that is full where a file grows.

    def _full_at_growth(self) -> Steps:
        """Fill a disk at the call at which a file of the log, or the database, grows."""
        random, machines = self._random, self._cluster.machines
        machine = machines[random.choice(list(machines))]
        kind, is_the_one = random.choice(_growths(machine.config.segment_bytes))
        disk = machine.disk
        disk.fill_at(is_the_one)
        try:
            if (yield from self._until(lambda: disk.is_full, _ARMED_SECONDS_MAX)):
                self.counts[f"disks full at {kind}"] += 1
                yield random.uniform(*_FULL_SECONDS)
        finally:
            disk.relieve()

    # A leader that is removed.

    def _removed_leader(self) -> Steps:
        """Remove members until two are left, then the leader, which pauses once it knows that."""
        random, cluster, operator = self._random, self._cluster, self._cluster.operator
        while True:
            if not (yield from self._until(self._is_calm, CHANGE_SECONDS_MAX)):
                return
            leader = self._leader()
            assert leader is not None
            if len(cluster.members) <= 2:
                break
            others = [each for each in cluster.members if each != leader.number]
            operator.remove(leader.number, random.choice(others))
            yield CHECK_SECONDS
        if len(cluster.members) != 2:
            return
        removed, other = leader, cluster.machines[_other(cluster.members, leader.number)]
        self._line(f"the last but one is {removed.name}")
        operator.remove(random.choice(cluster.members), removed.number)
        if (yield from self._until(lambda: _is_removed(removed, other), CHANGE_SECONDS_MAX)):
            self.counts["leaders removed"] += 1
            yield random.uniform(0.0, 0.2)
            if random.random() < 0.7:
                removed.pause(random.uniform(*_REMOVED_PAUSE_SECONDS))
        yield 1.0
        yield from self._grow()

    def _grow(self) -> Steps:
        """Add members until there are as many as at the start of the run."""
        random, cluster, operator = self._random, self._cluster, self._cluster.operator
        for _ in range(2 * self._size):
            yield from self._until(self._is_calm, 2 * CHANGE_SECONDS_MAX)
            if len(cluster.members) >= self._size or self._is_peace:
                return
            operator.add(random.choice(cluster.members), is_learner=random.random() < 0.5)
            yield CHECK_SECONDS

    # A quorum that is lost for good.

    def _lose_quorum(self, moment: float) -> Steps:
        """Destroy the disks of all machines but one, and force a new cluster from that one."""
        cluster, random = self._cluster, self._random
        yield moment
        while (survivor := self._survivor()) is None:
            yield CHECK_SECONDS
            if self._is_peace:
                return
        self.counts["quorums lost"] += 1
        self._line(f"all but {survivor.name} are lost")
        # Whenever it starts from here on, it is the only member.
        survivor.config = replace(survivor.config, force_new_cluster=True)
        starts = survivor.starts
        lost = [each for each in cluster.standing() if each is not survivor]
        random.shuffle(lost)
        majority = len(lost) + 1 - len(lost) // 2
        cluster.members[:] = [survivor.number]
        for place, machine in enumerate(lost):
            if place == majority:
                # The others must be stopped and wiped as well.
                yield random.uniform(0.0, 0.5)
            machine.has_left = True
            machine.wipe()
        yield random.uniform(0.0, 1.0)
        if random.random() < 0.5:
            survivor.terminate()
            yield from self._until(
                lambda: survivor.is_dead or survivor.starts > starts, _END_SECONDS_MAX
            )
        if survivor.starts == starts:
            survivor.crash(power_cut=random.random() < 0.5)
        while not _is_alone(survivor):
            _start_if_down(survivor)
            yield CHECK_SECONDS
        self.counts["new clusters forced"] += 1
        survivor.config = replace(survivor.config, force_new_cluster=False)
        if random.random() < 0.5:
            survivor.crash(power_cut=random.random() < 0.5)
            _start_if_down(survivor)
        yield from self._grow()

    def _survivor(self) -> Machine | None:
        """Return a machine whose log has every committed entry, at the newest term; or None.

        So no acknowledged write is lost with the others, and no term has two leaders.
        """
        cluster = self._cluster
        if cluster.operator.is_changing or len(cluster.machines) != len(cluster.members):
            return None
        newest = max(cluster.leaders, default=inf)
        fitting = [
            machine
            for machine in cluster.standing()
            if machine.member is not None
            and machine.server is not None
            and machine.server.phase is ServerPhase.SERVING
            # A term that is not on its disk yet would be lost, and would be led again.
            and not machine.server.jobs_under_way
            and machine.paused_until <= self._world.now
            and not machine.disk.is_damaged
            and not machine.disk.is_full
            and machine.member.term >= newest
            and machine.member.replica.installation is None
            and machine.member.replica.node.raft.log.unstable.snapshot is None
            and cluster.has_committed(machine.member.replica.node.raft.log)
        ]
        return self._random.choice(fitting) if fitting else None


def _growths(segment_bytes: int) -> list[tuple[str, Callable[[DiskCall], bool]]]:
    """Return the calls at which a disk may fill up: names, and predicates for the calls."""

    def appends(call: DiskCall) -> bool:
        return (
            call.name == "pwrite"
            and "/wal/" in call.path
            and call.offset > 0
            and call.offset + call.length > segment_bytes
        )

    def prepares(call: DiskCall) -> bool:
        return call.name == "allocate" and "/wal/" in call.path

    def begins(call: DiskCall) -> bool:
        return call.name == "rename" and "/wal/" in call.path

    def commits(call: DiskCall) -> bool:
        return call.name == "commit"

    return [
        ("an append", appends),
        ("an append", appends),
        ("a preparation", prepares),
        ("a new segment", begins),
        ("a commit", commits),
    ]


def _start_if_down(machine: Machine) -> None:
    if machine.is_dead and not (machine.is_retired or machine.has_left):
        machine.start()


def _term(machine: Machine) -> int:
    return 0 if machine.member is None else machine.member.term


def _first_index(machine: Machine) -> int:
    return 0 if machine.member is None else machine.member.replica.node.raft.log.first_index()


def _applied(machine: Machine) -> int:
    return 0 if machine.member is None else machine.member.state.applied


def _last_index(machine: Machine) -> int:
    return 0 if machine.member is None else machine.member.replica.node.raft.log.last_index()


def _other(numbers: list[int], number: int) -> int:
    return next(each for each in numbers if each != number)


def _is_removed(machine: Machine, other: Machine) -> bool:
    """Return whether both members know that the first was removed, while it still leads."""
    member, rest = machine.member, other.member
    return (
        member is not None
        and rest is not None
        and member.is_leader
        and member.was_removed
        and rest.state.cluster.is_removed(member.id)
    )


def _is_alone(machine: Machine) -> bool:
    member = machine.member
    return member is not None and member.is_leader and member.conf_state.voters == (member.id,)
