"""Run long reads in slices: a few at a time, each started only when its answer has room.

The member builds few answers at once, as clients receive them: many started together would all be
in memory at the same time. The code has to close a dropped read: garbage collection of a compiled
generator does not close the generators it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvorum.api.coverage import reach
from kvorum.api.errors import StatusError
from kvorum.member.procedures import Procedure

if TYPE_CHECKING:
    from kvorum.member.reads import Read
    from kvorum.member.replica import Replica
    from kvorum.state.apply.results import Slices
    from kvorum.state.mvcc.ranges import RangeResult
    from kvorum.state.mvcc.slices import Slices as StoreSlices

    Work = Slices | StoreSlices[RangeResult]
    LongRead = tuple[Read, Work, float]


class LongReads:
    """The waiting and running long reads, each with the rest of its work."""

    __slots__ = ("_is_blocked", "_running", "_running_max", "_waiting", "has_room")

    def __init__(self, running_max: int) -> None:
        """Let at most `running_max` long reads share the turns."""
        self._running_max = running_max
        self._waiting: deque[LongRead] = deque()
        self._running: deque[LongRead] = deque()
        self._is_blocked = False
        # Returns whether a call has room for a long answer (`Edge.has_room`); None: always. The
        # owner of the function gives the member a turn when there is more room.
        self.has_room: Callable[[int, bool], bool] | None = None

    def add(self, read: Read, work: Work) -> None:
        """Queue a long read, which runs after those before it."""
        self._waiting.append((read, work, 0.0))
        self._is_blocked = False

    @property
    def is_busy(self) -> bool:
        """Whether a read can continue; reads without room for their answers do not count."""
        return bool(self._running or (self._waiting and not self._is_blocked))

    def run(self, replica: Replica, deadline: float) -> None:
        """Continue the running reads in rotation, until about the deadline."""
        running, clock, counters = self._running, replica.clock, replica.counters
        stopwatch = counters.stopwatch
        while True:
            if self._waiting and len(running) < self._running_max:
                self._begin()
            if not running:
                return
            read, work, seconds = running.popleft()
            waiter = read[0]
            if isinstance(waiter, Procedure) and waiter.steps is None:
                work.close()  # its client is gone
                continue
            began = stopwatch()
            try:
                next(work)
            except StopIteration as end:
                counters.count_read(read, end.value, seconds + stopwatch() - began)
                replica.answer(waiter, end.value)
            except StatusError as error:
                counters.count_read(read, error.status, seconds + stopwatch() - began)
                replica.answer(waiter, error.status)
            else:
                running.append((read, work, seconds + stopwatch() - began))
            if clock() >= deadline:
                if running:
                    reach("read served over several turns")
                return

    def _begin(self) -> None:
        """Start waiting reads in order, skipping those without room for their answers."""
        waiting, running, has_room = self._waiting, self._running, self.has_room
        kept: deque[LongRead] = deque()
        while waiting and len(running) < self._running_max:
            one = waiting.popleft()
            waiter = one[0][0]
            call = waiter.call if isinstance(waiter, Procedure) else waiter
            if has_room is None or call is None or has_room(call, True):
                running.append(one)
            else:
                kept.append(one)
        kept.extend(waiting)
        self._waiting = kept
        self._is_blocked = not running

    def in_flight(self) -> list[Read]:
        """Return the waiting and running long reads."""
        return [read for reads in (self._running, self._waiting) for read, _, _ in reads]

    def stop(self) -> list[Read]:
        """Stop all long reads; return them so that they can restart."""
        stopped = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        for _, work, _ in stopped:
            work.close()
        return [read for read, _, _ in stopped]
