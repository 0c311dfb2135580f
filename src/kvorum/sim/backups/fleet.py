"""All backup programs of a run, their archives, and the options that the seed draws for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from kvorum.sim.backups.archive_disk import ArchiveDisk
from kvorum.sim.backups.checks import ArchiveChecker, Lines
from kvorum.sim.backups.forks import MEMBERS_MIN, Fork
from kvorum.sim.backups.recorders import Children, Recorder, Service
from kvorum.sim.backups.shell import threads_installed
from kvorum.sim.backups.threads import Threads
from kvorum.sim.violation import Violation
from kvorum.tools.backup.session import BackupOptions

if TYPE_CHECKING:
    from kvorum.sim.cluster import Cluster
    from kvorum.sim.world import World

CHANCE = 0.16
"""Chance that a run without users has backups; this makes an eighth of all runs."""
BACKED_UP = "backups are made in bounded time"
QUIET_SECONDS_MAX = 30.0
"""Everything must be in the archives within this time after faults have ended."""
CHECK_SECONDS = 0.1
_CONSTANTS: dict[str, object] = {
    "RETRY_SECONDS": 0.3,
    "TURN_SECONDS": 0.2,
    "UNANSWERED_SECONDS_MAX": 2.0,
    "ANSWER_SECONDS_MAX": 2.0,
}
"""Replacements for production's times that are longer than a run."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Backups:
    """Which programs make backups, and which faults they get."""

    forms: tuple[str, ...]
    """The forms of the programs beside the cluster: `every`, `once`, or `mixed`."""
    is_shared: bool
    """Whether two programs write to one archive."""
    by_members: bool
    """Whether the members make the backups, into one archive."""
    every_seconds: float
    keep: int
    log_seconds: float
    segment_bytes: int
    kill_gap: float
    """Average time between two deaths of a program; in all gaps, 0 means never."""
    clock_gap: float
    """Average time between two jumps of a program's clock."""
    disk_gap: float
    """Average time between two faults of an archive's disk."""
    disturb_gap: float
    """Average time between two faults of a program's process and its network."""
    is_forked: bool
    """Whether the run, once checked, forces a new cluster from a member that lacks revisions."""


def draw_backups(random: Random) -> Backups | None:
    """Draw the backup programs of a run; None, as for most runs, if it has none."""
    if random.random() >= CHANCE:
        return None
    by_members = random.random() < 0.3
    forms = [random.choice(["every", "once", "mixed"])]
    if random.random() < 0.3:
        forms.append(random.choice(["every", "once", "mixed"]))

    def gap(*seconds: float) -> float:
        return random.choice(seconds) if random.random() < 0.7 else 0.0

    return Backups(
        forms=() if by_members else tuple(forms),
        is_shared=random.random() < 0.5,
        by_members=by_members,
        every_seconds=random.choice([0.3, 1.0, 3.0]),
        keep=random.choice([1, 1, 2, 4]),
        log_seconds=random.choice([0.1, 0.3, 1.0]) if random.random() < 0.93 else 0.0,
        segment_bytes=random.choice([300, 2000, 8 << 20]),
        kill_gap=gap(0.3, 1.0, 2.0),
        clock_gap=gap(0.5, 1.5, 4.0),
        disk_gap=gap(0.5, 1.5, 4.0),
        disturb_gap=gap(1.0, 3.0),
        is_forked=random.random() < 0.5,
    )


