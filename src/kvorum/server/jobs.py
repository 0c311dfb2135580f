"""The order in which jobs run, whatever hands run them.

Jobs of the log, of the flusher and of each helper run one after the other, in the order they were
given, and so do their ends; those of the pool run at once. The log has three hands: the loop itself
for one small append when nothing else is being written and the disk is quick, a writer that takes
several appends, and a thread for everything else; each waits for the others.

After a job of the log has failed, unless its failure is tolerated, none of them begins another:
what the failed one left on the disk is unknown, and only the next start may judge it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kvorum.member.jobs import Barrier, Job, Place
from kvorum.wal import AppendLog

Ended = tuple[Job, object, Exception | None]
"""A job that has ended, its result, and its error if it failed."""
Outcome = tuple[object, Exception | None]
"""A result and None, or None and an error."""


class Hands(Protocol):
    """What runs jobs. Every job that is begun is reported to `ended` once, after that call."""

    ended: Callable[[Job, object, Exception | None], None]
    """Takes the end of a job, on the loop."""

    @property
    def is_quick(self) -> bool:
        """Whether the disk is so quick that the loop may wait for an append."""

    def append_here(self, job: Job) -> Exception | None:
        """Append to the log, here and now; return the error, if it failed. It is not reported."""

    def append(self, job: Job) -> None:
        """Append to the log, after all appends given before; after a failed one, fail too."""

    def begin(self, job: Job) -> None:
        """Begin a job: of the log and each helper one at a time; the flusher keeps the order."""

    def wait_for(self, job: Job) -> Outcome:
        """Wait for a job of the flusher that was begun, and for all before it; not reported."""

    def collect(self) -> None:
        """Report what has ended and was not reported yet."""


class JobOrder:
    """Gives jobs to the hands; `take_ended` returns those that have ended."""

    __slots__ = (
        "_appending",
        "_ended",
        "_flushing",
        "_hands",
        "_has_log_failed",
        "_helping",
        "_is_log_busy",
        "_log_jobs",
    )

    def __init__(self, hands: Hands) -> None:
        self._hands: Final = hands
        hands.ended = self._take_end
        self._ended: list[Ended] = []
        # Jobs of the log that are not begun, appends at the writer, and whether the thread works.
        self._log_jobs: deque[Job] = deque()
        self._appending: deque[Job] = deque()
        self._is_log_busy = False
        self._has_log_failed = False
        # Jobs of the flusher and of the helpers that have not ended; of the latter, the first ones
        # are begun.
        self._flushing: deque[Job] = deque()
        self._helping: dict[Place, deque[Job]] = {
            place: deque() for place in (Place.HELPER, Place.PASSWORDS, Place.PASSWORDS_IDLE)
        }

    def submit(self, jobs: Sequence[Job], inline_bytes_max: int = 0) -> None:
        """Take jobs. An append of at most so many bytes may be written here, if that is quick."""
        for job in jobs:
            if job.place is Place.LOG:
                self._log_jobs.append(job)
            elif job.place is Place.FLUSHER:
                self._flushing.append(job)
                self._hands.begin(job)
                if job.is_awaited:
                    self._wait()
            elif job.place in self._helping:
                waiting = self._helping[job.place]
                waiting.append(job)
                if len(waiting) == 1:
                    self._begin_first(waiting)
            else:
                self._hands.begin(job)
        if self._log_jobs:
            self._advance_log(inline_bytes_max)

    def take_ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last time, in order for each place."""
        self._hands.collect()
        if self._log_jobs:
            self._advance_log(0)
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_ended(self) -> bool:
        """Whether `take_ended` has something to return."""
        return bool(self._ended)

    def _advance_log(self, inline_bytes_max: int) -> None:
        """Begin what may run: appends together, other jobs alone, nothing after a failure."""
        waiting, hands = self._log_jobs, self._hands
        while waiting and not (self._is_log_busy or self._has_log_failed):
            job = waiting[0]
            if not isinstance(job.work, AppendLog):
                if self._appending:
                    return
                self._is_log_busy = True
                hands.begin(waiting.popleft())
                return
            waiting.popleft()
            is_small = len(job.work.data) <= inline_bytes_max
            if is_small and not self._appending and hands.is_quick:
                self._end_log_job(job, None, hands.append_here(job))
            else:
                self._appending.append(job)
                hands.append(job)

    def _end_log_job(self, job: Job, result: object, error: Exception | None) -> None:
        if error is not None and job.on_failure is None:
            self._has_log_failed = True
        self._ended.append((job, result, error))

    def _wait(self) -> None:
        """Wait for the flusher to end everything that it was given."""
        while self._flushing:
            job = self._flushing.popleft()
            result, error = self._hands.wait_for(job)
            self._ended.append((job, result, error))

    def _take_end(self, job: Job, result: object, error: Exception | None) -> None:
        if job.place is Place.LOG:
            if isinstance(job.work, AppendLog):
                first = self._appending.popleft()
                assert first is job, "an append ended before one that was given earlier"
            else:
                self._is_log_busy = False
            self._end_log_job(job, result, error)
            return
        self._ended.append((job, result, error))
        if job.place is Place.FLUSHER:
            first = self._flushing.popleft()
            assert first is job, "a job of the flusher ended before one that was given earlier"
        elif job.place in self._helping:
            waiting = self._helping[job.place]
            first = waiting.popleft()
            assert first is job, "a job of a helper ended that was not begun"
            self._begin_first(waiting)

    def _begin_first(self, waiting: deque[Job]) -> None:
        """Begin the first job of a helper; a barrier that is first has ended."""
        while waiting and isinstance(waiting[0].work, Barrier):
            self._ended.append((waiting.popleft(), None, None))
        if waiting:
            self._hands.begin(waiting[0])
