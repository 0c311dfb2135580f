"""From the changes that a watch tells to segments: nothing is left out, or the history ends.

Every revision of a store changes something, so that a revision which is not the next one means that
changes were missed, or that this is another store. Neither may go into the same history.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from kvorum.backup.errors import HistoryEndedError
from kvorum.backup.segments import SegmentWriter, digest_of, rows_of
from kvorum.client.values import Changes, Event


class Place(NamedTuple):
    """Where a history is continued: after a revision whose rows are known."""

    revision: int
    digest: str
    """Of the revision's rows; empty if they are not known, and need not be."""


class Recorder:
    """Records one history, from a place on, in segments."""

    def __init__(self, history: str, cluster_id: int, place: Place) -> None:
        self.history = history
        self.last = place.revision
        """The newest revision that was told."""
        self.written = place.revision
        """The newest revision that is in a segment which was taken out."""
        self._cluster_id = cluster_id
        self._term = 0
        self._awaited = ""
        """The digest that the rows of the last revision are to have when they come again."""
        self._digest = place.digest
        self._writer = SegmentWriter(history, self.last + 1)
        self.leases: set[int] = set()
        """Leases that keys of this segment have."""

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.last, self._digest)

    @property
    def size(self) -> int:
        """How long the segment is so far."""
        return self._writer.size

    @property
    def is_settled(self) -> bool:
        """Whether it is known that the store continues what was recorded."""
        return not self._awaited

    def resume(self) -> int:
        """Return the revision to watch from: the last one, so that it is seen to be the same.

        A server also tells no progress to those who wait for a revision that is yet to come.
        """
        self._awaited = self._digest
        return self.last

    def add(self, changes: Changes, known: float) -> None:
        """Take changes; raises HistoryEndedError if they do not belong to this history."""
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
                f"revisions {self.last + 1} to {changes.revision} were not told of"
            )

    def _add_revision(self, number: int, events: Sequence[Event], known: float) -> None:
        rows = rows_of(number, events)
        digest = digest_of(rows)
        if self._awaited:
            if number != self.last or digest != self._awaited:
                raise HistoryEndedError(
                    f"the store does not continue what was recorded up to revision {self.last}"
                )
            self._awaited = ""
            return
        if number <= self.last:
            return
        if number != self.last + 1:
            raise HistoryEndedError(f"revisions {self.last + 1} to {number - 1} were not told of")
        self._writer.add(number, known, events)
        self._digest = digest
        self.last = number
        self.leases |= {event.kv.lease for event in events if event.kv.lease}

    def take(
        self, since: float | None, until: float, leases: dict[int, int]
    ) -> tuple[int, int, bytes]:
        """Return the segment with its first and last revision, and begin the next."""
        first, last = self.written + 1, self.last
        data = self._writer.finished(last, since, until, leases)
        self._writer = SegmentWriter(self.history, last + 1)
        self.written = last
        self.leases = set()
        return first, last, data
