"""The interface through which the core reads its log, and an implementation in memory.

The core never writes: the embedder writes what a Ready asks for. The storage shares entries with
the core, and nobody changes them. A storage raises `StorageError` for data that it lacks; any other
exception of a storage stops the node.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from kvorum.raft.entries import Entry, EntryType, encoded_size, take_within
from kvorum.raft.errors import (
    CompactedError,
    FatalError,
    SnapshotOutOfDateError,
    UnavailableError,
)
from kvorum.raft.messages import ConfState, HardState, Snapshot

ENTRY_OVERHEAD_BYTES: Final = 160
"""The estimated memory cost of one entry beside its encoding."""


class Storage(Protocol):
    """The stable part of the log: entries first_index .. last_index, and the state before them."""

    def initial_state(self) -> tuple[HardState, ConfState]:
        """Return the saved state, or empty values if nothing was saved."""

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Return entries low .. high-1, limited to an encoded size but at least one entry."""

    def term(self, index: int) -> int:
        """Return the term of an entry; valid from first_index - 1 on."""

    def first_index(self) -> int:
        """Return the index of the oldest entry in the storage."""

    def last_index(self) -> int:
        """Return the index of the newest entry."""

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot, or raise SnapshotTemporarilyUnavailableError."""


class MemoryStorage:
    """A storage in memory, for tests and for embedders that persist their log elsewhere.

    The first element of the list stands for the entry at which the log was compacted; only its
    index and term have a meaning. `memory_bytes` estimates the memory of all entries.
    """

    __slots__ = ("_entries", "_hard_state", "_snapshot", "memory_bytes")

    def __init__(self) -> None:
        self._entries = [Entry(EntryType.NORMAL, 0, 0)]
        self._hard_state = HardState()
        self._snapshot = Snapshot(0, 0)
        self.memory_bytes = 0

    def initial_state(self) -> tuple[HardState, ConfState]:
        """Return the last saved hard state and members."""
        return self._hard_state, self._snapshot.conf_state

    def set_hard_state(self, state: HardState) -> None:
        """Save the hard state."""
        self._hard_state = state

    def first_index(self) -> int:
        """Return the index of the oldest entry in the storage."""
        return self._entries[0].index + 1

    def last_index(self) -> int:
        """Return the index of the newest entry."""
        return self._entries[0].index + len(self._entries) - 1

    def term(self, index: int) -> int:
        """Return the term of an entry, or of the compaction point."""
        position = index - self._entries[0].index
        if position < 0:
            raise CompactedError
        if position >= len(self._entries):
            raise UnavailableError
        return self._entries[position].term

    def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
        """Return entries low .. high-1, limited to an encoded size but at least one entry."""
        offset = self._entries[0].index
        if low <= offset:
            raise CompactedError
        if high > self.last_index() + 1:
            raise FatalError(f"entries' hi({high}) is out of bound lastindex({self.last_index()})")
        if len(self._entries) == 1:
            raise UnavailableError
        return take_within(self._entries, low - offset, high - offset, size_max)

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot."""
        return self._snapshot

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the whole log with a snapshot that the leader sent."""
        if self._snapshot.index and self._snapshot.index >= snapshot.index:
            raise SnapshotOutOfDateError
        self._snapshot = snapshot
        self._entries = [Entry(EntryType.NORMAL, snapshot.term, snapshot.index)]
        self.memory_bytes = 0

    def create_snapshot(self, index: int, conf_state: ConfState | None, data: bytes) -> Snapshot:
        """Store the application's state at an index; the log stays until `compact`."""
        if index <= self._snapshot.index:
            raise SnapshotOutOfDateError
        if index > self.last_index():
            raise FatalError(f"snapshot {index} is out of bound lastindex({self.last_index()})")
        if conf_state is None:
            conf_state = self._snapshot.conf_state
        self._snapshot = Snapshot(index, self.term(index), conf_state, data)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Discard the entries up to and including this index."""
        offset = self._entries[0].index
        if index <= offset:
            raise CompactedError
        if index > self.last_index():
            raise FatalError(f"compact {index} is out of bound lastindex({self.last_index()})")
        kept = self._entries[index - offset]
        self.memory_bytes -= _memory(self._entries[1 : index - offset + 1])
        self._entries = self._entries[index - offset :]
        self._entries[0] = Entry(EntryType.NORMAL, kept.term, kept.index)

    def index_within(self, memory_bytes_max: int) -> int:
        """Return the lowest index such that the entries after it fit in this many bytes."""
        log = self._entries
        position, excess = 0, self.memory_bytes - memory_bytes_max
        while excess > 0 and position + 1 < len(log):
            position += 1
            excess -= log[position].size + ENTRY_OVERHEAD_BYTES
        return log[0].index + position

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries; they replace all entries from the first one's index on."""
        if not entries:
            return
        log = self._entries
        first = log[0].index + 1
        if entries[-1].index < first:
            return
        if entries[0].index < first:
            entries = entries[first - entries[0].index :]
        position = entries[0].index - log[0].index
        if position > len(log):
            raise FatalError(
                f"missing log entry [last: {self.last_index()}, append at: {entries[0].index}]"
            )
        if position < len(log):
            self.memory_bytes -= _memory(log[position:])
            del log[position:]
        log.extend(entries)
        self.memory_bytes += _memory(entries)


def _memory(entries: Sequence[Entry]) -> int:
    return encoded_size(entries) + ENTRY_OVERHEAD_BYTES * len(entries)
