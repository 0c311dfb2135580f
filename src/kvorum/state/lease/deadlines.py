"""Find the id that is due next: heaps of moments, with one valid moment per id.

A deadline that moves later costs nothing: its entry comes up too early, and the caller arms it
again. A deadline that moves earlier, or a removed id, leaves a stale entry behind. When most
entries are stale the heap retires: every later change pops a few entries from the list's end, which
keeps it a heap, and moves the valid ones to a new heap. So there are few stale entries at any time,
and no call has to visit all of them.
"""

from collections.abc import Generator
from heapq import heappop, heappush
from math import inf

from kvorum.api.limits import WorkLimits

_MOVED_PER_CHANGE = 8


class Deadlines:
    """Ids, each with the moment at which it is due."""

    __slots__ = ("_heap", "_limits", "_moments", "_retiring")

    def __init__(self, limits: WorkLimits) -> None:
        self._limits = limits
        self._moments: dict[int, float] = {}
        # Together the two heaps hold every (moment, id) of `_moments`, and stale entries.
        self._heap: list[tuple[float, int]] = []
        self._retiring: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._moments)

    @property
    def first(self) -> float:
        """The earliest moment at which an id may be due; infinity without entries."""
        heap = self._first_heap()
        return heap[0][0] if heap else inf

    @property
    def entry_count(self) -> int:
        """The number of entries, stale ones included."""
        return len(self._heap) + len(self._retiring)

    def arm(self, identity: int, moment: float) -> None:
        """Make the id due at this moment, unless it is due earlier already."""
        armed = self._moments.get(identity)
        if armed is None or moment < armed:
            self._moments[identity] = moment
            heappush(self._heap, (moment, identity))
            self._tidy()

    def disarm(self, identity: int) -> None:
        """Remove the id, if it is armed."""
        if self._moments.pop(identity, None) is not None:
            self._tidy()

    def take(self, now: float) -> int | None:
        """Disarm and return the id with the earliest moment; None if none is due."""
        while (heap := self._first_heap()) and heap[0][0] <= now:
            moment, identity = heappop(heap)
            if self._moments.get(identity) == moment:
                del self._moments[identity]
                return identity
        return None

    def replace(self, entries: list[tuple[float, int]]) -> Generator[None, None, None]:
        """Replace all entries by these (moment, id), sorted and with distinct ids; in slices."""
        moments: dict[int, float] = {}
        slice_items = self._limits.lease_slice_items
        for start in range(0, len(entries), slice_items):
            moments.update(
                (identity, moment) for moment, identity in entries[start : start + slice_items]
            )
            yield
        assert len(moments) == len(entries), "an id has one deadline"
        # A sorted list is a heap.
        self._heap, self._retiring = list(entries), []
        self._moments = moments

    def _first_heap(self) -> list[tuple[float, int]]:
        heap, retiring = self._heap, self._retiring
        return retiring if retiring and (not heap or retiring[0] < heap[0]) else heap

    def _tidy(self) -> None:
        if not self._retiring:
            stale_min = self._limits.lease_stale_deadlines_min
            if len(self._heap) <= 2 * len(self._moments) + stale_min:
                return
            self._heap, self._retiring = [], self._heap
        retiring, moments = self._retiring, self._moments
        for _ in range(min(_MOVED_PER_CHANGE, len(retiring))):
            entry = retiring.pop()
            if moments.get(entry[1]) == entry[0]:
                heappush(self._heap, entry)
