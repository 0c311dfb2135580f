"""Coroutines of users on virtual time: asyncio's tasks and waiters without asyncio's loop."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from kvorum.sim.library.process import RUNNING, Process
from kvorum.sim.world import World


class Waiter:
    """One wait of a coroutine, as `Waiter` in production's shells."""

    __slots__ = ("is_woken", "resume")

    def __init__(self) -> None:
        self.is_woken = False
        self.resume: Callable[[], None] | None = None

    def wake(self) -> None:
        """End the wait."""
        if not self.is_woken:
            self.is_woken = True
            if self.resume is not None:
                self.resume()

    def __await__(self) -> Generator["Waiter", None, None]:
        if not self.is_woken:
            yield self


class Cancelled(BaseException):
    """Raised in a coroutine that its user cancels."""


class Task:
    """A coroutine that continues after each wait, as soon as its process runs."""

    __slots__ = ("_coroutine", "_process", "_waiter", "_world", "is_done")

    def __init__(
        self,
        world: World,
        process: Process,
        coroutine: Coroutine[Any, None, None],
        *,
        at_once: bool = False,
    ) -> None:
        """Start the coroutine now with `at_once`, else after all other events of this moment."""
        self._world = world
        self._process = process
        self._coroutine = coroutine
        # The coroutine's current wait; None before it starts.
        self._waiter: Waiter | None = None
        self.is_done = False
        if at_once:
            self._run(None)
        else:
            world.after(0.0, self._go_on, None)

    def cancel(self) -> None:
        """Raise `Cancelled` where the coroutine waits, unless it is done."""
        if not self.is_done and not self._process.later(self._process.user_runs_at, self.cancel):
            self._run(Cancelled())

    def end(self) -> None:
        """Cancel the coroutine until it is done, because its process has ended."""
        while not self.is_done:
            self._run(Cancelled())

    def _go_on(self, waiter: Waiter | None) -> None:
        if self.is_done or waiter is not self._waiter:
            return
        if not self._process.later(self._process.user_runs_at, self._go_on, waiter):
            self._run(None)

    def _run(self, cancelled: Cancelled | None) -> None:
        """Run the coroutine until it waits again or is done."""
        before = RUNNING.set(self._process)
        try:
            if cancelled is not None:
                waiter: Waiter = self._coroutine.throw(cancelled)
            else:
                waiter = self._coroutine.send(None)
        except (StopIteration, Cancelled):
            self.is_done = True
        except BaseException:
            self.is_done = True
            raise
        else:
            self._waiter = waiter
            waiter.resume = lambda: self._world.after(0.0, self._go_on, waiter)
        finally:
            RUNNING.reset(before)
