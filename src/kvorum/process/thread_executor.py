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

    After each result, a thread calls `wake`; the loop then calls `take_results` in its own thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._threads = 0

    def run(self, work: Callable[[], Result], take_result: Callable[[Result], None]) -> None:
        """Run work that must not raise, in a thread; `take_results` passes its result on."""

        def job() -> None:
            result = work()
            self._done.append(lambda: take_result(result))
            self._wake()

        if self._threads < THREADS_MAX:
            self._threads += 1
            threading.Thread(target=self._run_jobs, daemon=True).start()
        self._jobs.put(job)

    def take_results(self) -> None:
        """Call the callbacks of the work that has ended."""
        while self._done:
            self._done.popleft()()

    def _run_jobs(self) -> None:
        while True:
            self._jobs.get()()
