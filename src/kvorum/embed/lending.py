"""An event loop that other threads may run for one turn while its own thread sleeps.

One rule: only the holder of the loop lock may touch the loop. The loop's own thread always
holds it, except while it sleeps, and takes it back before it reads the events that woke it. For
the loop, and for everything that runs on it, another thread's turn is a part of its sleep, and one
thread at a time touches them. Callbacks and timers that such a turn adds to the loop wake the
loop's own thread.

Only the loop's own thread waits for the loop lock, and while it waits, no other thread gets it.
Signals do not interrupt a turn in the main thread (`kvorum.embed.interrupts`).
"""

import asyncio
import math
import select
import selectors
import threading
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

from kvorum.embed.interrupts import run_uninterrupted

Ts = TypeVarTuple("Ts")


class _LoopLock(selectors.DefaultSelector):
    """The selector in which the loop sleeps; it releases the loop lock during the sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Lock()
        self.held.acquire()
        self.is_awaited = False
        """Whether the loop's own thread waits for the loop lock."""
        self._sleep = select.poll()
        self._sleep.register(self.fileno(), select.POLLIN)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Sleep until an event arrives; take the loop lock back before reading the events."""
        if timeout is None or timeout > 0:
            self.held.release()
            try:
                self._sleep.poll(None if timeout is None else math.ceil(timeout * 1000))
            finally:
                self.is_awaited = True
                self.held.acquire()
                self.is_awaited = False
        return super().select(0)


class SharedLoop(asyncio.SelectorEventLoop):
    """The loop of a member; its own thread creates it, runs it and closes it."""

    def __init__(self) -> None:
        self._loop_lock = _LoopLock()
        self._is_lent = False
        super().__init__(self._loop_lock)
        # The loop lock checks the threads; asyncio's debug mode would reject each lent turn.
        self.set_debug(False)

    def lend(self, turn: Callable[[], None]) -> bool:
        """Run a turn in this thread, if the loop sleeps; return whether it ran.

        A turn handles its errors. An exception that still ends a turn, such as one that another
        thread sets for this thread, goes to the loop's exception handler, and on to the caller.
        """
        if self._loop_lock.is_awaited or self._loop_lock.held.locked():
            return False
        return run_uninterrupted(lambda: self._lend(turn))

    def _lend(self, turn: Callable[[], None]) -> bool:
        held = self._loop_lock.held
        if not held.acquire(blocking=False):
            return False
        self._is_lent = True
        try:
            turn()
            return True
        except BaseException as error:
            message = f"a turn was broken off in a thread of the program: {error!r}"
            self.call_exception_handler({"message": message, "exception": error})
            raise
        finally:
            self._is_lent = False
            held.release()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback in the loop's own thread."""
        if self._is_lent:
            return super().call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback in the loop's own thread at a time."""
        timer = super().call_at(when, callback, *args, context=context)
        if self._is_lent:
            # Wake the loop, which sleeps until its earlier first timer.
            super().call_soon_threadsafe(_nothing)
        return timer


def _nothing() -> None:
    """Do nothing; the call makes the loop check its timers."""
