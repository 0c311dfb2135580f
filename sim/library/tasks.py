"""Coroutines of users on virtual time: what asyncio is for programs, without a loop of its own."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from sim.library.process import Process
from sim.world import World


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

    __slots__ = ("_coroutine", "_is_cancelled", "_process", "_world", "is_done")

    def __init__(
        self, world: World, process: Process, coroutine: Coroutine[Any, None, None]
    ) -> None:
        self._world = world
        self._process = process
        self._coroutine = coroutine
        self._is_cancelled = False
        self.is_done = False
        self._soon()

    def cancel(self) -> None:
        """Let it get `Cancelled` where it waits, unless it is done."""
        self._is_cancelled = True
        self._soon()

    def _soon(self) -> None:
        self._world.after(0.0, self._go_on)

    def _go_on(self) -> None:
        if self.is_done or self._process.later(self._process.user_runs_at, self._go_on):
            return
        try:
            if self._is_cancelled:
                self._is_cancelled = False
                waiter: Waiter = self._coroutine.throw(Cancelled())
            else:
                waiter = self._coroutine.send(None)
        except (StopIteration, Cancelled):
            self.is_done = True
        else:
            # A waiter that is no longer waited for, because of a cancellation, wakes nobody.
            waiter.resume = lambda: self._resume(waiter)

    def _resume(self, waiter: Waiter) -> None:
        waiter.resume = None
        self._soon()
