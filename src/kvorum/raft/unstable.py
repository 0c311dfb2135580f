"""The part of the log that is not yet known to be written.

`entries[k]` has the index `offset + k`. Entries below `offset_in_progress` were handed out for
writing and are not handed out again; always offset <= offset_in_progress. A snapshot, if present,
lies directly below `offset` and is written before any entry. Without a snapshot, the storage's last
entry lies there, because the embedder writes only entries that were handed out here.

An acknowledged write removes entries only if it has the term of the entry at its index, because the
log may have been rewritten during the write.
"""

from collections.abc import Sequence

from kvorum.raft.entries import Entry, take_within
from kvorum.raft.logger import Logger
from kvorum.raft.messages import Snapshot


class Unstable:
    """Entries and a snapshot that are not yet known to be in the storage."""

    __slots__ = (
        "_logger",
        "entries",
        "offset",
        "offset_in_progress",
        "snapshot",
        "snapshot_in_progress",
    )

    def __init__(self, offset: int, logger: Logger) -> None:
        self.snapshot: Snapshot | None = None
        self.snapshot_in_progress = False
        # This list is private: callers always get copies.
        self.entries: list[Entry] = []
        self.offset = offset
        self.offset_in_progress = offset
        self._logger = logger

    def term(self, index: int) -> int | None:
        """Return the term of an entry, if this part holds it or its snapshot is at the index."""
        position = index - self.offset
        if position < 0:
            snapshot = self.snapshot
            return snapshot.term if snapshot is not None and snapshot.index == index else None
        return self.entries[position].term if position < len(self.entries) else None

    def slice(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Return entries low .. high-1, limited to an encoded size but at least one entry."""
        assert self.offset <= low <= high <= self.offset + len(self.entries), (
            f"unstable.slice[{low},{high}) out of bound "
            f"[{self.offset},{self.offset + len(self.entries)}]"
        )
        return take_within(self.entries, low - self.offset, high - self.offset, size_max)

    def next_entries(self) -> list[Entry]:
        """Return the entries to write that were not handed out yet."""
        return self.entries[self.offset_in_progress - self.offset :]

    def has_next_entries(self) -> bool:
        """Return whether there are entries to write that were not handed out yet."""
        return self.offset + len(self.entries) > self.offset_in_progress

    def next_snapshot(self) -> Snapshot | None:
        """Return the snapshot to write, unless it was handed out already."""
        return None if self.snapshot_in_progress else self.snapshot

    def accept_in_progress(self) -> None:
        """Record that all entries and the snapshot were handed out."""
        if self.entries:
            self.offset_in_progress = self.offset + len(self.entries)
        if self.snapshot is not None:
            self.snapshot_in_progress = True

    def stable_to(self, term: int, index: int) -> None:
        """Remove the entries up to a written one, unless another entry has replaced it."""
        ours = self.term(index)
        if ours is None:
            self._logger.info(f"entry at index {index} missing from unstable log; ignoring")
            return
        if index < self.offset:
            self._logger.info(f"entry at index {index} matched unstable snapshot; ignoring")
            return
        if ours != term:
            self._logger.info(
                f"entry at (index,term)=({index},{term}) mismatched with entry at "
                f"({index},{ours}) in unstable log; ignoring"
            )
            return
        del self.entries[: index + 1 - self.offset]
        self.offset = index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)

    def stable_snapshot_to(self, index: int) -> None:
        """Remove the written snapshot, unless another one has replaced it."""
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything with a snapshot."""
        self.offset = self.offset_in_progress = snapshot.index + 1
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False

    def truncate_and_append(self, entries: Sequence[Entry]) -> None:
        """Append entries; they replace all entries from the first one's index on."""
        first = entries[0].index
        if first == self.offset + len(self.entries):
            self.entries.extend(entries)
        elif first <= self.offset:
            self._logger.info(f"replace the unstable entries from index {first}")
            self.entries = list(entries)
            self.offset = self.offset_in_progress = first
        else:
            self._logger.info(f"truncate the unstable entries before index {first}")
            assert first < self.offset + len(self.entries), (
                f"unstable.slice[{self.offset},{first}) out of bound "
                f"[{self.offset},{self.offset + len(self.entries)}]"
            )
            del self.entries[first - self.offset :]
            self.entries.extend(entries)
            self.offset_in_progress = min(self.offset_in_progress, first)
