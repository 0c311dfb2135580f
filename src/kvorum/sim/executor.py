"""The executors of a machine's jobs, in place of a process's threads, writers and helper.

Production's `kvorum.server.jobs.JobOrder` orders the jobs, and the jobs are production's, too. The
seed decides how long each executor takes, which of them fails at which call to the disk, and where
the process ends amid their work. Jobs of the helper run step by step, so that flushes, switches and
installed snapshots happen amid an image, a copy or a hash; the helper may hang there, or die.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from kvorum.member.jobs import ExecutorKind, Job, JobLostError
from kvorum.server.jobs import Outcome
from kvorum.sim.disk import ProcessEnd
from kvorum.sim.faults import Span
from kvorum.sim.steps import Stepped
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.mvcc.hashes import HashRows
from kvorum.storage.backend.errors import BackendError

if TYPE_CHECKING:
    from kvorum.sim.machine import Machine

_INLINE_CHANCE = 0.5
"""The chance that the loop appends to the log itself, where production might do so."""
_BEGUN_CHANCE = 0.67
"""The chance that an executor has at least started its job when the process ends."""
_POOL_THREADS = 2
_PASSWORD_TIME = (0.0005, 0.02)
_IDLE_PASSWORD_TIME = (0.01, 0.5)
"""How long hashing a password takes: it needs no disk, so no disk slows it down."""
_PAUSE_CHANCES = (0.0, 0.0, 0.0, 0.1, 0.3)
"""The chances that a job of the helper pauses at a call to the disk or a read of the database; each
job draws one of these. Many do not pause at all, because a pause costs two switches of stacks."""
_LOST = "the helper process ended with -9 before it answered"


class SimulatedWorker(Enum):
    """The executor that runs a job."""

    # Enum's own `__hash__` is a Python call at every dictionary lookup.
    __hash__ = object.__hash__

    LOOP = "loop"
    WRITER = "writer"
    THREAD = "thread"
    FLUSHER = "flusher"
    HELPER = "helper"
    POOL = "pool"
    PASSWORDS = "passwords"
    PASSWORDS_IDLE = "idle passwords"


_WORKERS = {
    ExecutorKind.LOG: SimulatedWorker.THREAD,
    ExecutorKind.FLUSHER: SimulatedWorker.FLUSHER,
    ExecutorKind.HELPER: SimulatedWorker.HELPER,
    ExecutorKind.POOL: SimulatedWorker.POOL,
    ExecutorKind.PASSWORDS: SimulatedWorker.PASSWORDS,
    ExecutorKind.PASSWORDS_IDLE: SimulatedWorker.PASSWORDS_IDLE,
}

_WITHOUT_A_DISK = (SimulatedWorker.PASSWORDS, SimulatedWorker.PASSWORDS_IDLE)
WITH_A_DISK = tuple(worker for worker in SimulatedWorker if worker not in _WITHOUT_A_DISK)
"""Executors that a disk can fail."""


class HelperEnd(BaseException):
    """Ends the helper process. No production code may catch it."""


class SimulatedExecutor:
    """The executors of one process."""

    __slots__ = (
        "_damage",
        "_failed_work",
        "_failing",
        "_hang_seconds",
        "_has_writer_failed",
        "_kill_pauses",
        "_machine",
        "_pause_chance",
        "_queues",
        "_random",
        "_stepped",
        "_world",
        "_written",
        "ended",
    )

    def __init__(self, world: World, machine: "Machine", random: Random) -> None:
        self.ended: Callable[[Job, object, Exception | None], None]
        self._world = world
        self._machine = machine
        self._random = random
        # The jobs of each executor, in order; it runs the first one, the pool the first two.
        self._queues: dict[SimulatedWorker, deque[Job]] = {
            worker: deque() for worker in SimulatedWorker
        }
        # Appends that the writer has finished but not reported, and whether any append failed.
        self._written: list[tuple[Job, Exception | None]] = []
        self._has_writer_failed = False
        # The name of the log's work that failed, if any.
        self._failed_work = ""
        # The helper's job that is paused amid its work, and how often the disk had been damaged
        # when that job began.
        self._stepped: Stepped | None = None
        self._damage = 0
        self._pause_chance = 0.0
        # The executor whose next job is to fail, and after how many calls to the disk.
        self._failing: tuple[SimulatedWorker, int] | None = None
        # After how many pauses of its jobs the helper dies; how long it hangs at the next one.
        self._kill_pauses: int | None = None
        self._hang_seconds = 0.0

    # Faults.

    def fail(self, worker: SimulatedWorker, calls: int) -> None:
        """Make the next job of an executor fail after `calls` calls to the disk."""
        self._failing = (worker, calls)

    def kill_helper(self, pauses: int) -> None:
        """Make the helper die amid a job, after `pauses` pauses."""
        self._kill_pauses = pauses

    def hang_helper(self, seconds: float) -> None:
        """Make the helper hang amid a job."""
        self._hang_seconds = seconds

    def relieve(self) -> None:
        """Cancel all planned faults."""
        self._failing = self._kill_pauses = None
        self._hang_seconds = 0.0

    def abandon(self) -> None:
        """Interrupt the helper's job: the process ends."""
        if self._stepped is not None:
            self._interrupt(self._stepped, ProcessEnd())

    def interrupt(self) -> None:
        """End with the process: the jobs under way are done, not done, or half done."""
        random, disk = self._random, self._machine.disk
        is_helping = self._stepped is not None
        self.abandon()
        for worker, jobs in self._queues.items():
            if (
                not jobs
                or (worker is SimulatedWorker.HELPER and is_helping)
                or self._has_ended(worker)
            ):
                continue
            if random.random() < _BEGUN_CHANCE:
                # Half of these stop midway, at a call to the disk that the seed chooses.
                disk.cut_off_after(random.randint(0, 3) if random.random() < 0.5 else None)
                if not self._finish([jobs[0]]):
                    break

    def stop(self) -> None:
        """End as in a process that stops: threads finish their jobs, the helper is killed.

        The writer finishes its current append, and starts no other.
        """
        self.abandon()
        queues = self._queues
        for worker in (
            SimulatedWorker.WRITER,
            SimulatedWorker.THREAD,
            SimulatedWorker.FLUSHER,
            SimulatedWorker.POOL,
        ):
            jobs = list(queues[worker])
            if not self._has_ended(worker) and not self._finish(
                jobs[: 1 if worker is SimulatedWorker.WRITER else None]
            ):
                break

    def _has_ended(self, worker: SimulatedWorker) -> bool:
        return worker is SimulatedWorker.WRITER and self._has_writer_failed

    def _finish(self, jobs: list[Job]) -> bool:
        """Run jobs without reporting their end; return whether the process survived them."""
        disk = self._machine.disk
        for job in jobs:
            self._check(job)
            try:
                job.run(disk.files, disk.environments)
            except ProcessEnd:
                return False
            except (OSError, BackendError):
                # The disk fails as well, and no caller is left to handle the error.
                continue
        return True

    # The interface for `JobOrder`.

    @property
    def is_quick(self) -> bool:
        """Whether the disk is so fast that the loop may wait for an append."""
        return self._random.random() < _INLINE_CHANCE

    def append_here(self, job: Job) -> Exception | None:
        """Append to the log at once, in the loop; return the error, if it failed."""
        self._machine.output()
        return self._run(SimulatedWorker.LOOP, job)[1]

    def append(self, job: Job) -> None:
        """Append to the log after all earlier appends; once one has failed, this one fails, too."""
        self._enqueue(SimulatedWorker.WRITER, job)

    def begin(self, job: Job) -> None:
        """Queue a job for its executor."""
        self._enqueue(_WORKERS[job.executor], job)

    def wait_for(self, job: Job) -> Outcome:
        """Run this job, the flusher's next one, at once; return its outcome without a report."""
        first = self._queues[SimulatedWorker.FLUSHER].popleft()
        assert first is job
        return self._run(SimulatedWorker.FLUSHER, job)

    def collect(self) -> None:
        """Report the appends that the writer has finished."""
        written, self._written = self._written, []
        for job, error in written:
            self.ended(job, None, error)

    # Running jobs.

    def _enqueue(self, worker: SimulatedWorker, job: Job) -> None:
        self._machine.output()
        queue = self._queues[worker]
        queue.append(job)
        if len(queue) <= _at_once(worker):
            self._start(worker, job)

    def _start(self, worker: SimulatedWorker, job: Job) -> None:
        seconds = self._random.uniform(*self._span(worker))
        if worker not in _WITHOUT_A_DISK:
            seconds += self._machine.stalled_seconds
        self._world.after(seconds, self._run_due, self._machine.incarnation, worker, job)

    def _span(self, worker: SimulatedWorker) -> Span:
        faults = self._machine.faults
        if worker in (SimulatedWorker.WRITER, SimulatedWorker.THREAD):
            return faults.log_time
        if worker in _WITHOUT_A_DISK:
            return _PASSWORD_TIME if worker is SimulatedWorker.PASSWORDS else _IDLE_PASSWORD_TIME
        return faults.flush_time if worker is SimulatedWorker.FLUSHER else faults.helper_time

    def _run_due(self, incarnation: int, worker: SimulatedWorker, job: Job) -> None:
        """Run a job, or the next part of it, when its simulated time has passed."""
        machine = self._machine
        if incarnation != machine.incarnation or job not in self._queues[worker]:
            return  # the process has ended, or the loop has waited for this job
        if not machine.later(self._run_due, incarnation, worker, job):
            machine.run_guarded(
                self._run_in_helper if worker is SimulatedWorker.HELPER else self._run_first,
                worker,
                job,
            )

    def _run_first(self, worker: SimulatedWorker, job: Job) -> None:
        chance = self._machine.faults.password_error_chance
        if worker in _WITHOUT_A_DISK and chance and self._random.random() < chance:
            # Hashing only computes: the one thing that can fail is getting memory.
            self._end(worker, job, (None, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))))
        elif worker is SimulatedWorker.WRITER and self._has_writer_failed:
            self._end(worker, job, (None, OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))))
        else:
            self._end(worker, job, self._run(worker, job))

    def _end(self, worker: SimulatedWorker, job: Job, outcome: Outcome) -> None:
        """Record the end of a job, and start its executor's next one."""
        queue = self._queues[worker]
        queue.remove(job)
        if len(queue) >= _at_once(worker):
            self._start(worker, queue[_at_once(worker) - 1])
        if worker is SimulatedWorker.WRITER:
            self._has_writer_failed |= outcome[1] is not None
            self._written.append((job, outcome[1]))
        else:
            self.ended(job, *outcome)
        self._machine.request_turn()

    def _run(self, worker: SimulatedWorker, job: Job) -> Outcome:
        """Run a job without pauses."""
        self._check(job)
        disk, failing = self._machine.disk, self._failing
        if failing is None or failing[0] is not worker:
            return self._outcome(job, lambda: job.run(disk.files, disk.environments))
        self._failing = None
        disk.fail_after(failing[1])
        try:
            return self._outcome(job, lambda: job.run(disk.files, disk.environments))
        finally:
            disk.fail_after(None)

    def _check(self, job: Job) -> None:
        """Require that no executor touches the log after a failure."""
        if job.executor is ExecutorKind.LOG and self._failed_work:
            name = type(job.work).__name__
            raise Violation(
                "the log ends at a failure",
                f"{self._machine.name} begins {name} after {self._failed_work} has failed",
            )

    def _outcome(self, job: Job, work: Callable[[], object], damage: int | None = None) -> Outcome:
        """Return the outcome of work; `damage` is the disk's at its start, by default of now."""
        machine, name = self._machine, type(job.work).__name__
        if damage is None:
            damage = machine.disk.damage_count
        try:
            result = work()
        except Exception as error:
            machine.line(f"{name} failed: {error}")
            if job.executor is ExecutorKind.LOG and job.on_failure is None:
                self._failed_work = name
            return None, error
        if isinstance(job.work, HashRows) and machine.disk.damage_count == damage:
            machine.note_hash(job.work, result)
        machine.line(f"did {name}")
        return result, None

    # The helper.

    def _run_in_helper(self, worker: SimulatedWorker, job: Job) -> None:
        """Run the helper's job up to its next pause."""
        disk = self._machine.disk
        stepped = self._stepped
        if stepped is None:
            self._pause_chance = self._random.choice(_PAUSE_CHANCES)
            if self._kill_pauses is not None or self._hang_seconds:
                self._pause_chance = 1.0
            if not self._pause_chance or (self._failing and self._failing[0] is worker):
                self._run_first(worker, job)
                return
            stepped = self._stepped = Stepped(lambda: job.run(disk.files, disk.environments))
            self._damage = disk.damage_count
        self._with_pauses(stepped.advance)
        if stepped.has_ended:
            self._stepped = None
            self._end(worker, job, self._outcome(job, stepped.result, self._damage))
        elif self._kill_pauses == 0:
            self._kill_pauses = None
            self._machine.helpers_lost += 1
            self._machine.line(f"the helper dies amid {type(job.work).__name__}")
            self._interrupt(stepped, HelperEnd())
            self._end(worker, job, (None, JobLostError(_LOST)))
        else:
            if self._kill_pauses is not None:
                self._kill_pauses -= 1
            seconds = self._random.random() * self._span(worker)[1] + self._hang_seconds
            if self._hang_seconds:
                self._machine.line(f"the helper hangs for {seconds:.3f}")
                self._hang_seconds = 0.0
            self._world.after(seconds, self._run_due, self._machine.incarnation, worker, job)

    def _with_pauses(self, call: Callable[[], None]) -> None:
        environments = self._machine.disk.environments
        environments.pause = self._pause
        call()
        environments.pause = None

    def _pause(self) -> None:
        """Pause the helper's job, sometimes, so that other events happen amid it."""
        assert self._stepped is not None
        self._stepped.pause(is_wanted=self._random.random() < self._pause_chance)

    def _interrupt(self, stepped: Stepped, end: BaseException) -> None:
        """End the helper's job at its pause; none of its clean-up reaches the disk."""
        self._with_pauses(lambda: stepped.end(end))
        self._stepped = None


def _at_once(worker: SimulatedWorker) -> int:
    return _POOL_THREADS if worker is SimulatedWorker.POOL else 1
