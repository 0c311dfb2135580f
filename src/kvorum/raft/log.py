"""The whole log: the storage below, the unstable part on top, and four indexes in it.

Always applied <= applying <= committed <= last index. `committed` is the greatest index known to be
on a quorum. The application has received the entries up to `applying`, and has acknowledged those
up to `applied`. The encoded size of the entries between these two is bounded; the log hands out no
more entries once the bound is reached or a batch was cut short.

No operation takes longer on a longer log, except the walk back after a rejection, which ends at the
first entry of an old enough term.
"""

from collections.abc import Iterator, Sequence
from typing import NoReturn

from kvorum.api.coverage import reach
from kvorum.raft.entries import NO_LIMIT, Entry, encoded_size, take_within
from kvorum.raft.errors import (
    CompactedError,
    RaftError,
    StorageError,
    UnavailableError,
)
from kvorum.raft.logger import Logger, stop
from kvorum.raft.messages import Snapshot
from kvorum.raft.storage import Storage
from kvorum.raft.unstable import Unstable

# Term and index identify an entry: two logs that share an entry agree up to it.
EntryId = tuple[int, int]


class RaftLog:
    """The log of one node. Any module may read it; only the owning node changes it."""

    __slots__ = (
        "_logger",
        "applied",
        "applying",
        "applying_paused",
        "applying_size",
        "applying_size_max",
        "committed",
        "storage",
        "unstable",
    )

    def __init__(self, storage: Storage, logger: Logger, applying_size_max: int = NO_LIMIT) -> None:
        self.storage = storage
        self._logger = logger
        self.unstable = Unstable(storage.last_index() + 1, logger)
        start = storage.first_index() - 1
        self.committed = start
        self.applying = start
        self.applied = start
        self.applying_size = 0  # handed out and not acknowledged
        self.applying_size_max = applying_size_max
        self.applying_paused = False

    def __str__(self) -> str:
        return (
            f"committed={self.committed}, applied={self.applied}, applying={self.applying}, "
            f"unstable.offset={self.unstable.offset}, "
            f"unstable.offsetInProgress={self.unstable.offset_in_progress}, "
            f"len(unstable.Entries)={len(self.unstable.entries)}"
        )

    def first_index(self) -> int:
        """Return the oldest index whose entry is kept."""
        snapshot = self.unstable.snapshot
        return self.storage.first_index() if snapshot is None else snapshot.index + 1

    def last_index(self) -> int:
        """Return the newest index."""
        unstable = self.unstable
        return unstable.offset + len(unstable.entries) - 1

    def term(self, index: int) -> int:
        """Return the term of an entry, or raise StorageError if the term is unknown."""
        unstable = self.unstable
        position = index - unstable.offset
        if position >= 0:
            if position < len(unstable.entries):
                return unstable.entries[position].term
            raise UnavailableError
        if unstable.snapshot is not None:
            # The snapshot is about to replace the entries that the storage still holds.
            if index == unstable.snapshot.index:
                return unstable.snapshot.term
            raise CompactedError
        return self.storage.term(index)

    def term_or_zero(self, index: int) -> int:
        """Return the term of an entry, or 0 if the term is unknown."""
        try:
            return self.term(index)
        except StorageError:
            return 0

    def last_entry_id(self) -> EntryId:
        """Return term and index of the newest entry."""
        index = self.last_index()
        try:
            return self.term(index), index
        except StorageError as error:
            self._stop(f"unexpected error when getting the last term at {index}: {error}")

    def matches(self, term: int, index: int) -> bool:
        """Return whether this log has an entry of this term at the index."""
        if index > self.last_index():
            return False
        try:
            return self.term(index) == term
        except StorageError:
            return False

    def is_up_to_date(self, term: int, index: int) -> bool:
        """Return whether a log that ends at this entry is at least as up to date as this one."""
        return (term, index) >= self.last_entry_id()

    def append(self, entries: Sequence[Entry]) -> int:
        """Append entries, replacing conflicting ones; return the last index."""
        if entries:
            after = entries[0].index - 1
            if after < self.committed:
                self._stop(f"after({after}) is out of range [committed({self.committed})]")
            self.unstable.truncate_and_append(entries)
        return self.last_index()

    def maybe_append(
        self, previous: EntryId, entries: Sequence[Entry], committed: int
    ) -> int | None:
        """Append entries after `previous`; return the last new index, None if it does not match."""
        previous_term, previous_index = previous
        if not self.matches(previous_term, previous_index):
            return None
        last_new = previous_index + len(entries)
        if entries and previous_index == self.last_index():
            # The usual case: this log holds no entries that could conflict.
            self.append(entries)
        elif conflict := self.find_conflict(entries):
            if conflict <= self.committed:
                self._stop(
                    f"entry {conflict} conflict with committed entry [committed({self.committed})]"
                )
            reach("entries of another leader replaced")
            position = conflict - previous_index - 1
            assert 0 <= position < len(entries), (
                f"index, {conflict}, is out of range [{len(entries)}]"
            )
            self.append(entries[position:])
        self.commit_to(min(committed, last_new))
        return last_new

    def find_conflict(self, entries: Sequence[Entry]) -> int:
        """Return the index of the first entry that this log lacks, or 0 if it has all."""
        for entry in entries:
            if not self.matches(entry.term, entry.index):
                if entry.index <= self.last_index():
                    self._logger.info(
                        f"found conflict at index {entry.index} "
                        f"[existing term: {self.term_or_zero(entry.index)}, "
                        f"conflicting term: {entry.term}]"
                    )
                return entry.index
        return 0

    def find_conflict_by_term(self, index: int, term: int) -> EntryId:
        """Return the newest entry up to the index whose term is not above the given term.

        An unknown term is returned as 0. A log that has the given term at the index cannot share
        any entry above the returned one.
        """
        while index > 0:
            try:
                ours = self.term(index)
            except StorageError:
                return 0, index
            if ours <= term:
                return ours, index
            index -= 1
        return 0, 0

    def commit_to(self, index: int) -> None:
        """Advance the commit index."""
        if index > self.committed:
            if index > self.last_index():
                self._stop(
                    f"tocommit({index}) is out of range [lastIndex({self.last_index()})]. "
                    "Was the raft log corrupted, truncated, or lost?"
                )
            self.committed = index

    def maybe_commit(self, term: int, index: int) -> bool:
        """Commit up to an entry if it is of this term; return whether the commit index advanced.

        A quorum does not commit an entry of an older term, because a later leader may still replace
        it. Such an entry is committed together with the first entry of the current term above it.
        """
        if term and index > self.committed and self.matches(term, index):
            self.commit_to(index)
            return True
        return False

    def _applicable_to(self, allow_unstable: bool) -> int:
        """Return the last index that may be handed to the application."""
        if allow_unstable:
            return self.committed
        return min(self.committed, self.unstable.offset - 1)

    def has_next_committed(self, allow_unstable: bool) -> bool:
        """Return whether there are entries to hand to the application."""
        return (
            not self.applying_paused
            and self.applying < self.committed
            and self.applying < self._applicable_to(allow_unstable)
            # The application must take the snapshot first.
            and self.unstable.snapshot is None
        )

    def next_committed(self, allow_unstable: bool) -> list[Entry]:
        """Return the entries to hand to the application, limited in size."""
        if not self.has_next_committed(allow_unstable):
            return []
        low, high = self.applying + 1, self._applicable_to(allow_unstable) + 1
        size_max = self.applying_size_max - self.applying_size
        if size_max <= 0:
            self._stop(
                f"applying entry size ({self.applying_size_max}-{self.applying_size})="
                f"{size_max} not positive"
            )
        try:
            return self.slice(low, high, size_max)
        except StorageError as error:
            self._stop(f"unexpected error when getting unapplied entries ({error})")

    def accept_applying(self, index: int, size: int, allow_unstable: bool) -> None:
        """Record that the application received entries up to the index, of this encoded size."""
        if index > self.committed:
            self._stop(
                f"applying({index}) is out of range "
                f"[prevApplying({self.applying}), committed({self.committed})]"
            )
        self.applying = index
        self.applying_size += size
        # A batch that was cut short has reached the limit, though its size may be below the limit.
        self.applying_paused = (
            self.applying_size >= self.applying_size_max
            or index < self._applicable_to(allow_unstable)
        )

    def applied_to(self, index: int, size: int) -> None:
        """Record that the application applied entries up to the index, of this encoded size."""
        if not self.applied <= index <= self.committed:
            self._stop(
                f"applied({index}) is out of range "
                f"[prevApplied({self.applied}), committed({self.committed})]"
            )
        self.applied = index
        self.applying = max(self.applying, index)
        self.applying_size = max(0, self.applying_size - size)
        self.applying_paused = self.applying_size >= self.applying_size_max

    def slice(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Return entries low .. high-1, limited to an encoded size but at least one entry."""
        first, last = self.first_index(), self.last_index()
        if low > high:
            self._stop(f"invalid slice {low} > {high}")
        if low < first:
            raise CompactedError
        if high > last + 1:
            self._stop(f"slice[{low},{high}) out of bound [{first},{last}]")
        if low == high:
            return []
        offset = self.unstable.offset
        if low >= offset:
            return self.unstable.slice(low, high, size_max)
        cut = min(high, offset)
        try:
            entries = self.storage.entries(low, cut, size_max)
        except UnavailableError:
            self._stop(f"entries[{low}:{cut}) is unavailable from storage")
        if high <= offset or len(entries) < cut - low:
            return entries
        if size_max >= NO_LIMIT:
            return entries + self.unstable.slice(offset, high, size_max)
        size = encoded_size(entries)
        if size >= size_max:
            return entries
        rest = self.unstable.slice(offset, high, size_max - size)
        # `slice` returns at least one entry, which may exceed the remaining size.
        if len(rest) == 1 and size + rest[0].size > size_max:
            return entries
        return entries + rest

    def entries_from(self, index: int, size_max: int) -> list[Entry]:
        """Return entries from the index on, limited to an encoded size but at least one entry."""
        unstable = self.unstable
        position = index - unstable.offset
        if position >= 0:
            return take_within(unstable.entries, position, len(unstable.entries), size_max)
        return self.slice(index, self.last_index() + 1, size_max)

    def scan(self, low: int, high: int, page_size: int) -> Iterator[list[Entry]]:
        """Yield entries low .. high-1 in pages of at most this encoded size, or of one entry."""
        while low < high:
            page = self.slice(low, high, page_size)
            if not page:
                raise RaftError(f"got 0 entries in [{low}, {high})")
            yield page
            low += len(page)

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot; the storage may raise that it is still being built."""
        return self.unstable.snapshot or self.storage.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole log with a snapshot."""
        self._logger.info(
            f"log [{self}] starts to restore snapshot "
            f"[index: {snapshot.index}, term: {snapshot.term}]"
        )
        self.committed = snapshot.index
        self.unstable.restore(snapshot)

    def _stop(self, text: str) -> NoReturn:
        stop(self._logger, text)
