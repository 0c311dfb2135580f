"""The executor of a member's jobs: the log's writers, the flusher's thread, helpers, a pool.

`kvorum.server.jobs.JobOrder` decides the order of jobs. If the disk is quick, the loop appends to
the log itself, which saves two wake-ups of threads; otherwise the edge's native writer does. If the
log is in memory, the loop also runs the log's other jobs, which otherwise have a thread.
`ProcessExecutor` reports the end of a job on the loop.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from kvorum.member.jobs import ExecutorKind, Job
from kvorum.network.edge import Edge
from kvorum.process.helper import Helper
from kvorum.process.timing import TimedFiles
from kvorum.server.jobs import Outcome
from kvorum.server.peer.transport.arrivals import BeginDatabase
from kvorum.server.telemetry.counters import TIMED, JobCounters
from kvorum.server.telemetry.logs import Logger
from kvorum.storage.backend import Environments
from kvorum.storage.files import Files
from kvorum.storage.platform.files import sync_data

INLINE_SYNC_SECONDS_MAX = 0.002
"""The slowest recent append after which the loop still appends itself: well within a turn. The
times of the native writer include two wake-ups of threads, so a tighter limit, once exceeded, would
never be met again."""
SLOW_SYNC_SECONDS = 1.0
POOL_THREADS = 2
IDLE_NICENESS = 13
"""At this niceness, a flood of logins takes a few hundredths of a processor from busy clients."""


class ProcessExecutor:
    """Runs jobs in threads, in the edge's log writer and in helper processes."""

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
        in_memory: bool = False,
    ) -> None:
        """Make an executor; `sync` says whether appends are synced, `in_memory` where files are."""
        self.ended: Callable[[Job, object, Exception | None], None]
        self._loop = loop
        self._edge = edge
        self._files = files
        self._timed = TimedFiles(files)
        self._environments = environments
        self._logger = logger
        self._wake = wake
        self._sync = sync
        self._in_memory = in_memory
        self._threads = {
            ExecutorKind.LOG: ThreadPoolExecutor(1, "log"),
            ExecutorKind.FLUSHER: ThreadPoolExecutor(1, "flusher"),
            ExecutorKind.POOL: ThreadPoolExecutor(POOL_THREADS, "pool"),
        }
        self._helpers = {
            ExecutorKind.HELPER: Helper(loop, self._helped),
            ExecutorKind.PASSWORDS: Helper(loop, self._helped),
            ExecutorKind.PASSWORDS_IDLE: Helper(loop, self._helped, IDLE_NICENESS),
        }
        # Jobs of the threads whose end is not reported yet.
        self._begun: dict[Job, Future[object]] = {}
        # Appends at the native writer: number, job, start.
        self._appending: deque[tuple[int, Job, float]] = deque()
        self._recent_sync_seconds = 0.0
        self._last_written = 0.0
        self._started: dict[Job, float] = {}
        # How long the syncs of each job in a thread took.
        self._sync_seconds: dict[Job, float] = {}
        self.counters = JobCounters()

    def stop(self) -> None:
        """Wait for the threads' jobs, and stop all threads and helpers."""
        for thread in self._threads.values():
            thread.shutdown()
        for helper in self._helpers.values():
            helper.stop()

    # Appends.

    @property
    def is_quick(self) -> bool:
        """Whether the disk is so quick that the loop may wait for an append."""
        return self._recent_sync_seconds < INLINE_SYNC_SECONDS_MAX

    def append_here(self, job: Job) -> Exception | None:
        """Append to the log in this call; return the error, if any."""
        started = time.monotonic()
        work = job.work
        self.counters.appended_bytes += len(work.data)
        error: Exception | None = None
        written = started
        try:
            if os.pwrite(work.descriptor, work.data, work.offset) < len(work.data):
                self._files.pwrite(work.descriptor, work.offset, work.data)
            written = time.monotonic()
            if self._sync:
                sync_data(work.descriptor)
        except OSError as failure:
            error = failure
        ended = time.monotonic()
        self._observe_sync(ended - started)
        self.counters.appended(written - started, ended - written)
        return error

    def append(self, job: Job) -> None:
        """Queue an append at the native writer; it fails if an earlier one failed."""
        work = job.work
        self.counters.appended_bytes += len(work.data)
        started = time.monotonic()  # the pure edge writes within the call
        number = self._edge.write_log(work.descriptor, work.offset, work.data, self._sync)
        self._appending.append((number, job, started))

    def collect(self) -> None:
        """Report the appends that the native writer has ended."""
        for number, error, write_seconds, sync_seconds in self._edge.written():
            expected, job, started = self._appending.popleft()
            assert number == expected, f"write {number} ended before write {expected}"
            now = time.monotonic()
            # A write starts when it is submitted, or when the one before ends.
            self._observe_sync(now - max(started, self._last_written))
            self._last_written = now
            self.counters.appended(write_seconds, sync_seconds)
            failure = OSError(error, os.strerror(error), "write-ahead log") if error else None
            self.ended(job, None, failure)

    def _observe_sync(self, seconds: float) -> None:
        # An exponential mean: one slow sync counts for the next few appends.
        self._recent_sync_seconds = (self._recent_sync_seconds + seconds) / 2
        if seconds > SLOW_SYNC_SECONDS:
            self._logger.warning(
                "slow fdatasync", took=f"{seconds:.3f}s", expected_duration=f"{SLOW_SYNC_SECONDS}s"
            )

    # Everything else.

    def begin(self, job: Job) -> None:
        """Start a job in the thread or the process of its executor."""
        if isinstance(job.work, TIMED):
            self._started[job] = time.monotonic()
        executor = job.executor
        helper = self._helpers.get(executor)
        if helper is not None:
            if helper.is_started or not job.is_short:
                helper.run(job, job.work)
                return
            helper.prepare()
            executor = ExecutorKind.FLUSHER
        if isinstance(job.work, BeginDatabase) and not job.work.is_copy:
            # A received database in etcd's format becomes the helper's job: start the process now.
            self._helpers[ExecutorKind.HELPER].prepare()
        if self._in_memory and executor is ExecutorKind.LOG:
            # Waking a thread would take longer than these files take.
            self._loop.call_soon(self._run_here, job)
            return
        future = self._threads[executor].submit(self._run, job)
        self._begun[job] = future
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._done, job))

    def _run(self, job: Job) -> object:
        """Run a job, measuring its syncs."""
        timed = self._timed
        synced = timed.sync_seconds()
        try:
            return job.run(cast("Files", timed), self._environments)
        finally:
            self._sync_seconds[job] = timed.sync_seconds() - synced

    def _run_here(self, job: Job) -> None:
        """Run a job, on the loop."""
        result: object = None
        error: Exception | None = None
        try:
            result = self._run(job)
        except Exception as failure:
            error = failure
        self._observe(job)
        self.ended(job, result, error)
        self._wake()

    def wait_for(self, job: Job) -> Outcome:
        """Block until a job of the flusher ends, without reporting it."""
        future = self._begun.pop(job)
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        self._observe(job)
        return (future.result() if error is None else None), error

    def _done(self, job: Job) -> None:
        if job not in self._begun:
            return  # `wait_for` took the outcome
        result, error = self.wait_for(job)
        self.ended(job, result, error)
        self._wake()

    def _helped(self, job: Job, outcome: Outcome) -> None:
        self._observe(job)
        self.ended(job, *outcome)
        self._wake()

    def _observe(self, job: Job) -> None:
        started = self._started.pop(job, None)
        sync_seconds = self._sync_seconds.pop(job, 0.0)
        if started is not None:
            self.counters.observe(job.work, time.monotonic() - started, sync_seconds)
