"""A small executor for proxies: threads run blocking work, the loop takes results between turns.

The threads are daemons, so that they never delay the end of the process.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

THREADS_MAX = 4

Result = TypeVar("Result")


class ThreadExecutor:
    """Runs work in up to `THREADS_MAX` threads.

    After each result, a thread calls `wake`; the loop then calls `settle` in its own thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._begun: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._threads = 0

    def run(self, work: Callable[[], Result], told: Callable[[Result], None]) -> None:
        """Run work that must not raise, in a thread; `settle` calls `told` with its result."""

        def errand() -> None:
            result = work()
            self._done.append(lambda: told(result))
            self._wake()

        if self._threads < THREADS_MAX:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        self._begun.put(errand)

    def settle(self) -> None:
        """Call the callbacks of the work that has ended."""
        while self._done:
            self._done.popleft()()

    def _work(self) -> None:
        while True:
            self._begun.get()()
