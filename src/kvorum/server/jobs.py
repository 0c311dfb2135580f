"""The order in which an executor runs jobs.

Jobs of the log, of the flusher and of each helper run one after the other, and end in the order
they were submitted; jobs of the pool run at once. The log has three writers: the loop itself for
one small append when no other write is in progress and the disk is quick, a native writer that
queues several appends, and a thread for everything else. Each waits for the others.

After a job of the log has failed, unless it has an `on_failure`, no job of the log starts any more:
nobody knows what the failed job left on the disk, and only the next start may examine it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kvorum.member.jobs import Barrier, ExecutorKind, Job
from kvorum.storage.wal import AppendLog

Ended = tuple[Job, object, Exception | None]
"""An ended job, its result, and its error if it failed."""
Outcome = tuple[object, Exception | None]
"""A result and None, or None and an error."""


class Executor(Protocol):
    """The executor. It calls `ended` once for each job, after `append` or `begin` returned."""

    ended: Callable[[Job, object, Exception | None], None]
    """Takes the end of a job, on the loop."""

    @property
    def is_quick(self) -> bool:
        """Whether the disk is so quick that the loop may wait for an append."""

    def append_here(self, job: Job) -> Exception | None:
        """Append to the log in this call; return the error, if any, without calling `ended`."""

    def append(self, job: Job) -> None:
        """Queue an append to the log behind all earlier ones; it fails if one of those failed."""

    def begin(self, job: Job) -> None:
        """Start a job: the caller gives the log and each helper one at a time.

        The executor keeps the order of the flusher's jobs.
        """

    def wait_for(self, job: Job) -> Outcome:
        """Block until a started job of the flusher ends, without calling `ended` for it."""

    def collect(self) -> None:
        """Call `ended` for the jobs that have ended since the last time."""


class JobOrder:
    """Gives jobs to the executor in order; `take_ended` returns the ended ones."""

    __slots__ = (
        "_appending",
        "_ended",
        "_executor",
        "_flushing",
        "_has_log_failed",
        "_helping",
        "_is_log_busy",
        "_log_jobs",
    )

    def __init__(self, executor: Executor) -> None:
        self._executor: Final = executor
        executor.ended = self._take_end
        self._ended: list[Ended] = []
        # Jobs of the log that have not started, appends at the native writer, and whether the
        # log's thread is busy.
        self._log_jobs: deque[Job] = deque()
        self._appending: deque[Job] = deque()
        self._is_log_busy = False
        self._has_log_failed = False
        # Jobs of the flusher and of the helpers that have not ended. Of each helper's jobs, only
        # the first has started.
        self._flushing: deque[Job] = deque()
        self._helping: dict[ExecutorKind, deque[Job]] = {
            executor: deque()
            for executor in (
                ExecutorKind.HELPER,
                ExecutorKind.PASSWORDS,
                ExecutorKind.PASSWORDS_IDLE,
            )
        }

    def submit(self, jobs: Sequence[Job], inline_bytes_max: int = 0) -> None:
        """Take jobs; the loop writes an append of at most `inline_bytes_max` if the disk is quick.

        Wait for the flusher if a job is marked `is_awaited`.
        """
        for job in jobs:
            if job.executor is ExecutorKind.LOG:
                self._log_jobs.append(job)
            elif job.executor is ExecutorKind.FLUSHER:
                self._flushing.append(job)
                self._executor.begin(job)
                if job.is_awaited:
                    self._wait()
            elif job.executor in self._helping:
                waiting = self._helping[job.executor]
                waiting.append(job)
                if len(waiting) == 1:
                    self._begin_first(waiting)
            else:
                self._executor.begin(job)
        if self._log_jobs:
            self._advance_log(inline_bytes_max)

    def take_ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last call, in order for each executor."""
        self._executor.collect()
        if self._log_jobs:
            self._advance_log(0)
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_ended(self) -> bool:
        """Whether `take_ended` has something to return."""
        return bool(self._ended)

    def _advance_log(self, inline_bytes_max: int) -> None:
        """Start the jobs that may run: appends together, others alone, none after a failure."""
        waiting, executor = self._log_jobs, self._executor
        while waiting and not (self._is_log_busy or self._has_log_failed):
            job = waiting[0]
            if not isinstance(job.work, AppendLog):
                if self._appending:
                    return
                self._is_log_busy = True
                executor.begin(waiting.popleft())
                return
            waiting.popleft()
            is_small = len(job.work.data) <= inline_bytes_max
            if is_small and not self._appending and executor.is_quick:
                self._end_log_job(job, None, executor.append_here(job))
            else:
                self._appending.append(job)
                executor.append(job)

    def _end_log_job(self, job: Job, result: object, error: Exception | None) -> None:
        if error is not None and job.on_failure is None:
            self._has_log_failed = True
        self._ended.append((job, result, error))

    def _wait(self) -> None:
        """Block until the flusher has ended all its jobs."""
        while self._flushing:
            job = self._flushing.popleft()
            result, error = self._executor.wait_for(job)
            self._ended.append((job, result, error))

    def _take_end(self, job: Job, result: object, error: Exception | None) -> None:
        if job.executor is ExecutorKind.LOG:
            if isinstance(job.work, AppendLog):
                first = self._appending.popleft()
                assert first is job, "an append ended before one that was given earlier"
            else:
                self._is_log_busy = False
            self._end_log_job(job, result, error)
            return
        self._ended.append((job, result, error))
        if job.executor is ExecutorKind.FLUSHER:
            first = self._flushing.popleft()
            assert first is job, "a job of the flusher ended before one that was given earlier"
        elif job.executor in self._helping:
            waiting = self._helping[job.executor]
            first = waiting.popleft()
            assert first is job, "a job of a helper ended that was not begun"
            self._begin_first(waiting)

    def _begin_first(self, waiting: deque[Job]) -> None:
        """Start the first job of a helper; a barrier at the front ends at once."""
        while waiting and isinstance(waiting[0].work, Barrier):
            self._ended.append((waiting.popleft(), None, None))
        if waiting:
            self._executor.begin(waiting[0])
