"""Work that blocks, done by threads for a loop that must not: its results come between two turns.

The threads end with the process, whatever they wait for.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

THREADS_MAX = 4

Result = TypeVar("Result")


class Errands:
    """`wake` is called in other threads; the loop then calls `settle` in its own."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._begun: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._threads = 0

    def run(self, work: Callable[[], Result], told: Callable[[Result], None]) -> None:
        """Have something done that raises nothing, and tell its result."""

        def errand() -> None:
            result = work()
            self._done.append(lambda: told(result))
            self._wake()

        if self._threads < THREADS_MAX:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        self._begun.put(errand)

    def settle(self) -> None:
        """Tell the results that are there."""
        while self._done:
            self._done.popleft()()

    def _work(self) -> None:
        while True:
            self._begun.get()()