class BackupFleet:
    """The backup programs of a run."""

    def __init__(self, world: World, cluster: Cluster, plan: Backups) -> None:
        self._world = world
        self._cluster = cluster
        self._plan = plan
        self._random: Random = world.stream("backup fleet")
        self.threads = Threads(world)
        self.lines = Lines(cluster.history)
        self.disks: list[ArchiveDisk] = []
        self.checkers: list[ArchiveChecker] = []
        self.services: list[Service] = []
        options = BackupOptions(
            every_seconds=plan.every_seconds, keep=plan.keep, log_seconds=plan.log_seconds
        )
        if plan.by_members:
            disk, checker = self._make_archive("members", shared=True)
            self.services.append(Children(self.threads, cluster, disk, checker, options))
        self.is_shared = is_shared = plan.is_shared and len(plan.forms) > 1
        for number, form in enumerate(plan.forms, 1):
            if number == 1 or not is_shared:
                disk, checker = self._make_archive(f"a{number}", shared=is_shared)
            self.services.append(
                Recorder(self.threads, cluster, disk, checker, options, f"b{number}", form)
            )

    def _make_archive(self, name: str, *, shared: bool) -> tuple[ArchiveDisk, ArchiveChecker]:
        world, disk = self._world, ArchiveDisk(self._world.stream(f"place {name}"))
        checker = ArchiveChecker(
            world,
            name,
            disk,
            self.lines,
            has_log=self._plan.log_seconds > 0.0,
            shared=shared,
        )
        self.disks.append(disk)
        self.checkers.append(checker)
        return disk, checker

    # A run.

    def start(self, until: float) -> None:
        """Start all programs, and inject faults into them until a moment."""
        plan = self._plan
        for service in self.services:
            service.start()
            service.disturb(until, plan.disturb_gap)
            self._repeat(until, plan.kill_gap, service.fail)
            self._repeat(until, plan.clock_gap, service.jump)
        for disk in self.disks:
            self._repeat(until, plan.disk_gap, partial(self._inject_fault, disk))

    def _repeat(self, until: float, gap: float, trouble: Callable[[], None]) -> None:
        """Inject a fault again and again, at random intervals around `gap`."""
        if not gap:
            return
        moment = self._world.now + self._random.expovariate(1 / gap)

        def happen() -> None:
            trouble()
            self._repeat(until, gap, trouble)

        if moment < until:
            self._world.at(moment, happen)

    def _inject_fault(self, disk: ArchiveDisk) -> None:
        random = self._random
        choice = random.random()
        if choice < 0.4:
            disk.fail_after(random.randint(0, 20))
        elif choice < 0.6:
            disk.fill_up()
            self._world.after(random.uniform(0.1, 1.0), disk.relieve)
        else:
            for service in self.services:
                if service.disk is disk:
                    service.kill()
            disk.cut_power()

    def calm_down(self) -> None:
        """Stop injecting faults and correct all clocks."""
        for disk in self.disks:
            disk.relieve()
        for service in self.services:
            service.calm_down()

    def expect_quiet(self, members: Sequence[int]) -> None:
        """Require that all programs back up in bounded time; then stop them and check archives."""
        world, least = self._world, self.lines.revision
        deadline = world.now + QUIET_SECONDS_MAX
        for service in self.services:
            service.finish(list(members), least)
        if not world.run_while_polling(
            lambda: not all(each.has_backed_up for each in self.services), deadline, CHECK_SECONDS
        ):
            late = [each for each in self.services if not each.has_backed_up]
            raise Violation(
                BACKED_UP,
                f"{QUIET_SECONDS_MAX:.0f} s later not: {', '.join(map(str, late))}; the store is "
                f"at {least}",
            )
        for service in self.services:
            service.stop()
        if not world.run_while_polling(
            lambda: any(each.is_running for each in self.services), deadline, CHECK_SECONDS
        ):
            late = [each for each in self.services if each.is_running]
            raise Violation(BACKED_UP, f"told to stop, and go on: {', '.join(map(str, late))}")
        for checker in self.checkers:
            checker.check(is_quiet=True, least=least)

    def fork_if_planned(self) -> None:
        """Fork the cluster to before the last backup, if the seed says so, and let it continue."""
        if self._plan.is_forked and len(self._cluster.members) >= MEMBERS_MIN:
            Fork(self._world, self._cluster, self).run()

    def fork(self, revision: int) -> None:
        """Record that the cluster has gone back to a revision."""
        self.lines.fork(revision)
        for checker in self.checkers:
            checker.note_fork()

    def close(self) -> None:
        """End all programs because the run is over."""
        for service in self.services:
            service.close()

    def counts(self) -> dict[str, int]:
        """Return how often each kind of event happened."""
        return {
            "backups: snapshots": sum(each.snapshots for each in self.checkers),
            "backups: segments": sum(each.segments for each in self.checkers),
            "backups: archives judged": sum(each.checks for each in self.checkers),
            "backups: points restored": sum(each.points for each in self.checkers),
            "backups: clusters forked": len(self.lines) - 1,
        }

    def troubles(self) -> dict[str, int]:
        """Return how often each kind of fault happened."""
        return {
            "backups killed": sum(each.kills for each in self.services),
            "clocks of backups jumped": sum(each.jumps for each in self.services),
            "disks of archives failed": sum(each.failures for each in self.disks),
            "archives lost power": sum(each.power_cuts for each in self.disks),
        }


@contextmanager
def backups_installed(fleet: BackupFleet | None, plan: Backups | None) -> Iterator[None]:
    """Run backup code on the simulated threads of a run within the block."""
    if fleet is None or plan is None:
        yield
        return
    constants = _CONSTANTS | {"SEGMENT_BYTES_MAX": plan.segment_bytes}
    with threads_installed(fleet.threads, constants):
        yield
