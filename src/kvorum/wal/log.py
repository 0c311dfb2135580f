"""The log as its one writer sees it: what to append next, and where.

A `Log` lives on the loop and touches no file. It frames records, keeps the checksum, the offset
and the newest state, and gives out jobs that someone else runs in order (see `jobs`). A change
of the commit index alone needs no durability, so `save` does not write it: the next batch brings
it along, or `flush` does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvorum.raft.entries import Entry
from kvorum.raft.messages import NO_HARD_STATE, ConfState, HardState
from kvorum.wal.framing import Framer
from kvorum.wal.jobs import AppendLog, CloseLog, CutSegment, PrepareSegment, ReleaseSegments
from kvorum.wal.segments import SEGMENT_BYTES, Segment


class HeldSegment(NamedTuple):
    """A segment that is open and locked."""

    segment: Segment
    descriptor: int


class Log:
    """Frames what must be durable. After a job has failed, the log must not be used again."""

    __slots__ = (
        "_directory",
        "_framer",
        "_held",
        "_last_index",
        "_metadata",
        "_offset",
        "_segment_bytes",
        "_snapshot_index",
        "_spare",
        "_state",
        "_written_state",
    )

    def __init__(
        self,
        directory: str,
        held: list[HeldSegment],
        *,
        metadata: bytes,
        state: HardState,
        last_index: int,
        offset: int,
        crc: int,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._directory = directory
        # Oldest first; the last one is written to.
        self._held = held
        self._metadata = metadata
        self._state = state
        self._written_state = state
        self._last_index = last_index
        self._offset = offset
        self._framer = Framer(crc)
        self._segment_bytes = segment_bytes
        self._spare: int | None = None
        # The highest index among the snapshot records.
        self._snapshot_index = 0

    def save(self, state: HardState | None, entries: Sequence[Entry]) -> AppendLog | None:
        """Return the batch of entries and state; None if nothing has to be durable now.

        Entries must be, and so must a new term or vote, and a commit index that makes the record of
        a received snapshot count. When the job is done, all of that is durable, and so is any
        commit index given before.
        """
        if state is not None:
            self._state = state
        else:
            state = self._state
        if entries:
            self._last_index = entries[-1].index
        elif not self._state_must_sync():
            return None
        # As in `_take_state` and `_append`, without their calls: this is the hot path.
        is_new = state != self._written_state
        self._written_state = state
        data = self._framer.batch(entries, state if is_new else None)
        offset = self._offset
        self._offset = offset + len(data)
        return AppendLog(self._held[-1].descriptor, offset, data)

    def _state_must_sync(self) -> bool:
        state, written = self._state, self._written_state
        return (
            state.term != written.term
            or state.vote != written.vote
            or written.commit < self._snapshot_index <= state.commit
        )

    def save_snapshot(self, index: int, term: int, conf_state: ConfState) -> AppendLog:
        """Return the record of a snapshot whose own file is already durable."""
        data = self._framer.batch((), self._take_state())
        data += self._framer.snapshot(index, term, conf_state)
        self._last_index = max(self._last_index, index)
        # The record of this member's snapshot may come between that of a received one and its
        # state.
        self._snapshot_index = max(self._snapshot_index, index)
        return self._append(data)

    def flush(self) -> AppendLog | None:
        """Return a batch of what no other has written yet, if it is worth a write of its own."""
        state = self._take_state()
        return None if state is None else self._append(self._framer.batch((), state))

    def _take_state(self) -> HardState | None:
        """Return the newest state if no batch has it yet."""
        if self._state == self._written_state:
            return None
        self._written_state = self._state
        return self._state

    def _append(self, data: bytes) -> AppendLog:
        job = AppendLog(self._held[-1].descriptor, self._offset, data)
        self._offset += len(data)
        return job

    def prepare(self) -> PrepareSegment | None:
        """Return the job that prepares the next segment; None if one is ready."""
        if self._spare is not None:
            return None
        return PrepareSegment(self._directory, self._segment_bytes)

    def prepared(self, descriptor: int) -> None:
        """Take what the job of `prepare` returned."""
        assert self._spare is None, "two segments were prepared"
        self._spare = descriptor

    def cut(self) -> CutSegment | None:
        """Return the job that begins the next segment, if this one is full and that one ready.

        Until it is ready the full segment just grows.
        """
        if self._offset < self._segment_bytes or self._spare is None:
            return None
        head = self._framer.checkpoint() + self._framer.metadata(self._metadata)
        if self._state != NO_HARD_STATE:
            head += self._framer.batch((), self._state)
            self._written_state = self._state
        # The checksum once more: it proves that this head was written when everything before was
        # durable.
        head += self._framer.checkpoint()
        old, descriptor = self._held[-1]
        new = Segment(old.number + 1, self._last_index + 1)
        job = CutSegment(self._directory, descriptor, self._offset, self._spare, new.name, head)
        self._held.append(HeldSegment(new, self._spare))
        self._spare = None
        self._offset = len(head)
        return job

    def release_to(self, index: int) -> ReleaseSegments | None:
        """Close the segments that a start from a snapshot at this index does not read."""
        below = [place for place, held in enumerate(self._held) if held.segment.index <= index]
        count = below[-1] if below else 0
        if not count:
            return None
        released = tuple(held.descriptor for held in self._held[:count])
        del self._held[:count]
        return ReleaseSegments(released)

    def close(self) -> CloseLog:
        """Return the job that ends a log; run the job of `flush` before it."""
        descriptors = tuple(held.descriptor for held in self._held)
        return CloseLog(self._directory, descriptors, self._spare)
