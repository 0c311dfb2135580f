"""The writer's side of the log: decides what to append next, and where.

A `Log` lives on the loop and touches no file. It frames records, keeps the checksum, the offset and
the newest state, and returns jobs that an executor runs in order (see `jobs`). A change of only the
commit index needs no durability, so `save` does not write it: the next batch or `flush` includes
it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvorum.raft.entries import Entry
from kvorum.raft.messages import NO_HARD_STATE, ConfState, HardState
from kvorum.storage.wal.framing import Framer
from kvorum.storage.wal.jobs import AppendLog, CloseLog, CutSegment, PrepareSegment, ReleaseSegments
from kvorum.storage.wal.segments import SEGMENT_BYTES, Segment


class HeldSegment(NamedTuple):
    """An open and locked segment."""

    segment: Segment
    descriptor: int


class Log:
    """Turns entries, states and snapshot records into jobs; unusable after a job has failed."""

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
        # Oldest first; the log appends to the last one.
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
        """Return the job for entries and state; None if nothing must be durable now.

        Entries must be durable, and so must a new term or vote, and a commit index that makes the
        record of a received snapshot valid. The job also makes every commit index that was given
        before durable.
        """
        if state is not None:
            self._state = state
        else:
            state = self._state
        if entries:
            self._last_index = entries[-1].index
        elif not self._state_must_sync():
            return None
        # This inlines `_take_state` and `_append`, because `save` is the hot path.
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
        """Return the job for the record of a snapshot whose own file is already durable."""
        data = self._framer.batch((), self._take_state())
        data += self._framer.snapshot(index, term, conf_state)
        self._last_index = max(self._last_index, index)
        # The record of this member's own snapshot may come between a received snapshot's record and
        # its state.
        self._snapshot_index = max(self._snapshot_index, index)
        return self._append(data)

    def flush(self) -> AppendLog | None:
        """Return the job for a state that no batch has written yet; None if there is none."""
        state = self._take_state()
        return None if state is None else self._append(self._framer.batch((), state))

    def _take_state(self) -> HardState | None:
        """Return the newest state for the next batch; None if a batch already has it."""
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

    def take_spare(self, descriptor: int) -> None:
        """Receive the descriptor that the job of `prepare` returned."""
        assert self._spare is None, "two segments were prepared"
        self._spare = descriptor

    def cut(self) -> CutSegment | None:
        """Return the job that switches to the next segment, if the current one is full.

        Return None until the next segment is prepared; the full one grows meanwhile.
        """
        if self._offset < self._segment_bytes or self._spare is None:
            return None
        head = self._framer.checkpoint() + self._framer.metadata(self._metadata)
        if self._state != NO_HARD_STATE:
            head += self._framer.batch((), self._state)
            self._written_state = self._state
        # A second checksum record proves that everything before this head was durable when the
        # head was written.
        head += self._framer.checkpoint()
        old, descriptor = self._held[-1]
        new = Segment(old.number + 1, self._last_index + 1)
        job = CutSegment(self._directory, descriptor, self._offset, self._spare, new.name, head)
        self._held.append(HeldSegment(new, self._spare))
        self._spare = None
        self._offset = len(head)
        return job

    def release_to(self, index: int) -> ReleaseSegments | None:
        """Return the job that closes segments which a start from a snapshot here does not read."""
        below = [place for place, held in enumerate(self._held) if held.segment.index <= index]
        count = below[-1] if below else 0
        if not count:
            return None
        released = tuple(held.descriptor for held in self._held[:count])
        del self._held[:count]
        return ReleaseSegments(released)

    def close(self) -> CloseLog:
        """Return the job that closes the log; run the job of `flush` before it."""
        descriptors = tuple(held.descriptor for held in self._held)
        return CloseLog(self._directory, descriptors, self._spare)
