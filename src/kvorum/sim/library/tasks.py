"""Coroutines of users on virtual time: what asyncio is for programs, without a loop of its own."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from kvorum.sim.library.process import RUNNING, Process
from kvorum.sim.world import World


class Waiter:
    """Something to wait for; as those of production's shells."""

    __slots__ = ("is_woken", "resume")

    def __init__(self) -> None:
        self.is_woken = False
        self.resume: Callable[[], None] | None = None

    def wake(self) -> None:
        """Wait no longer."""
        if not self.is_woken:
            self.is_woken = True
            if self.resume is not None:
                self.resume()

    def __await__(self) -> Generator["Waiter", None, None]:
        if not self.is_woken:
            yield self


class Cancelled(BaseException):
    """What a coroutine gets that its user cancels."""


class Task:
    """A coroutine that goes on whenever what it waits for has happened, and its process runs."""

    __slots__ = ("_coroutine", "_process", "_waiter", "_world", "is_done")

    def __init__(
        self,
        world: World,
        process: Process,
        coroutine: Coroutine[Any, None, None],
        *,
        at_once: bool = False,
    ) -> None:
        """Begin it once everything of this moment is done, or at once."""
        self._world = world
        self._process = process
        self._coroutine = coroutine
        # What it waits for; None before it begins.
        self._waiter: Waiter | None = None
        self.is_done = False
        if at_once:
            self._run(None)
        else:
            world.after(0.0, self._go_on, None)

    def cancel(self) -> None:
        """Let it get `Cancelled` where it waits, unless it is done."""
        if not self.is_done and not self._process.later(self._process.user_runs_at, self.cancel):
            self._run(Cancelled())

    def end(self) -> None:
        """Cancel it wherever it waits, until it is done: its process has ended."""
        while not self.is_done:
            self._run(Cancelled())

    def _go_on(self, waiter: Waiter | None) -> None:
        if self.is_done or waiter is not self._waiter:
            return
        if not self._process.later(self._process.user_runs_at, self._go_on, waiter):
            self._run(None)

    def _run(self, cancelled: Cancelled | None) -> None:
        """Let it go on until it waits again, or is done."""
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
