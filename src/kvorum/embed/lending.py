"""A loop that lends itself: while its thread sleeps, another one takes a turn in its place.

One rule: who holds the baton is the loop. The loop's own thread holds it always, except while it
sleeps, and takes it back before it looks at what has woken it. So for the loop, and for everything
that runs on it, a turn of another thread is a part of its sleep: at any time one thread touches
them. What such a turn asks the loop for, by `call_soon` or a timer, wakes the loop's own thread.

Nobody waits for the baton but the loop's own thread, and while that waits, nobody else gets it. A
turn that is lent to the main thread is not broken off by signals (`kvorum.embed.interrupts`).
"""

import asyncio
import math
import select
import selectors
import threading
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

from kvorum.embed.interrupts import uninterrupted

Ts = TypeVarTuple("Ts")


class _Baton(selectors.EpollSelector):
    """What the loop sleeps in; its sleep is when the baton is free."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Lock()
        self.held.acquire()
        self.is_awaited = False
        """Whether the loop's own thread waits to get it back."""
        self._sleep = select.poll()
        self._sleep.register(self.fileno(), select.POLLIN)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Sleep until something happens; what that was is looked at with the baton in hand."""
        if timeout is None or timeout > 0:
            self.held.release()
            try:
                self._sleep.poll(None if timeout is None else math.ceil(timeout * 1000))
            finally:
                self.is_awaited = True
                self.held.acquire()
                self.is_awaited = False
        return super().select(0)


class LentLoop(asyncio.SelectorEventLoop):
    """The loop of a member; its thread makes it, runs it and closes it."""

    def __init__(self) -> None:
        self._baton = _Baton()
        self._is_lent = False
        super().__init__(self._baton)
        # Its threads are checked by the baton; asyncio would take each turn that is lent amiss.
        self.set_debug(False)

    def lend(self, turn: Callable[[], None]) -> bool:
        """Run a turn in this thread, if the loop sleeps; return whether it did.

        A turn handles its errors. What ends it all the same, as an exception does that somebody
        sets for this thread, goes to the loop's handler of exceptions, and on to the caller.
        """
        if self._baton.is_awaited or self._baton.held.locked():
            return False
        return uninterrupted(lambda: self._lend(turn))

    def _lend(self, turn: Callable[[], None]) -> bool:
        held = self._baton.held
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
        """Call something soon, in the loop's own thread."""
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
        """Call something at a moment, in the loop's own thread."""
        timer = super().call_at(when, callback, *args, context=context)
        if self._is_lent:
            # It sleeps until what was its first timer before.
            super().call_soon_threadsafe(_nothing)
        return timer


def _nothing() -> None:
    """Let the loop look at its timers."""
