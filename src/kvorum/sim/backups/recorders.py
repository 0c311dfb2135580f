"""The services that run backup programs: beside the cluster, or as children of members.

A service restarts its program whenever it has ended, as a timer or a supervisor does. A child
starts with its member's process, calls only that member, and must stop when the member has ended.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from kvorum.client.endpoints import parse_endpoint
from kvorum.client.options import TIMEOUT_SECONDS
from kvorum.sim.backups.program import Clock, Host, Listener, Program
from kvorum.sim.library.process import Process
from kvorum.sim.machine import CLOCK_JUMP
from kvorum.tools.backup.child import ANSWER_SECONDS_MAX
from kvorum.tools.backup.session import BackupOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.sim.arrivals import Front
    from kvorum.sim.backups.archive_disk import ArchiveDisk
    from kvorum.sim.backups.checks import ArchiveChecker
    from kvorum.sim.backups.threads import Threads
    from kvorum.sim.cluster import Cluster
    from kvorum.sim.machine import Machine

_DOWN_SECONDS = (0.02, 0.3, 1.5)
"""Average times for which a program is down; each restart uses one of them."""
_STEPS_MAX = 25
_RIGHT_CHANCE = 0.4
"""Chance that a jump sets a clock to the right time."""
_CHILD_SECONDS_MAX = 5.0
"""How long an orphaned child may still write to the archive before it is killed."""
_CHECK_SECONDS = 0.1


class Service(Listener):
    """Programs that make backups into one archive, and the faults injected into them."""

    def __init__(
        self,
        threads: Threads,
        cluster: Cluster,
        disk: ArchiveDisk,
        checker: ArchiveChecker,
        options: BackupOptions,
        name: str,
    ) -> None:
        self.name = name
        self.disk = disk
        self.kills = 0
        self.jumps = 0
        self._threads = threads
        self._world = threads.world
        self._cluster = cluster
        self._checker = checker
        self._options = options
        self._random: Random = threads.world.stream(f"service {name}")
        self._lives = 0
        self._programs: list[Program] = []
        self._is_ending = False
        self._is_killed_when_taken = False
        # When faults ended, and the revision that backups must reach from then on.
        self._quiet_since: float | None = None
        self._least = 0
        self._has_taken = False

    def __str__(self) -> str:
        complete = self._checker.is_complete(self._least)
        return f"{self.name} (took a snapshot: {self._has_taken}, complete: {complete})"

    @property
    def is_running(self) -> bool:
        """Whether any program runs."""
        return bool(self._programs)

    @property
    def has_backed_up(self) -> bool:
        """Whether a snapshot was taken since `finish`, and the archive reaches its revision."""
        return self._has_taken and self._checker.is_complete(self._least)

    def start(self) -> None:
        """Start the service."""

    def stop(self) -> None:
        """Ask all programs to stop, and start no more."""
        self._is_ending = True
        for program in list(self._programs):
            program.stop()

    def resume(self) -> None:
        """Restart after `stop`."""
        self._is_ending = False
        self._quiet_since = None
        self.start()

    def close(self) -> None:
        """Kill all programs because the run is over."""
        self._is_ending = True
        self.kill()

    def finish(self, members: Sequence[int], least: int) -> None:
        """From now on require a backup up to revision `least`, taken from these members."""
        self._least = least
        self._quiet_since = self._world.now
        self._has_taken = False
        for program in self._programs:
            if members:
                addresses = [parse_endpoint(f"m{number}:2379") for number in members]
                program.shell.set_endpoints(addresses)

    # Reports from programs.

    def note_object(self, program: Program, name: str, revision: int, *, is_snapshot: bool) -> None:
        """Handle a completed object."""
        self._checker.note_object(program, name, revision, is_snapshot=is_snapshot)
        if is_snapshot:
            self._has_taken = True
            if self._is_killed_when_taken:
                self._is_killed_when_taken = False
                # This kills the program before it has flushed its log again.
                seconds = self._random.uniform(0.0, self._options.log_seconds)
                self._world.after(seconds, program.kill)

    def note_end(self, program: Program) -> None:
        """Handle the end of a program."""
        self._programs.remove(program)
        self._checker.note_end(program)

    # Faults.

    def disturb(self, until: float, gap: float) -> None:
        """Inject faults into the programs' processes until a moment."""

    def fail(self) -> None:
        """Make a program end, in a random way at a random point."""
        if not self._programs:
            return
        random = self._random
        program = random.choice(self._programs)
        choice = random.random()
        self.kills += 1
        if choice < 0.25:
            program.kill()
        elif choice < 0.55:
            program.kill_at_step(random.randint(0, _STEPS_MAX))
        elif choice < 0.8:
            self._is_killed_when_taken = True
        else:
            program.stop()

    def kill(self) -> None:
        """Kill all programs."""
        for program in list(self._programs):
            program.kill()

    def jump(self) -> None:
        """Make a clock jump, by hours or back to the right time."""

    def calm_down(self) -> None:
        """Stop injecting faults."""
        self._is_killed_when_taken = False
        for program in self._programs:
            program.spare()

    def _set_clock(self, clock: Clock) -> None:
        random = self._random
        self.jumps += 1
        clock.offset = 0.0 if random.random() < _RIGHT_CHANCE else random.uniform(*CLOCK_JUMP)
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, f"clock is off {clock.offset:.1f} s")


