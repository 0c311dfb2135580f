"""Deadlines, and a timer descriptor that becomes readable at the earliest of them."""

import ctypes
import heapq
import os
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_NEVER = float("inf")


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


# The `os` module has timerfd functions only from Python 3.13 on.
_libc = ctypes.CDLL(None, use_errno=True)


def _is_nothing_live(_number: int, _moment: float) -> bool:
    return False


class Timers:
    """Deadlines on the monotonic clock, each with its owner's number.

    Obsolete entries stay in the heap; `is_live` decides about each when it comes up.
    """

    __slots__ = ("_armed", "_descriptor", "_heap", "_is_live", "_size_checked")

    def __init__(self, is_live: Callable[[int, float], bool]) -> None:
        self._descriptor: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")
        self._heap: list[tuple[float, int]] = []
        self._is_live = is_live
        self._armed = _NEVER
        self._size_checked = 1024

    def fileno(self) -> int:
        """Return the timer descriptor, readable from the earliest armed deadline on."""
        return self._descriptor

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
            self._set(_NEVER)
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
        os.close(self._descriptor)
        self._heap.clear()
        self._is_live = _is_nothing_live

    def _set(self, moment: float) -> None:
        self._armed = moment
        spec = _TimerSpec()
        if moment != _NEVER:
            # A zero value would disarm the timer; one nanosecond after boot is always past.
            nanoseconds = max(1, int(moment * 1e9) + 1)
            spec.value.seconds, spec.value.nanoseconds = divmod(nanoseconds, 10**9)
        absolute = 1
        if _libc.timerfd_settime(self._descriptor, absolute, ctypes.byref(spec), None):
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_settime: {os.strerror(number)}")
