"""Compaction: rows that only readers below a revision could see are forgotten, in bounded steps.

The rules of this module:

- A compaction is scheduled by an entry: the scheduled revision is stored with that entry's index.
  The finished revision is stored behind the last deletion. Between the two a restart resumes.
- Compactions are done one after the other, in order. One begins when no read below its revision is
  in progress, then its rows are hashed (a job), then index and rows are cleared, a few at a time.
- Of the revisions of a key up to C the newest stays, unless it is a tombstone below C: one at
  exactly C stays until the next compaction, so that a watch from C can deliver it.
- The hash is kept unless a restart interrupted the compaction: rows may be missing then that other
  members hash.
"""

from collections import deque
from typing import NamedTuple

from kvorum.api.marks import mark
from kvorum.backend import Backend
from kvorum.backend.buckets import (
    FINISHED_COMPACT_REVISION,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.backend.encoding import parse_row_key, row_key
from kvorum.mvcc.hashes import HashKV, HashRows
from kvorum.mvcc.history import RECORD_BYTES, bound, unpacked
from kvorum.mvcc.index import Index
from kvorum.mvcc.pins import Pins
from kvorum.mvcc.slices import KEYS_PER_SLICE

KEYS_PER_STEP = 2 * KEYS_PER_SLICE  # most keys have nothing to forget
ROWS_PER_STEP = 2 * KEYS_PER_SLICE
HASHES_KEPT = 10


class Compaction(NamedTuple):
    """A compaction to be done."""

    revision: int
    previous: int  # the compacted revision before it
    is_hashed: bool


class Compactor:
    """The compactions that wait, the one in progress, and the hashes of those done.

    Call `step` whenever there is time and `is_runnable`; now and then it returns a job, whose
    result goes to `hashed`.
    """

    __slots__ = (
        "_backend",
        "_cursor",
        "_dropped",
        "_dropped_offset",
        "_hashes",
        "_index",
        "_is_hashing",
        "_pins",
        "_queue",
        "_walked",
        "began_at",
        "finished_revision",
        "removed",
        "removed_before",
    )

    def __init__(self, backend: Backend, index: Index, pins: Pins) -> None:
        self._backend = backend
        self._index = index
        self._pins = pins
        self._queue: deque[Compaction] = deque()
        self.removed = 0
        """Revisions that were removed since the start; for metrics."""
        self.removed_before = 0
        self.began_at = 0.0
        """What had been removed, and the time, when the one in progress began; for the log."""
        self._hashes: dict[int, HashKV] = {}  # by revision, oldest first
        self._is_hashing = False
        self._walked: bool | None = None  # None: not begun; otherwise whether every key was visited
        self._cursor = b""
        self._dropped = b""  # records whose rows are to be deleted
        self._dropped_offset = 0
        self.finished_revision = -1

    @property
    def is_pending(self) -> bool:
        """Whether a compaction is not finished."""
        return bool(self._queue)

    def is_done(self, revision: int) -> bool:
        """Return whether no compaction up to a revision waits or is in progress."""
        return not self._queue or self._queue[0].revision > revision

    @property
    def has_begun(self) -> bool:
        """Whether one is in progress."""
        return self._walked is not None

    @property
    def is_runnable(self) -> bool:
        """Whether `step` would do something."""
        if not self._queue or self._is_hashing:
            return False
        return self._walked is not None or not self._pins.is_held_below(self._queue[0].revision)

    @property
    def is_at_index(self) -> bool:
        """Whether the next step looks for what to forget; if not, it deletes rows."""
        return not self._walked and self._dropped_offset >= len(self._dropped)

    @property
    def waits_for_flush(self) -> bool:
        """Whether `step` would hash rows that are not on the disk, and pass them to the job."""
        if not self._queue or self._walked is not None or not self._queue[0].is_hashed:
            return False
        return self._backend.has_pending_rows(bound(self._queue[0].revision))

    def schedule(self, revision: int, previous: int) -> None:
        """Store that a compaction is scheduled, and do it in the steps that follow."""
        before = self._queue[-1].revision if self._queue else self.finished_revision
        assert before == previous, f"compacted up to {before}, not {previous}"
        self._backend.put(META, SCHEDULED_COMPACT_REVISION, row_key(revision << 32))
        self._queue.append(Compaction(revision, previous, is_hashed=True))

    def resume(self, finished: int, scheduled: int) -> None:
        """Resume what a restart found."""
        self.finished_revision = finished
        if scheduled > finished:
            self._queue.append(Compaction(scheduled, finished, is_hashed=False))
            mark("compaction resumed")

    def step(self) -> HashRows | None:
        """Do a bounded piece of the work; return a job if the rows are to be hashed first."""
        if not self.is_runnable:
            return None
        compaction = self._queue[0]
        if self._walked is None:
            self._walked = False
            self._cursor = b""
            if compaction.is_hashed:
                self._is_hashing = True
                return HashRows.of_compaction(
                    self._backend, compaction.revision, compaction.previous
                )
        if self._dropped_offset < len(self._dropped):
            self._delete_rows()
        elif not self._walked:
            self._clear_keys(compaction.revision)
        else:
            self._finish(compaction)
        return None

    def hashed(self, job: HashRows, value: int | None) -> None:
        """Take the result of a job that `step` returned; None if it failed."""
        assert self._is_hashing, "no hash was asked for"
        self._is_hashing = False
        if value is not None:
            self._hashes[job.revision] = HashKV(value, job.revision, job.compact_revision)
            while len(self._hashes) > HASHES_KEPT:
                del self._hashes[next(iter(self._hashes))]

    def hash_of(self, revision: int) -> HashKV | None:
        """Return the hash of the compaction at exactly this revision, if it is kept."""
        return None if self.is_hash_awaited(revision) else self._hashes.get(revision)

    def is_hash_awaited(self, revision: int) -> bool:
        """Return whether a compaction that is not done yet will keep the hash at this revision."""
        return any(each.is_hashed and each.revision == revision for each in self._queue)

    def hashes(self) -> list[HashKV]:
        """Return the hashes of the compactions done, newest first."""
        found = [self.hash_of(revision) for revision in reversed(self._hashes)]
        return [each for each in found if each is not None]

    def _clear_keys(self, revision: int) -> None:
        keys = self._index.run(self._cursor, None, KEYS_PER_STEP)
        if len(keys) < KEYS_PER_STEP:
            self._walked = True
        else:
            self._cursor = keys[-1] + b"\0"
        self._dropped = self._index.compact_run(keys, revision)
        self._dropped_offset = 0

    def _delete_rows(self) -> None:
        start = self._dropped_offset
        self._dropped_offset = start + ROWS_PER_STEP * RECORD_BYTES
        for revision in unpacked(self._dropped[start : self._dropped_offset]):
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
    """Return the finished and the scheduled compaction as stored, -1 for none."""
    finished = backend.get(META, FINISHED_COMPACT_REVISION)
    scheduled = backend.get(META, SCHEDULED_COMPACT_REVISION)
    return (
        -1 if finished is None else parse_row_key(finished) >> 32,
        -1 if scheduled is None else parse_row_key(scheduled) >> 32,
    )
