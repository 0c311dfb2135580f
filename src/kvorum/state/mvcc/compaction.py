"""Compaction: removes rows that only readers below a revision could see, in bounded steps.

The rules of this module:

- A log entry schedules a compaction: the backend stores the scheduled revision together with that
  entry's index, and the finished revision after the last deletion. A restart between the two
  resumes the compaction.
- Compactions run one at a time, in order. Each waits until no read below its revision is in
  progress, has its rows hashed by a job, and then clears index and rows, a few at a time.
- A compaction at C keeps the newest revision of a key up to C, unless that is a tombstone below C.
  A tombstone at exactly C stays until the next compaction, so that a watch from C can deliver it.
- A compaction that a restart interrupted yields no hash: rows that other members hash may already
  be missing.
"""

from collections import deque
from typing import NamedTuple

from kvorum.api.coverage import reach
from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc.hashes import HashKV, HashRows
from kvorum.state.mvcc.history import RECORD_BYTES, bound, unpack_revisions
from kvorum.state.mvcc.index import Index
from kvorum.state.mvcc.pins import Pins
from kvorum.storage.backend import Backend
from kvorum.storage.backend.buckets import (
    FINISHED_COMPACT_REVISION,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.storage.backend.encoding import parse_row_key, row_key

HASHES_KEPT = 10


class Compaction(NamedTuple):
    """A scheduled compaction."""

    revision: int
    previous: int  # the previous compacted revision
    is_hashed: bool


class Compactor:
    """Runs scheduled compactions one by one, and keeps the hashes of finished ones.

    Call `step` whenever there is time and `is_runnable`. If `step` returns a job, pass the job's
    result to `hashed`.
    """

    __slots__ = (
        "_backend",
        "_cursor",
        "_dropped",
        "_dropped_offset",
        "_hashes",
        "_index",
        "_is_hashing",
        "_limits",
        "_pins",
        "_queue",
        "_walked",
        "began_at",
        "finished_revision",
        "removed",
        "removed_before",
    )

    def __init__(self, backend: Backend, index: Index, pins: Pins, limits: WorkLimits) -> None:
        self._backend = backend
        self._index = index
        self._pins = pins
        self._limits = limits
        self._queue: deque[Compaction] = deque()
        self.removed = 0
        """Revisions removed since the start; for metrics."""
        self.removed_before = 0
        self.began_at = 0.0
        """`removed` and the time when the compaction in progress began; for the log."""
        self._hashes: dict[int, HashKV] = {}  # by revision, oldest first
        self._is_hashing = False
        self._walked: bool | None = None  # None: not started; else whether every key was visited
        self._cursor = b""
        self._dropped = b""  # records whose rows `_delete_rows` deletes next
        self._dropped_offset = 0
        self.finished_revision = -1

    @property
    def is_pending(self) -> bool:
        """Whether a compaction is scheduled or in progress."""
        return bool(self._queue)

    def is_done(self, revision: int) -> bool:
        """Return whether every scheduled compaction up to a revision is finished."""
        return not self._queue or self._queue[0].revision > revision

    @property
    def has_begun(self) -> bool:
        """Whether a compaction is in progress."""
        return self._walked is not None

    @property
    def is_runnable(self) -> bool:
        """Whether `step` would do something."""
        if not self._queue or self._is_hashing:
            return False
        return self._walked is not None or not self._pins.is_held_below(self._queue[0].revision)

    @property
    def is_at_index(self) -> bool:
        """Whether the next step walks the index; if not, it deletes rows."""
        return not self._walked and self._dropped_offset >= len(self._dropped)

    @property
    def waits_for_flush(self) -> bool:
        """Whether `step` would make a hash job that has to carry unflushed rows."""
        if not self._queue or self._walked is not None or not self._queue[0].is_hashed:
            return False
        return self._backend.has_pending_rows(bound(self._queue[0].revision))

    def schedule(self, revision: int, previous: int) -> None:
        """Store and queue a compaction; later steps perform it."""
        before = self._queue[-1].revision if self._queue else self.finished_revision
        assert before == previous, f"compacted up to {before}, not {previous}"
        self._backend.put(META, SCHEDULED_COMPACT_REVISION, row_key(revision << 32))
        self._queue.append(Compaction(revision, previous, is_hashed=True))

    def resume(self, finished: int, scheduled: int) -> None:
        """Set the revisions read from the backend at a start; queue an unfinished compaction."""
        self.finished_revision = finished
        if scheduled > finished:
            self._queue.append(Compaction(scheduled, finished, is_hashed=False))
            reach("compaction resumed")

    def step(self) -> HashRows | None:
        """Do a bounded piece of work; return a job if the rows must be hashed first."""
        if not self.is_runnable:
            return None
        compaction = self._queue[0]
        if self._walked is None:
            self._walked = False
            self._cursor = b""
            if compaction.is_hashed:
                self._is_hashing = True
                return HashRows.of_compaction(
                    self._backend,
                    compaction.revision,
                    compaction.previous,
                    self._limits.hash_rows_per_scan,
                )
        if self._dropped_offset < len(self._dropped):
            self._delete_rows()
        elif not self._walked:
            self._clear_keys(compaction.revision)
        else:
            self._finish(compaction)
        return None

    def take_hash(self, job: HashRows, value: int | None) -> None:
        """Receive the result of the job that `step` returned; None if the job failed."""
        assert self._is_hashing, "no hash was requested"
        self._is_hashing = False
        if value is not None:
            self._hashes[job.revision] = HashKV(value, job.revision, job.compact_revision)
            while len(self._hashes) > HASHES_KEPT:
                del self._hashes[next(iter(self._hashes))]

    def hash_of(self, revision: int) -> HashKV | None:
        """Return the hash of the finished compaction at exactly this revision, if kept."""
        return None if self.is_hash_awaited(revision) else self._hashes.get(revision)

    def is_hash_awaited(self, revision: int) -> bool:
        """Return whether an unfinished compaction at this revision will keep its hash."""
        return any(each.is_hashed and each.revision == revision for each in self._queue)

    def hashes(self) -> list[HashKV]:
        """Return the hashes of finished compactions, newest first."""
        found = [self.hash_of(revision) for revision in reversed(self._hashes)]
        return [each for each in found if each is not None]

    def _clear_keys(self, revision: int) -> None:
        keys_per_step = self._limits.compaction_keys_per_step
        keys = self._index.run(self._cursor, None, keys_per_step)
        if len(keys) < keys_per_step:
            self._walked = True
        else:
            self._cursor = keys[-1] + b"\0"
        self._dropped = self._index.compact_run(keys, revision)
        self._dropped_offset = 0

    def _delete_rows(self) -> None:
        start = self._dropped_offset
        self._dropped_offset = start + self._limits.compaction_rows_per_step * RECORD_BYTES
        for revision in unpack_revisions(self._dropped[start : self._dropped_offset]):
            self._backend.delete_row(revision)
            self.removed += 1

    def _finish(self, compaction: Compaction) -> None:
        self._backend.put(META, FINISHED_COMPACT_REVISION, row_key(compaction.revision << 32))
        self.finished_revision = compaction.revision
        self._queue.popleft()
        self._walked = None
        self._dropped = b""
        self._dropped_offset = 0


def stored_revisions(backend: Backend) -> tuple[int, int]:
    """Return the stored revisions of the finished and the scheduled compaction, -1 for none."""
    finished = backend.get(META, FINISHED_COMPACT_REVISION)
    scheduled = backend.get(META, SCHEDULED_COMPACT_REVISION)
    return (
        -1 if finished is None else parse_row_key(finished) >> 32,
        -1 if scheduled is None else parse_row_key(scheduled) >> 32,
    )
