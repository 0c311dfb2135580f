"""Deadlines, and an alarm that becomes readable at the earliest of them."""

import heapq
from collections.abc import Callable

from kvorum.storage.platform.readiness import NEVER, Alarm


def _is_nothing_live(_number: int, _moment: float) -> bool:
    return False


class Timers:
    """Deadlines on the monotonic clock, each with its owner's number.

    Obsolete entries stay in the heap; `is_live` decides about each when it comes up.
    """

    __slots__ = ("_alarm", "_armed", "_heap", "_is_live", "_size_checked")

    def __init__(self, is_live: Callable[[int, float], bool]) -> None:
        self._alarm = Alarm()
        self._heap: list[tuple[float, int]] = []
        self._is_live = is_live
        self._armed = NEVER
        self._size_checked = 1024

    def fileno(self) -> int:
        """Return the alarm's descriptor, readable from the earliest armed deadline on."""
        return self._alarm.fileno()

    def add(self, moment: float, number: int) -> None:
        """Add a deadline."""
        heap = self._heap
        heapq.heappush(heap, (moment, number))
        # Most calls end long before their deadlines; purge their entries.
        if len(heap) > self._size_checked:
            heap[:] = [entry for entry in heap if self._is_live(entry[1], entry[0])]
            heapq.heapify(heap)
            self._size_checked = max(1024, 2 * len(heap))

    def due(self, now: float) -> list[int]:
        """Take the numbers of live deadlines that have passed, in order."""
        heap = self._heap
        numbers = []
        while heap and heap[0][0] <= now:
            moment, number = heapq.heappop(heap)
            if self._is_live(number, moment):
                numbers.append(number)
        if self._armed <= now:
            self._set(NEVER)
        return numbers

    def arm(self) -> None:
        """Arm the descriptor for the next deadline; it may fire earlier than needed."""
        heap = self._heap
        while heap and not self._is_live(heap[0][1], heap[0][0]):
            heapq.heappop(heap)
        if heap and heap[0][0] < self._armed:
            self._set(heap[0][0])

    def close(self) -> None:
        """Close the descriptor."""
        self._alarm.close()
        self._heap.clear()
        self._is_live = _is_nothing_live

    def _set(self, moment: float) -> None:
        self._armed = moment
        self._alarm.set(moment)
