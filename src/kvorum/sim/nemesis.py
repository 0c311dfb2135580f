"""The nemesis: draws moments and victims of faults, and injects the faults.

Each kind of fault is a method that schedules itself again, as often as the seed's faults say. When
the faults end, the nemesis injects no more and mends what it broke: it starts members that are
down, and restores damaged disks.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random

from kvorum.sim.executor import WITH_A_DISK
from kvorum.sim.faults import Faults
from kvorum.sim.links import Links
from kvorum.sim.machine import Machine
from kvorum.sim.moments import Kind
from kvorum.sim.network import Network
from kvorum.sim.world import World

_LEADS_SECONDS_MAX = 0.05
_PAUSE_OVER_SECONDS = 0.7
_FAILING_CALLS_MAX = 12
_JOB_CALLS_MAX = 4
_HELPER_PAUSES_MAX = 8
_SPARE_BYTES_MAX = 20_000
DATABASE_FLIPS = "bits of databases flipped"
_DAMAGED_KINDS = ("log", "log", "snapshot", "database", "database")


class Nemesis:
    """Injects faults into the machines of a cluster."""

    __slots__ = (
        "_doomed",
        "_elected",
        "_fallen",
        "_falling",
        "_links",
        "_machines",
        "_network",
        "_random",
        "_world",
        "counts",
        "faults",
        "leaders",
        "peace_at",
    )

    def __init__(
        self,
        world: World,
        faults: Faults,
        machines: Mapping[int, Machine],
        network: Network,
        links: Links | None,
        leaders: Mapping[int, int],
    ) -> None:
        self._world = world
        self._random: Random = world.stream("nemesis")
        self._machines = machines
        self._network = network
        self._links = links
        self.faults = faults
        # The machine that led each term.
        self.leaders = leaders
        # The commit index of each leader at its election, and the term of one that is to crash.
        self._elected: dict[int, int] = {}
        self._doomed = 0
        # Which leader of a series is to fall next, and the last one while it is down.
        self._falling = 0
        self._fallen: Machine | None = None
        # When faults end; no pause lasts much longer.
        self.peace_at = inf
        # How often each kind of fault happened.
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Start all kinds of faults, each at a moment of its own."""
        for trouble in (
            self._partition,
            self._reset,
            self._crash,
            self._terminate,
            self._fall,
            self._call_rivals,
            self._pause,
            self._fail_disk,
            self._fill_disk,
            self._flip_bit,
            self._stall_disk,
            self._fail_job,
            self._kill_helper,
            self._hang_helper,
        ):
            self._again(trouble)

    def _gap(self, trouble: Callable[[], None]) -> float:
        faults = self.faults
        return {
            self._partition: faults.partition_gap if len(self._machines) > 1 else 0.0,
            self._reset: faults.reset_gap if self._links is not None else 0.0,
            self._crash: faults.crash_gap,
            self._terminate: faults.terminate_gap,
            self._fall: faults.fall_gap if len(self._machines) > 2 else 0.0,
            self._call_rivals: faults.rivals_gap if len(self._machines) > 2 else 0.0,
            self._pause: faults.pause_gap,
            self._fail_disk: faults.disk_error_gap,
            self._fill_disk: faults.disk_full_gap,
            self._flip_bit: faults.flip_gap,
            self._stall_disk: faults.disk_stall_gap,
            self._fail_job: faults.job_error_gap,
            self._kill_helper: faults.helper_death_gap,
            self._hang_helper: faults.helper_hang_gap,
        }[trouble]

    def _again(self, trouble: Callable[[], None], after: float = 0.0) -> None:
        """Schedule a kind of fault once more, if this run has it."""
        gap = self._gap(trouble)
        if gap:
            self._world.after(after + self._random.expovariate(1 / gap), self._happen, trouble)

    def _happen(self, trouble: Callable[[], None]) -> None:
        if self._gap(trouble):
            trouble()

    def _victim(self) -> Machine:
        """Return the victim: the newest leader, or a random machine."""
        if self.leaders and self._random.random() < self.faults.leader_chance:
            leader = self._machines.get(self.leaders[max(self.leaders)])
            if leader is not None:
                return leader
        return self._machines[self._random.choice(self._numbers)]

    @property
    def _numbers(self) -> Sequence[int]:
        return list(self._machines)

    # Between machines.

    def _partition(self) -> None:
        self.counts["partitions"] += 1
        random = self._random
        self._network.heal()
        self._network.partition(list(self._numbers), self._victim().number, random)
        lasts = random.uniform(*self.faults.partition_time)
        if self.faults.moving_chance and random.random() < self.faults.moving_chance:
            # The partition turns into the next one, and nothing is healed in between.
            self.counts["partitions moved"] += 1
            self._world.after(lasts, self._happen, self._partition)
        else:
            self._world.after(lasts, self._network.heal)
            self._again(self._partition, lasts)

    def _reset(self) -> None:
        assert self._links is not None
        self.counts["connections reset"] += self._links.reset(self._random)
        self._again(self._reset)

    # Processes.

    def _crash(self) -> None:
        faults, random = self.faults, self._random
        chosen = [self._victim()]
        if random.random() < faults.all_crash_chance:
            chosen = list(self._machines.values())
        for machine in chosen:
            if random.random() < faults.amid_chance:
                machine.crash_amid()
            else:
                machine.crash(power_cut=random.random() < faults.power_cut_chance)
            self.restart_later(machine)
        self._again(self._crash)

    def _terminate(self) -> None:
        """Make a process end cleanly, and start it again."""
        self.counts["processes terminated"] += 1
        machine = self._victim()
        machine.terminate()
        self.restart_later(machine)
        self._again(self._terminate)

    def crash_voter(self, machine: Machine) -> None:
        """Cut the power of a member right after it voted, and start it again at once."""
        self.counts["voters crashed"] += 1
        machine.crash(power_cut=True)
        self._world.after(self._random.uniform(0.0, 0.01), self._restart, machine)

    def _call_rivals(self) -> None:
        """Take the leader down for a moment, and make all others stand for election.

        They campaign before they hear of each other, so for the same term. Messages of one rival
        are late, and it hears of no other leader meanwhile: by then, a member that voted for
        another may have lost its power, and gets a second request for its vote.
        """
        leader = self._machines.get(self.leaders[max(self.leaders)]) if self.leaders else None
        if leader is not None and not leader.is_dead:
            self.counts["rivals"] += 1
            random, world = self._random, self._world
            leader.crash(power_cut=True)
            world.after(random.uniform(0.0, 0.01), self._restart, leader)
            rivals = [machine for machine in self._machines.values() if machine is not leader]
            # The leader is back by then: it votes for one rival, and the late one asks it, too.
            election_at = random.uniform(0.01, 0.03)
            for rival in rivals:
                delay = election_at + random.uniform(0.0, 0.001)
                world.after(delay, rival.force_campaign)
            late = random.choice(rivals).number
            longer = random.uniform(0.02, 0.1)
            self._network.hold_back(late, world.now + election_at + longer, longer)
        self._again(self._call_rivals)

    def leads(self, machine: Machine, term: int, committed: int, appended: int) -> None:
        """Check a leader after its turn: some must not lead for long."""
        faults, random = self.faults, self._random
        if not faults.leader_crash_chance and not faults.fall_gap:
            return
        known = self._elected.get(term)
        if known is None:
            self._elected[term] = committed
            if self._fall_next(machine, term) or random.random() >= faults.leader_crash_chance:
                return
            if random.random() < 0.5:
                self._doomed = term
            else:
                delay = random.uniform(0.0, _LEADS_SECONDS_MAX)
                self._world.after(delay, self._crash_leader, machine, machine.incarnation)
        elif term == self._doomed and committed > known:
            self._doomed = 0
            self.counts["leaders crashed"] += 1
            machine.cut_off_outputs()
            if self._falling:
                self._fallen = machine
                self._end_row()
            else:
                self.restart_later(machine)
        elif self._falling == 1 and known < committed < appended and term == max(self.leaders):
            self._cut_off_leader(machine)

    def _fall(self) -> None:
        """Start a series of falling leaders; the first falls once it has entries to replicate."""
        self._falling = 1

    def _fall_next(self, machine: Machine, term: int) -> bool:
        """Check an elected leader; return whether it is the next of the series to fall."""
        if self._fallen is not None and self._fallen.is_dead:
            self._restart(self._fallen)
        self._fallen = None
        if self._falling == 2:
            self._cut_off_leader(machine)
        elif self._falling == 3:
            self._falling = 4
            self._doomed = term
        else:
            if self._falling == 4:
                self._end_row()
            return False
        return True

    def _cut_off_leader(self, machine: Machine) -> None:
        self._falling += 1
        self.counts["leaders cut off"] += 1
        self._network.cut_off(machine.number, self._numbers)

    def _end_row(self) -> None:
        self._falling = 0
        self._network.heal()
        self._again(self._fall)

    def _crash_leader(self, machine: Machine, incarnation: int) -> None:
        if self.faults.leader_crash_chance and machine.incarnation == incarnation:
            self.counts["leaders crashed"] += 1
            machine.crash(power_cut=True)
            self.restart_later(machine)

    def restart_later(self, machine: Machine) -> None:
        """Schedule the start of a machine that is down, or will be soon."""
        self._world.after(self._random.uniform(*self.faults.down_time), self._restart, machine)

    def _restart(self, machine: Machine) -> None:
        faults = self.faults
        if machine.is_retired or machine.has_left:
            return
        if machine.is_dead:
            machine.start()
        elif machine.is_ending or faults.crash_gap or faults.leader_crash_chance:
            # The machine has not reached the point where it is to crash.
            self.restart_later(machine)

    def _pause(self) -> None:
        self.counts["pauses"] += 1
        seconds = self._random.uniform(*self.faults.pause_time)
        self._victim().pause(min(seconds, self.peace_at + _PAUSE_OVER_SECONDS - self._world.now))
        self._again(self._pause)

    def pause_soon(self, machine: Machine) -> None:
        """Pause a leader that has just asked another member to take over.

        Only one process is paused at a time: the others go on without it.
        """
        if any(each.paused_until > self._world.now for each in self._machines.values()):
            return
        self.counts["leaders paused amid a transfer"] += 1
        self._world.after(0.0, self._pause_for_long, machine)

    def _pause_for_long(self, machine: Machine) -> None:
        seconds = self._random.uniform(*self.faults.pause_time)
        machine.pause(min(seconds, self.peace_at + _PAUSE_OVER_SECONDS - self._world.now))

    # Disks.

    def _fail_disk(self) -> None:
        self.counts["disk errors"] += 1
        self._victim().disk.fail_after(self._random.randint(0, _FAILING_CALLS_MAX))
        self._again(self._fail_disk)

    def _fill_disk(self) -> None:
        self.counts["full disks"] += 1
        machine, random = self._victim(), self._random
        machine.disk.fill_up(random.randint(0, _SPARE_BYTES_MAX))
        lasts = random.uniform(*self.faults.disk_full_time)
        machine.line(f"disk is full for {lasts:.3f}", Kind.DISK_FULL, lasts)
        self._world.after(lasts, machine.disk.relieve)
        self._again(self._fill_disk, lasts)

    def _flip_bit(self) -> None:
        machine, random = self._victim(), self._random
        kind = random.choice(_DAMAGED_KINDS)
        if machine.disk.flip(kind):
            self.counts["bits flipped"] += 1
            self.counts[DATABASE_FLIPS] += kind == "database"
            if random.random() < self.faults.flip_crash_chance:
                # Only a start reads most of the data on a disk.
                machine.crash(power_cut=random.random() < self.faults.power_cut_chance)
                self.restart_later(machine)
        self._again(self._flip_bit)

    def _stall_disk(self) -> None:
        self.counts["disk stalls"] += 1
        self._victim().stall(self._random.uniform(*self.faults.disk_stall_time))
        self._again(self._stall_disk)

    # Executors.

    def _fail_job(self) -> None:
        """Make the next job of some executor fail, at some call to the disk."""
        machine, random = self._victim(), self._random
        if not machine.is_dead:
            self.counts["jobs failed"] += 1
            machine.executor.fail(random.choice(WITH_A_DISK), random.randint(0, _JOB_CALLS_MAX))
        self._again(self._fail_job)

    def _kill_helper(self) -> None:
        machine = self._victim()
        if not machine.is_dead:
            machine.executor.kill_helper(self._random.randint(0, _HELPER_PAUSES_MAX))
        self._again(self._kill_helper)

    def _hang_helper(self) -> None:
        machine = self._victim()
        if not machine.is_dead:
            self.counts["helpers hung"] += 1
            machine.executor.hang_helper(self._random.uniform(*self.faults.helper_hang_time))
        self._again(self._hang_helper)

    def note_stop(self, machine: Machine) -> None:
        """Schedule the repair of a machine whose member stopped because of its disk."""
        self.counts["members stopped"] += 1
        self._world.after(self._random.uniform(*self.faults.down_time), self._repair, machine)

    def _repair(self, machine: Machine) -> None:
        if machine.is_dead and not (machine.is_retired or machine.has_left):
            machine.disk.restore()
            machine.start()

    # The end.

    def stop(self, faults: Faults) -> None:
        """Stop all faults, and mend what they broke."""
        self.faults = faults
        self._network.heal()
        for machine in list(self._machines.values()):
            machine.disarm()
            if machine.is_ending:
                # Clients and other members may delay its end for long.
                machine.crash(power_cut=False)
            if machine.disk.is_damaged:
                machine.crash(power_cut=False)
                machine.disk.restore()
            if machine.is_dead and not machine.has_left:
                machine.start()
