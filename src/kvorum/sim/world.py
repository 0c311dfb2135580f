"""Virtual time and the queue of events.

Nothing in the simulator waits: time jumps to the next event. Events of the same moment happen
in the order in which they were scheduled. All randomness comes from one seed, through streams that
are named for their purpose, so that a new use of one leaves the others as they were.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from kvorum.sim.trace import Trace

_Event = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class World:
    """The clock, the event queue, the random streams and the trace of one run."""

    __slots__ = ("_count", "_queue", "now", "seed", "trace")

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.now = 0.0
        # None if no trace is wanted: formatting its lines is half of a run's work.
        self.trace = trace
        self._queue: list[_Event] = []
        self._count = 0

    def stream(self, name: str) -> random.Random:
        """Return the random stream for one purpose."""
        return random.Random(f"{self.seed}/{name}")

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call after `seconds`."""
        assert seconds >= 0.0, f"{seconds} seconds have passed"
        self._count = count = self._count + 1
        heapq.heappush(self._queue, (self.now + seconds, count, call, arguments))

    def at(self, moment: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call at a moment, after those already scheduled for it."""
        assert moment >= self.now, f"{moment} has passed"
        self._count = count = self._count + 1
        heapq.heappush(self._queue, (moment, count, call, arguments))

    def run_until(self, moment: float) -> None:
        """Run all events up to a moment; `now` is that moment afterwards."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= moment:
            self.now, _, call, arguments = pop(queue)
            call(*arguments)
        self.now = moment

    def run_while(self, condition: Callable[[], bool], moment: float) -> bool:
        """Run events while a condition holds, at most up to a moment.

        Return whether the condition ended; it is checked between events.
        """
        queue = self._queue
        while condition():
            if not queue or queue[0][0] > moment:
                self.now = moment
                return False
            self.now, _, call, arguments = heapq.heappop(queue)
            call(*arguments)
        return True

    def run_while_polling(
        self, condition: Callable[[], bool], moment: float, seconds: float
    ) -> bool:
        """Run events like `run_while`, but check the condition only every `seconds`."""
        while condition():
            if self.now >= moment:
                return False
            self.run_until(min(self.now + seconds, moment))
        return True

    @property
    def events(self) -> int:
        """How many events were scheduled so far."""
        return self._count
