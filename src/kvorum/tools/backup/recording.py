"""Turn the changes that a watch reports into segments without a gap, or end the history.

Every revision of a store changes something. A revision other than the next one therefore means that
changes were missed, or that this is another store; neither may go into the same history. Whenever a
watch is opened, it repeats the last recorded revisions, and the recorder compares them before it
adds anything.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from kvorum.client.values import Changes, Event
from kvorum.tools.backup.errors import HistoryEndedError
from kvorum.tools.backup.segments import (
    COMPARED_BYTES_MAX,
    COMPARED_REVISIONS_MAX,
    Known,
    Row,
    SegmentWriter,
    digest_of,
    rows_of,
)


class Tail:
    """The newest recorded revisions, as many as are compared when a watch is opened."""

    def __init__(self, known: Sequence[Known] = ()) -> None:
        self._known = deque((each, 0) for each in known)
        self._bytes = 0

    def __iter__(self) -> Iterator[Known]:
        return (each for each, _ in self._known)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, known: Known, size: int) -> None:
        """Add the next revision, whose rows have this size in bytes."""
        self._known.append((known, size))
        self._bytes += size
        while len(self._known) > 1 and (
            len(self._known) > COMPARED_REVISIONS_MAX or self._bytes > COMPARED_BYTES_MAX
        ):
            self._bytes -= self._known.popleft()[1]


def size_of(rows: Sequence[Row]) -> int:
    """Return the size in bytes of the rows of a revision."""
    return sum(len(key) + len(value) for key, value in rows)


class HistoryPosition(NamedTuple):
    """A position from which a history continues: a revision with known rows."""

    revision: int
    digest: str
    """The digest of the revision's rows; empty if they are unknown, and need not be known."""
    before: Sequence[Known] = ()
    """Earlier revisions to compare as well, in ascending order."""


class Recorder:
    """Records one history in segments, starting after a position."""

    def __init__(
        self,
        history: str,
        cluster_id: int,
        position: HistoryPosition,
        expected: Mapping[int, str] | None = None,
    ) -> None:
        """Start after `position`; `expected` has digests of later revisions, from snapshots."""
        self.history = history
        self.last = position.revision
        """The newest received revision."""
        self.written = position.revision
        """The newest revision in a segment that `take` returned."""
        self._cluster_id = cluster_id
        self._term = 0
        last = [Known(position.revision, position.digest)] if position.digest else []
        self._tail = Tail([*position.before, *last])
        self._awaited: deque[Known] = deque()
        """Revisions that the watch must repeat before anything else is added."""
        self._expected = expected or {}
        self._writer = SegmentWriter(history, self.last + 1)
        self.leases: set[int] = set()
        """Leases of keys in this segment."""

    @property
    def position(self) -> HistoryPosition:
        """The position after the newest received revision."""
        *before, last = self._tail or [Known(self.last, "")]
        return HistoryPosition(last.revision, last.digest, before)

    @property
    def size(self) -> int:
        """The size of the current segment in bytes."""
        return self._writer.size

    @property
    def is_settled(self) -> bool:
        """Whether the store was found to continue the recorded history."""
        return not self._awaited

    def contradicts(self, known: Sequence[Known]) -> bool:
        """Return whether one of these revisions was recorded with other rows."""
        recorded = dict(self._tail)
        return any(recorded.get(each.revision, each.digest) != each.digest for each in known)

    def resume(self, revision_min: int = 0) -> int:
        """Return the revision to watch from, so that recorded revisions come again to be compared.

        Compacted revisions cannot be compared, so the watch starts at `revision_min` at the
        earliest, or at the last recorded revision if none is left to compare. It never starts
        later, because a server reports no progress to a watch of a future revision.
        """
        self._awaited = deque(each for each in self._tail if each.revision >= revision_min)
        return self._awaited[0].revision if self._awaited else self.last

    def add(self, changes: Changes, known: float) -> None:
        """Add changes; raise HistoryEndedError if they do not belong to this history."""
        header = changes.header
        if header.cluster_id != self._cluster_id:
            raise HistoryEndedError(
                f"the cluster is {header.cluster_id:x} and no longer {self._cluster_id:x}"
            )
        if header.raft_term < self._term:
            raise HistoryEndedError("the store was restored: its term went back")
        self._term = header.raft_term
        for number, group in groupby(changes.events, key=lambda event: event.revision):
            self._add_revision(number, list(group), known)
        if changes.revision > self.last:
            raise HistoryEndedError(
                f"revisions {self.last + 1} to {changes.revision} were not received"
            )

    def _add_revision(self, number: int, events: Sequence[Event], known: float) -> None:
        rows = rows_of(number, events)
        known_rows = Known(number, digest_of(rows))
        if self._awaited:
            if known_rows != self._awaited.popleft():
                raise HistoryEndedError(
                    f"the store does not continue what was recorded up to revision {self.last}"
                )
            return
        if number <= self.last:
            if number == self.last and not self._tail:
                self._tail.add(known_rows, size_of(rows))
            return
        if number != self.last + 1:
            raise HistoryEndedError(f"revisions {self.last + 1} to {number - 1} were not received")
        if self._expected.get(number, known_rows.digest) != known_rows.digest:
            raise HistoryEndedError(f"revision {number} is not the one that its snapshot has")
        self._writer.add(number, known, events)
        self._tail.add(known_rows, size_of(rows))
        self.last = number
        self.leases |= {event.kv.lease for event in events if event.kv.lease}

    def take(
        self, since: float | None, until: float, leases: dict[int, int]
    ) -> tuple[int, int, bytes]:
        """Return the segment with its first and last revision, and start the next segment."""
        first, last = self.written + 1, self.last
        data = self._writer.finish(last, since, until, leases)
        self._writer = SegmentWriter(self.history, last + 1)
        self.written = last
        self.leases = set()
        return first, last, data
