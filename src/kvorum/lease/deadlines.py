"""Whom to look at next: a heap of moments with one that counts per id.

A deadline that moves later costs nothing: the entry fires too early, and whoever looks sets it
again. One that moves earlier, or an id that goes away, leaves a stale entry behind, which is
dropped when it comes up. There are never more stale entries than others, plus a few.
"""

from collections.abc import Generator
from heapq import heapify, heappop, heappush
from math import inf

from kvorum.lease.slices import SLICE

_STALE_MIN = 64


class Deadlines:
    """Ids, each with the moment at which it wants to be looked at."""

    __slots__ = ("_heap", "_moments")

    def __init__(self) -> None:
        self._moments: dict[int, float] = {}
        # Every (moment, id) of `_moments`, and stale ones.
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._moments)

    @property
    def first(self) -> float:
        """The earliest moment at which there may be something to do; infinity if there is none."""
        return self._heap[0][0] if self._heap else inf

    def arm(self, identity: int, moment: float) -> None:
        """Have the id come up at this moment or before."""
        armed = self._moments.get(identity)
        if armed is None or moment < armed:
            self._moments[identity] = moment
            heappush(self._heap, (moment, identity))
            self._bound_stale()

    def disarm(self, identity: int) -> None:
        """Forget the id, if it is there."""
        if self._moments.pop(identity, None) is not None:
            self._bound_stale()

    def take(self, now: float) -> int | None:
        """Take the id whose moment has come first; None if there is none. It is disarmed."""
        while self._heap and self._heap[0][0] <= now:
            moment, identity = heappop(self._heap)
            if self._moments.get(identity) == moment:
                del self._moments[identity]
                return identity
        return None

    def replace(self, entries: list[tuple[float, int]]) -> Generator[None, None, None]:
        """Have exactly these (moment, id), in ascending order and of distinct ids; in slices."""
        moments: dict[int, float] = {}
        for start in range(0, len(entries), SLICE):
            moments.update(
                (identity, moment) for moment, identity in entries[start : start + SLICE]
            )
            yield
        assert len(moments) == len(entries), "an id has one deadline"
        # A sorted list is a heap.
        self._heap = list(entries)
        self._moments = moments

    def _bound_stale(self) -> None:
        if len(self._heap) > 2 * len(self._moments) + _STALE_MIN:
            moments = self._moments
            self._heap = [entry for entry in self._heap if moments.get(entry[1]) == entry[0]]
            heapify(self._heap)
