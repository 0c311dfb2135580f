"""Where jobs run: the log's writer, the flusher's thread, the helper process, a small pool.

Jobs of one place run one after the other, in the order they were given. The log has two writers,
the edge's native one for appends and a thread for everything else; one waits for the other.
A single client's append is written by the loop itself when nothing is being written and the disk is
quick: that saves two wake-ups of threads. The end of a job is reported on the loop.

After a job of the log has failed, unless its failure is tolerated, neither writer starts another:
what the failed one left on the disk is unknown, and only the next start may judge it.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from kvorum.backend import Environments
from kvorum.edge import Edge
from kvorum.files import Files
from kvorum.member.jobs import Job, Place
from kvorum.peer.transport.arrivals import BeginDatabase
from kvorum.process.helper import Helper, Outcome
from kvorum.telemetry.figures import JobFigures
from kvorum.telemetry.logs import Logger
from kvorum.wal import AppendLog

INLINE_SYNC_SECONDS_MAX = 0.002
"""Well within a turn. The native writer's measurements include the two wake-ups of threads that
this saves, so a tighter limit, once exceeded, would never be met again."""
SLOW_SYNC_SECONDS = 1.0
POOL_THREADS = 2

Ended = tuple[Job, object, Exception | None]


class JobRunner:
    """Runs jobs; `take_ended` returns those that have ended, in order for each place."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        edge: Edge,
        files: Files,
        environments: Environments,
        logger: Logger,
        wake: Callable[[], None],
        *,
        sync: bool = True,
    ) -> None:
        self._loop = loop
        self._edge = edge
        self._files = files
        self._environments = environments
        self._logger = logger
        self._wake = wake
        self._sync = sync
        self._log_thread = ThreadPoolExecutor(1, "log")
        self._flusher = ThreadPoolExecutor(1, "flusher")
        self._pool = ThreadPoolExecutor(POOL_THREADS, "pool")
        self._helper = Helper(loop, self._helped)
        self._ended: list[Ended] = []
        self._log_jobs: deque[Job] = deque()
        # Appends at the native writer: number, job, start.
        self._appending: deque[tuple[int, Job, float]] = deque()
        self._log_thread_is_busy = False
        self._log_has_failed = False
        self._recent_sync_seconds = 0.0
        self._last_written = 0.0
        self.under_way = 0
        self._started: dict[Job, float] = {}
        self.figures = JobFigures()

    def submit(self, jobs: Sequence[Job], inline_bytes_max: int = 0) -> None:
        """Take jobs. An append of at most so many bytes may be written here, if that is quick."""
        for job in jobs:
            self.under_way += 1
            if type(job.work) in self.figures.durations and job.place is not Place.LOG:
                self._started[job] = time.monotonic()
            if job.place is Place.LOG:
                self._log_jobs.append(job)
            elif job.place is Place.FLUSHER:
                self._flush(job)
            elif job.place is Place.HELPER:
                self._helper.run(job, job.work)
            else:
                if isinstance(job.work, BeginDatabase):
                    # A database that arrives is work for the helper, which starts meanwhile.
                    self._helper.prepare()
                self._start(self._pool, job)
        if self._log_jobs:
            self._advance_log(inline_bytes_max)

    def take_ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last time."""
        for number, error in self._edge.written():
            self._written(number, error)
        if self._log_jobs:
            self._advance_log(0)
        ended, self._ended = self._ended, []
        self.under_way -= len(ended)
        return ended

    @property
    def has_ended(self) -> bool:
        """Whether `take_ended` has something to return."""
        return bool(self._ended)

    def stop(self) -> None:
        """Wait for the threads' jobs, and end every thread and the helper."""
        for thread in (self._log_thread, self._flusher, self._pool):
            thread.shutdown()
        self._helper.stop()

    # The log.

    def _advance_log(self, inline_bytes_max: int) -> None:
        """Start what may run: appends together, other jobs alone, nothing after a failure."""
        waiting = self._log_jobs
        while waiting and not (self._log_thread_is_busy or self._log_has_failed):
            job = waiting[0]
            if not isinstance(job.work, AppendLog):
                if self._appending:
                    return
                waiting.popleft()
                self._log_thread_is_busy = True
                if type(job.work) in self.figures.durations:
                    self._started[job] = time.monotonic()
                self._start(self._log_thread, job)
                return
            waiting.popleft()
            if len(job.work.data) <= inline_bytes_max and self._is_quick():
                self._append_here(job)
            else:
                self._append(job, job.work)

    def _is_quick(self) -> bool:
        return not self._appending and self._recent_sync_seconds < INLINE_SYNC_SECONDS_MAX

    def _append_here(self, job: Job) -> None:
        started = time.monotonic()
        work = job.work
        self.figures.appended_bytes += len(work.data)
        error: Exception | None = None
        try:
            if os.pwrite(work.descriptor, work.data, work.offset) < len(work.data):
                self._files.pwrite(work.descriptor, work.offset, work.data)
            if self._sync:
                os.fdatasync(work.descriptor)
        except OSError as failure:
            error = failure
        self._observe_sync(time.monotonic() - started)
        self._end_log_job(job, None, error)

    def _append(self, job: Job, work: AppendLog) -> None:
        self.figures.appended_bytes += len(work.data)
        number = self._edge.write_log(work.descriptor, work.offset, work.data, self._sync)
        self._appending.append((number, job, time.monotonic()))

    def _written(self, number: int, error: int) -> None:
        expected, job, started = self._appending.popleft()
        assert number == expected, f"write {number} ended before write {expected}"
        now = time.monotonic()
        # A write begins when it was submitted, or when the one before ended.
        self._observe_sync(now - max(started, self._last_written))
        self._last_written = now
        failure = OSError(error, os.strerror(error), "write-ahead log") if error else None
        self._end_log_job(job, None, failure)

    def _end_log_job(self, job: Job, result: object, error: Exception | None) -> None:
        if error is not None and job.on_failure is None:
            self._log_has_failed = True
        self._ended.append((job, result, error))

    def _observe_sync(self, seconds: float) -> None:
        # The mean of the newest and the past: one slow sync is remembered for a few more.
        self._recent_sync_seconds = (self._recent_sync_seconds + seconds) / 2
        self.figures.durations[AppendLog].observe(seconds)
        if seconds > SLOW_SYNC_SECONDS:
            self._logger.warning(
                "slow fdatasync", took=f"{seconds:.3f}s", expected_duration=f"{SLOW_SYNC_SECONDS}s"
            )

    # Threads.

    def _flush(self, job: Job) -> None:
        if not job.is_awaited:
            self._start(self._flusher, job)
            return
        self._ended.append((job, *self._outcome(self._flusher.submit(self._run, job))))

    def _run(self, job: Job) -> object:
        return job.run(self._files, self._environments)

    def _observe(self, job: Job) -> None:
        started = self._started.pop(job, None)
        if started is not None:
            self.figures.durations[type(job.work)].observe(time.monotonic() - started)

    def _start(self, thread: ThreadPoolExecutor, job: Job) -> None:
        future = thread.submit(self._run, job)
        future.add_done_callback(
            lambda future: self._loop.call_soon_threadsafe(self._done, job, future)
        )

    def _done(self, job: Job, future: "Future[object]") -> None:
        self._observe(job)
        result, error = self._outcome(future)
        if job.place is Place.LOG:
            self._log_thread_is_busy = False
            self._end_log_job(job, result, error)
        else:
            self._ended.append((job, result, error))
        self._wake()

    @staticmethod
    def _outcome(future: "Future[object]") -> Outcome:
        error = future.exception()
        if error is None:
            return future.result(), None
        if not isinstance(error, Exception):
            raise error
        return None, error

    def _helped(self, job: Job, outcome: Outcome) -> None:
        self._observe(job)
        self._ended.append((job, *outcome))
        self._wake()
