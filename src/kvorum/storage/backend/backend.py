"""The database of a member: a buffer of recent writes in front of LMDB.

The backend runs on the loop, and none of its calls waits for the disk. A revision's row is written
once and never changes. It is in one of three places, which reads try in this order: `active` (rows
since the last seal), `sealed` (the immutable batch being flushed), the environment. Every row is
newer than all rows of later places.

1. `seal`, called between two entries, gives the active batch the consistent index and term, and
   starts a new batch.
2. StageFlush runs in the flusher's thread while the loop waits.
3. CommitFlush runs in the same thread while the loop continues.
4. `committed` drops the sealed batch; the next view finds its rows in the environment.

At most one batch is being flushed. A deletion is a marker in the active batch, wherever the row is;
the order of batches makes it effective. A failed job stops the member, because the backend then
cannot know the content of the disk.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from kvorum.api.limits import WorkLimits
from kvorum.storage.backend.batch import FlushBatch
from kvorum.storage.backend.buckets import CONF_STATE, KEY, META
from kvorum.storage.backend.cache import RowCache
from kvorum.storage.backend.defragment import (
    CopyChanges,
    CopyDatabase,
    Defragmentation,
    RemoveDatabase,
)
from kvorum.storage.backend.environment import Environment
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.backend.flush import CommitFlush, Staged, StageFlush
from kvorum.storage.backend.native import NativeRows, RowPages
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files


@dataclass(slots=True, frozen=True)
class BufferLimits:
    """Limits that decide when to flush, how much may wait, and how much to cache."""

    flush_seconds: float = 0.1
    flush_writes: int = 10_000
    buffer_writes_max: int = 50_000
    buffer_bytes_max: int = 64 << 20
    cache_bytes_max: int = 64 << 20


class Backend:
    """The rows and entries of a member as of the last applied entry."""

    __slots__ = (
        "_active",
        "_buffers",
        "_cache",
        "_defragmentation",
        "_environment",
        "_files",
        "_first_write",
        "_limits",
        "_lock",
        "_map_bytes",
        "_number",
        "_sealed",
        "_sizes",
        "_view",
        "applied_index",
        "applied_term",
        "directory",
        "durable_index",
        "is_removing",
    )

    def __init__(
        self,
        files: Files,
        environment: Environment,
        directory: str,
        number: int,
        lock: int,
        map_bytes: int,
        buffers: BufferLimits,
        limits: WorkLimits,
    ) -> None:
        self._files = files
        self._environment = environment
        # Jobs that open a view need the directory, because the database file may be replaced.
        self.directory = directory
        self._number = number  # the greatest number given to a database file so far
        self._lock = lock
        self._map_bytes = map_bytes
        self._defragmentation: Defragmentation | None = None
        self._buffers = buffers
        self._limits = limits
        self._active = FlushBatch()
        self._sealed: FlushBatch | None = None
        self._cache = RowCache(buffers.cache_bytes_max, limits.cache_added_rows_max)
        self._view: View | None = None
        self._first_write: float | None = None
        self._sizes = environment.sizes()
        # Index and term of the last applied entry; the index of the newest finished commit.
        self.applied_index, self.applied_term = self._open_view().applied()
        self.durable_index = self.applied_index
        self.is_removing = False
        """Whether the flusher is removing the file that a defragmentation replaced."""
        self.end_turn()

    # Rows of bucket `key`.

    def put_row(self, revision: int, value: bytes, previous: int = 0) -> None:
        """Write a row; revisions must ascend, and none may be written twice.

        `previous` is the key's superseded row, which the cache drops because few reads need it.
        """
        active = self._active
        active.rows[revision] = value
        active.row_bytes += len(value)
        if previous:
            active.superseded.append(previous)

    def put_rows(self, revisions: range, values: list[bytes], previous: list[int]) -> None:
        """Write many rows as `put_row` does; each must supersede a previous row."""
        active = self._active
        active.rows.update(zip(revisions, values, strict=True))
        active.row_bytes += sum(map(len, values))
        active.superseded.extend(previous)

    def delete_row(self, revision: int) -> None:
        """Delete a row from batches, cache and file."""
        active = self._active
        value = active.rows.pop(revision, None)
        if value is not None:
            active.row_bytes -= len(value)
        active.deleted[revision] = None
        self._cache.discard(revision)

    def row(self, revision: int) -> bytes:
        """Return a row that was written and not deleted; raise CorruptionError if it is missing."""
        value = self._active.rows.get(revision)
        if value is not None:
            return value
        if self._is_deleted(revision):
            raise self._open_view().missing(revision)
        if self._sealed is not None:
            value = self._sealed.rows.get(revision)
        if value is None:
            value = self._cache.get(revision)
        if value is None:
            value = self._open_view().row(revision)
            if value is None:
                raise self._open_view().missing(revision)
            self._cache.add(revision, value)
        return value

    def rows(self, revisions: Sequence[int]) -> list[bytes]:
        """Return many rows as `row` does, in the order of `revisions`."""
        values = list(map(self._cache.young.get, revisions))
        if None in values:
            self._fill(revisions, values)
        return values  # type: ignore[return-value]

    def _fill(self, revisions: Sequence[int], values: list[bytes | None]) -> None:
        """Fill in the values that the young half of the cache lacks."""
        deleted, old = self._active.deleted, self._cache.old
        tables = [self._active.rows, old]
        if self._sealed is not None:
            deleted = {**deleted, **self._sealed.deleted}
            tables.append(self._sealed.rows)
        # Usually most tables are empty, and skipping one saves a lookup per row.
        tables = [table for table in tables if table]
        places = [place for place, value in enumerate(values) if value is None]
        if deleted or tables:
            left = []
            asked_for = {}
            for place in places:
                revision = revisions[place]
                if revision in deleted:
                    raise self._open_view().missing(revision)
                for table in tables:
                    value = table.get(revision)
                    if value is not None:
                        values[place] = value
                        if table is old:
                            asked_for[revision] = value
                        break
                else:
                    left.append(place)
            places = left
            self._cache.add_all(asked_for, sum(map(len, asked_for.values())))
        if places:
            wanted = [revisions[place] for place in places]
            found = self._open_view().rows(wanted)
            self._cache.add_all(dict(zip(wanted, found, strict=True)), sum(map(len, found)))
            for place, value in zip(places, found, strict=True):
                values[place] = value

    def scan_rows(self, first: int, last: int, limit: int) -> list[tuple[int, bytes]]:
        """Return rows with revisions from `first` to `last`, ascending, at most `limit`."""
        batches = [self._active] if self._sealed is None else [self._sealed, self._active]
        result: list[tuple[int, bytes]] = []
        end = next((next(iter(batch.rows)) for batch in batches if batch.rows), last + 1)
        while len(result) < limit and first < end and first <= last:
            # The environment may have a commit before `committed`: stop where a batch begins.
            wanted = limit - len(result)
            found = self._open_view().scan_rows(first, min(last, end - 1), wanted)
            result += [each for each in found if not self._is_deleted(each[0])]
            if len(found) < wanted:
                break
            first = found[-1][0] + 1
        for batch in batches:
            if len(result) >= limit:
                break
            revisions = list(batch.rows)
            start, stop = bisect_left(revisions, first), bisect_right(revisions, last)
            deleted = self._active.deleted if batch is self._sealed else {}
            rows = batch.rows
            kept = (revision for revision in revisions[start:stop] if revision not in deleted)
            result += [(revision, rows[revision]) for revision in islice(kept, limit - len(result))]
        return result

    @property
    def native(self) -> NativeRows | None:
        """Compiled functions over rows, None without the native edge."""
        return self._environment.native

    @property
    def is_flushed(self) -> bool:
        """Whether the file has every change of rows."""
        return not self._active.rows and not self._active.deleted and self._sealed is None

    def scan_sealed_rows(self, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return stored rows with their checksums, from a row key on; requires `is_flushed`."""
        assert self.is_flushed, "there are changes that the file does not have"
        return self._open_view().scan_sealed_rows(first, limit)

    def row_pages(self) -> RowPages | None:
        """Return a reader of all rows from pages, valid in this turn, if the file has all rows."""
        return self._open_view().row_pages() if self.is_flushed else None

    def count_stored_rows(self) -> int:
        """Return the number of rows in the file."""
        return self._open_view().count(KEY)

    def has_pending_rows(self, last: int) -> bool:
        """Return whether the file may still lack a row up to `last`."""
        # Rows ascend within a batch and from one batch to the next.
        oldest = self._active if self._sealed is None or not self._sealed.rows else self._sealed
        return next(iter(oldest.rows), last + 1) <= last

    def pending_rows(self, last: int) -> dict[int, bytes | None]:
        """Return the changes of rows up to `last` that the file may still lack.

        None stands for a deletion. Jobs that read the file combine it with these changes.
        """
        pending: dict[int, bytes | None] = {}
        for batch in (self._sealed, self._active):
            if batch is not None:
                # Rows ascend.
                for revision, kv in batch.rows.items():
                    if revision > last:
                        break
                    pending[revision] = kv
                pending.update((each, None) for each in batch.deleted if each <= last)
        return pending

    def _is_deleted(self, revision: int) -> bool:
        if revision in self._active.deleted:
            return True
        return self._sealed is not None and revision in self._sealed.deleted

    # Entries of the other buckets.

    def put(self, bucket: bytes, name: bytes, value: bytes) -> None:
        """Write an entry of a bucket other than `key`."""
        self._active.put_entry(bucket, name, value)

    def delete(self, bucket: bytes, name: bytes) -> None:
        """Remove an entry of a bucket other than `key`, if there is one."""
        self._active.put_entry(bucket, name, None)

    def get(self, bucket: bytes, name: bytes) -> bytes | None:
        """Return an entry of a bucket other than `key`."""
        for batch in (self._active, self._sealed):
            if batch is not None:
                entries = batch.entries.get(bucket)
                if entries is not None and name in entries:
                    return entries[name]
        return self._open_view().get(bucket, name)

    def items(self, bucket: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries of a bucket other than `key`, in the order of names."""
        merged: dict[bytes, bytes | None] = dict(self._open_view().items(bucket))
        for batch in (self._sealed, self._active):
            if batch is not None:
                merged.update(batch.entries.get(bucket, {}))
        return sorted((name, value) for name, value in merged.items() if value is not None)

    def set_applied(self, index: int, term: int) -> None:
        """Record the last applied entry; the next seal adds it to the batch of its effects."""
        assert index >= self.applied_index, f"applied {index} after {self.applied_index}"
        self.applied_index = index
        self.applied_term = term

    def set_conf_state(self, json: bytes) -> None:
        """Record the members as of the last applied configuration change."""
        self._active.put_entry(META, CONF_STATE, json)

    # Flushing.

    @property
    def is_flushing(self) -> bool:
        """Whether a batch is being flushed; no other can be sealed meanwhile."""
        return self._sealed is not None

    @property
    def is_full(self) -> bool:
        """Whether so many writes wait for the disk that proposals must wait."""
        active, buffers = self._active, self._buffers
        return (
            active.writes >= buffers.buffer_writes_max
            or active.row_bytes + active.entry_bytes >= buffers.buffer_bytes_max
        )

    def is_due(self, now: float) -> bool:
        """Return whether it is time to seal; call this once a turn."""
        active = self._active
        if active.writes and self._first_write is None:
            self._first_write = now
        if self._sealed is not None:
            return False
        if self._is_switching:
            return True
        return self._first_write is not None and (
            active.writes >= self._buffers.flush_writes
            # Compare with the same sum as `due_at`: a difference could round to below the limit.
            or now >= self._first_write + self._buffers.flush_seconds
        )

    @property
    def due_at(self) -> float | None:
        """The latest time at which `is_due` becomes true; None if nothing waits to be sealed."""
        first = self._first_write
        return None if first is None or self._sealed else first + self._buffers.flush_seconds

    def seal(self) -> StageFlush | None:
        """Start to flush everything applied so far; return None if the disk already has it.

        Call it between two entries, while no batch is being flushed.
        """
        assert self._sealed is None, "the batch before is still on its way"
        active, defragmentation, limits = self._active, self._defragmentation, self._limits
        if not (active.writes or self._is_switching or self.applied_index > self.durable_index):
            return None
        if len(active.rows) <= limits.seal_checked_rows_max:
            revisions = list(active.rows)
            assert revisions == sorted(revisions), "rows were not put in ascending order"
        active.index, active.term = self.applied_index, self.applied_term
        self._sealed, self._active, self._first_write = active, FlushBatch(), None
        switch = None
        if defragmentation is not None:
            if defragmentation.is_ready:
                switch = defragmentation.switch()
            else:
                defragmentation.changes.add(active)
        return StageFlush(
            self._environment, active, switch, limits.flush_piece_rows, limits.view_scan_entries
        )

    def take_staged(self, staged: Staged) -> CommitFlush:
        """Receive the result of StageFlush; return the next job."""
        assert self._sealed is not None, "no batch is on its way"
        return CommitFlush(staged)

    def take_committed(self, environment: Environment) -> RemoveDatabase | None:
        """Receive the result of CommitFlush, which has made the batch durable.

        If the commit ended a defragmentation, return the job that removes the old file.
        """
        sealed = self._sealed
        assert sealed is not None, "no batch is on its way"
        # Skip the superseded rows of one long entry: most of its rows are not cached either.
        if len(sealed.superseded) <= self._limits.cache_added_rows_max:
            for revision in sealed.superseded:
                value = sealed.rows.pop(revision, None)
                if value is None:
                    self._cache.discard(revision)
                else:
                    sealed.row_bytes -= len(value)
        self._cache.add_all(sealed.rows, sealed.row_bytes)
        if len(sealed.rows) > self._limits.cache_freed_rows_per_turn:
            self._cache.forgotten.append(sealed.rows)
        for revision in self._active.deleted:
            self._cache.discard(revision)
        self.durable_index = sealed.index
        self._sealed = None
        self.end_turn()
        # Ask here and not in the job, whose calls would each wait for the interpreter's lock.
        self._sizes = environment.sizes()
        old = self._environment
        if environment is old:
            return None
        assert self._defragmentation is not None, "nothing else changes the database"
        self._environment = environment
        self._defragmentation = None
        return RemoveDatabase(old.path, old)

    # Defragmenting.

    @property
    def is_defragmenting(self) -> bool:
        """Whether a defragmentation is in progress."""
        return self._defragmentation is not None

    @property
    def defragmented_path(self) -> str | None:
        """The new file of the defragmentation in progress; its name is never used again."""
        return None if self._defragmentation is None else self._defragmentation.target

    @property
    def _is_switching(self) -> bool:
        return self._defragmentation is not None and self._defragmentation.is_ready

    def defragment(self) -> CopyDatabase:
        """Start a defragmentation; return its first job, for the helper."""
        if self._defragmentation is not None:
            raise BackendError(f"{self.path} is being defragmented already; wait for that to end")
        # Never reuse a number: the job that removes an abandoned file may not have run yet.
        self._number += 1
        self._defragmentation = Defragmentation(
            self.directory, self.path, self._number, self._map_bytes, self._limits
        )
        if self._sealed is not None:
            # The helper may read the file before this batch is committed.
            self._defragmentation.changes.add(self._sealed)
        return self._defragmentation.begin()

    def take_copied(self) -> CopyChanges | None:
        """Call after CopyDatabase or CopyChanges; return the next job for the helper.

        Return None when the next flush, due at once, replaces the old file by the new one;
        `is_defragmenting` is false after that flush.
        """
        assert self._defragmentation is not None, "nothing is being defragmented"
        return self._defragmentation.next_round(self._sealed)

    def abandon_defragmentation(self) -> RemoveDatabase:
        """Abandon the defragmentation after a helper's job failed; return the clean-up job."""
        defragmentation = self._defragmentation
        assert defragmentation is not None and not defragmentation.is_ready
        self._defragmentation = None
        return RemoveDatabase(defragmentation.target, None)

    def end_turn(self) -> None:
        """End the turn's view, so that LMDB may reuse the pages it held."""
        if self._view is not None:
            self._view.end()
            self._view = None
        if self._cache.forgotten:
            self._cache.free(self._limits.cache_freed_rows_per_turn)

    def _open_view(self) -> View:
        view = self._view
        if view is None:
            view = self._view = View(self._environment, self._limits.view_scan_entries)
        return view

    # Sizes.

    @property
    def path(self) -> str:
        """The database file."""
        return self._environment.path

    @property
    def size_bytes(self) -> int:
        """The size of the database file that counts against the quota."""
        return self._sizes.allocated

    @property
    def size_in_use_bytes(self) -> int:
        """The size of the database file without its free pages."""
        return self._sizes.in_use

    @property
    def pending_bytes(self) -> int:
        """Estimated bytes of writes that wait for the disk."""
        return self._active.size + (0 if self._sealed is None else self._sealed.size)

    @property
    def cached_bytes(self) -> int:
        """Estimated bytes of the row cache."""
        return self._cache.size_bytes

    def views_open(self) -> int:
        """Return how many views of the database are open, including those of helper processes."""
        return self._environment.views_open()

    def check_readers(self) -> int:
        """Release views of processes that died; call every minute or so."""
        return self._environment.check_readers()

    def close(self) -> None:
        """Close the database without flushing; the next start replays the rest from the log."""
        self.end_turn()
        self._environment.close()
        self._files.close(self._lock)