class Recorder(Service):
    """A program beside the cluster, restarted whenever it ends; it runs on, or makes one backup."""

    def __init__(
        self,
        threads: Threads,
        cluster: Cluster,
        disk: ArchiveDisk,
        checker: ArchiveChecker,
        options: BackupOptions,
        name: str,
        form: str,
    ) -> None:
        super().__init__(threads, cluster, disk, checker, options, name)
        self._form = form
        self._process = Process(threads.world, name)
        self._clock = Clock()
        self._has_succeeded = False
        if self._random.random() < 0.5:
            self._clock.offset = self._random.uniform(*CLOCK_JUMP)

    def start(self) -> None:
        """Start the program soon."""
        self._world.after(self._random.uniform(0.1, 1.0), self._begin)

    def _begin(self) -> None:
        if self._is_ending or self._programs:
            return
        self._lives += 1
        is_once = self._form == "once" or (self._form == "mixed" and self._random.random() < 0.5)
        host = Host(self._threads, self._cluster, self.disk, self._process, self._clock, self)
        program = Program(
            host,
            self._lives,
            self._options,
            self._cluster.members,
            is_once=is_once,
            timeout=TIMEOUT_SECONDS,
        )
        self._programs.append(program)

    def note_end(self, program: Program) -> None:
        """Restart the program, unless a single backup succeeded since `finish`."""
        super().note_end(program)
        quiet = self._quiet_since
        if program.has_succeeded and quiet is not None and program.began_at >= quiet:
            self._has_succeeded = True
            return
        if not self._is_ending:
            seconds = self._random.expovariate(1.0) * self._random.choice(_DOWN_SECONDS)
            self._world.after(seconds, self._begin)

    @property
    def has_backed_up(self) -> bool:
        """Whether a single backup has succeeded, or the archive is as complete as required."""
        return self._has_succeeded or super().has_backed_up

    def finish(self, members: Sequence[int], least: int) -> None:
        """From now on require a backup up to revision `least`, taken from these members."""
        super().finish(members, least)
        self._has_succeeded = False
        self._world.after(0.0, self._begin)

    def disturb(self, until: float, gap: float) -> None:
        """Pause and partition the program's process at random, until a moment."""
        if gap:
            self._process.disturb(until, gap)

    def cut_off(self, seconds: float) -> None:
        """Partition the program from all members for this many seconds."""
        self._process.cut_until = self._world.now + seconds

    def jump(self) -> None:
        """Make the program's clock jump."""
        self._set_clock(self._clock)

    def calm_down(self) -> None:
        """Stop injecting faults and correct the clock."""
        super().calm_down()
        self._clock.offset = 0.0


class _Socket:
    """A child's view of the cluster: only its own member's process."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        self._cluster = cluster
        self._machine = machine
        self._incarnation = machine.incarnation

    def front(self, number: int) -> Front | None:
        """Return the member's front while its process is still the same."""
        front = self._cluster.front(number)
        return front if self._machine.incarnation == self._incarnation else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


class Children(Service):
    """The child processes of members, which make backups while their member leads."""

    def __init__(
        self,
        threads: Threads,
        cluster: Cluster,
        disk: ArchiveDisk,
        checker: ArchiveChecker,
        options: BackupOptions,
    ) -> None:
        super().__init__(threads, cluster, disk, checker, options, "members")
        self._clocks: dict[int, Clock] = {}
        # The children of running members, by machine and incarnation.
        self._born: dict[tuple[int, int], Program] = {}

    def start(self) -> None:
        """Start to follow the members' processes."""
        self._start_missing()

    def _start_missing(self) -> None:
        if self._is_ending:
            return
        there = {
            (each.number, each.incarnation): each
            for each in self._cluster.machines.values()
            if each.member is not None and not each.is_dead
        }
        for key, program in list(self._born.items()):
            if key not in there:
                del self._born[key]
                self._handle_orphan(program)
            elif program.is_dead:
                del self._born[key]
        for key, machine in there.items():
            if key not in self._born:
                self._born[key] = self._child(machine)
        self._world.after(_CHECK_SECONDS, self._start_missing)

    def _handle_orphan(self, program: Program) -> None:
        """End the child of a member whose process ended, alone or with its machine."""
        if self._random.random() < 0.3:
            program.kill()
        else:
            program.stop()
            self._world.after(_CHILD_SECONDS_MAX, program.kill)

    def _child(self, machine: Machine) -> Program:
        self._lives += 1
        clock = self._clocks.setdefault(machine.number, Clock())
        process = Process(self._world, f"{machine.name}b{self._lives}")
        socket: Any = _Socket(self._cluster, machine)
        program = Program(
            Host(self._threads, socket, self.disk, process, clock, self),
            self._lives,
            self._options,
            [machine.number],
            is_once=False,
            timeout=ANSWER_SECONDS_MAX,
            asks_for_turn=True,
        )
        self._programs.append(program)
        return program

    def finish(self, members: Sequence[int], least: int) -> None:
        """From now on require a backup up to revision `least`; children keep their one member."""
        del members
        super().finish((), least)

    def jump(self) -> None:
        """Make the clock of a member's machine jump."""
        if self._clocks:
            self._set_clock(self._random.choice(list(self._clocks.values())))

    def calm_down(self) -> None:
        """Stop injecting faults and correct all clocks."""
        super().calm_down()
        for clock in self._clocks.values():
            clock.offset = 0.0
