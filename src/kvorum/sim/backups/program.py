"""One life of a backup program: its threads, its client, and its reports.

It runs `kvorum.tools.backup.running.Backup`, as `kvorumctl backup` and a member's child process do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvorum.client.core import Core, CoreSettings
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import KvorumError
from kvorum.client.options import TIMEOUT_SECONDS
from kvorum.sim.backups.archive_disk import PATH, ArchiveDisk, ProgramFiles
from kvorum.sim.backups.shell import ThreadedShell, ThreadedSimClient
from kvorum.sim.backups.threads import SimThread, Threads
from kvorum.sim.disk import ProcessEnd
from kvorum.sim.violation import Violation
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.names import SegmentName
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.session import BackupOptions
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.taking import Taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.sim.cluster import Cluster
    from kvorum.sim.library.process import Process

SERVES = "backups go on"


class Clock:
    """The wall clock of a machine on which programs run."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = 0.0
        """By how many seconds the clock is fast."""


class Listener:
    """Receives the reports of an archive's programs."""

    def note_object(self, program: Program, name: str, revision: int, *, is_snapshot: bool) -> None:
        """Handle a completed object: its name, and the newest revision in it."""

    def note_end(self, program: Program) -> None:
        """Handle the end of a program, also when it was killed."""


class Host(NamedTuple):
    """The environment of a program."""

    threads: Threads
    cluster: Cluster
    disk: ArchiveDisk
    process: Process
    clock: Clock
    listener: Listener


class Program:
    """One life of a program; a restart makes another object."""

    def __init__(
        self,
        host: Host,
        life: int,
        options: BackupOptions,
        members: Sequence[int],
        *,
        is_once: bool,
        timeout: float = TIMEOUT_SECONDS,
        asks_for_turn: bool = False,
    ) -> None:
        """Start the program, with a client for these members; it asks a random one first."""
        self.process, self.clock, self.life = host.process, host.clock, life
        self.is_once = is_once
        self.is_dead = False
        self.is_stopping = False
        self.error: Exception | None = None
        """Why a program that makes a single backup failed."""
        self.has_succeeded = False
        self.began_at = host.threads.world.now
        self._host = host
        self._world = host.threads.world
        self._threads: list[SimThread] = []
        self._steps_left: int | None = None
        self._random = self._world.stream(f"program {self.process.name} {life}")
        core = Core(
            [parse_endpoint(f"m{number}:2379") for number in members],
            CoreSettings(),
            start=self._random.randrange(len(members)),
        )
        self.shell = ThreadedShell(host.threads, host.cluster, self, core)
        self._client = client = ThreadedSimClient(self.shell, timeout)
        self._files = ProgramFiles(host.threads, self, host.disk)
        store = DirectoryStore(self._files, PATH)
        leads: Callable[[], bool] = lambda: True  # noqa: E731
        if asks_for_turn:
            leads = lambda: client.maintenance.status().is_leader  # noqa: E731
        self.backup = Backup(client, store, options, self, leads)
        self.line(f"starts {'once' if is_once else 'to go on'} with {options}")
        self.start_thread(self._run)

    def line(self, text: str) -> None:
        """Add a line to the trace."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.process.name, text)

    # Threads.

    def start_thread(self, call: Callable[[], object]) -> None:
        """Start another thread of the program."""
        self._threads.append(SimThread(self._host.threads, self, call))

    def thread_ended(self, thread: SimThread) -> None:
        """Handle the end of a thread; the end of the first thread ends the program."""
        if thread is self._threads[0]:
            self._end("ended")

    def _run(self) -> None:
        try:
            if self.is_once:
                self.backup.run_once()
                self.has_succeeded = not self.is_stopping
            else:
                self.backup.run()
        except (KvorumError, ArchiveError) as error:
            if not self.is_once:
                raise Violation(SERVES, f"{self.process.name} ended with {error!r}") from error
            self.line(f"failed: {error}")
            self.error = error

    # The end of the program.

    def stop(self) -> None:
        """Ask the program to store what it has received and then end, as a signal does."""
        if not self.is_dead and not self.is_stopping:
            self.line("is to stop")
            self.is_stopping = True
            self.backup.stop()

    def kill(self) -> None:
        """Kill the program now; must not be called from one of its threads."""
        if not self.is_dead:
            self._end("killed")

    def kill_at_step(self, steps: int) -> None:
        """Kill the program before a call that changes its archive, after `steps` such calls."""
        self._steps_left = steps

    def spare(self) -> None:
        """Revoke `kill_at_step`."""
        self._steps_left = None

    def count_step(self, what: str) -> None:
        """Count a call that changes the archive; raises ProcessEnd if the program dies there."""
        if self._steps_left is None or self.is_dead:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self.is_dead = True
            self.line(f"killed before {what}")
            # A thread of the program cannot end the program's threads.
            self._world.after(0.0, self._end, "")
            raise ProcessEnd

    def _end(self, how: str) -> None:
        self.is_dead = True
        if how:
            self.line(how)
        self._files.close_all()
        self.shell.close()
        for thread in self._threads:
            thread.end()
        self._host.listener.note_end(self)

    # Reports of the backup.

    def note_history_started(self, history: str, reason: str) -> None:
        """Trace that a new history started."""
        self.line(f"begins history {history}: {reason}")

    def note_progress(self, received: int, remaining: int) -> None:
        """Ignore the progress of a snapshot."""

    def note_snapshot(self, taken: Taken) -> None:
        """Report a completed snapshot."""
        self.line(f"took {taken.name}, removed {len(taken.removed)}")
        self._host.listener.note_object(
            self, str(taken.name), taken.manifest.facts.revision, is_snapshot=True
        )

    def note_segment(self, name: SegmentName, size: int) -> None:
        """Report changes that are in the archive."""
        self.line(f"recorded {name}, {size} bytes")
        self._host.listener.note_object(self, str(name), name.last, is_snapshot=False)

    def note_failure(self, what: str, error: Exception) -> None:
        """Trace a failure that will be retried."""
        self.line(f"{what} failed: {error}")

    def note_warning(self, text: str) -> None:
        """Trace a warning that an operator should read."""
        self.line(f"warns: {text}")
