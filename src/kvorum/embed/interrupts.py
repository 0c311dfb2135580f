"""Moments that no signal breaks off.

Python runs handlers of signals in the main thread, between any two of its steps, and what they
raise, such as KeyboardInterrupt, comes out there. A moment that must be whole holds them back: they
are called when it is over, as if the signals had come then. Other threads never run handlers.
"""

# Those of `signal` turn numbers into names and back, which takes longer than all else here.
import _signal  # type: ignore[import-not-found]
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]

_NUMBERS: Final = sorted(
    set(range(1, _signal.SIGRTMIN)) & _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}
)
"""Real-time signals are left out: nobody gives them handlers that raise."""
_MAIN: Final = threading.main_thread()


def uninterrupted(moment: Callable[[], T]) -> T:
    """Run something, and after it the handlers of signals that came meanwhile."""
    if threading.get_ident() != _MAIN.ident:
        return moment()
    held = _handlers()
    came: list[int] = []
    try:
        for number in held:
            _signal.signal(number, lambda number, _: came.append(number))
        return moment()
    finally:
        _give_back(held)
        # Not raised again: whoever is woken by signals has heard of these.
        for number in came:
            held[number](number, sys._getframe())


_seen: tuple[list[object], dict[int, Handler]] = ([], {})
"""What all signals lead to, and of that the handlers, as they were the last time."""


def _handlers() -> dict[int, Handler]:
    """Return the handlers that are called now; looked at each time, thought about when changed."""
    global _seen
    found = list(map(_signal.getsignal, _NUMBERS))
    seen, handlers = _seen
    if found != seen:
        pairs = zip(_NUMBERS, found, strict=True)
        handlers = {number: handler for number, handler in pairs if callable(handler)}
        _seen = found, handlers
    return handlers


def _give_back(held: dict[int, Handler]) -> None:
    raised: BaseException | None = None
    for number, handler in held.items():
        try:
            _signal.signal(number, handler)
        except BaseException as error:
            # One that has its handler back already has come before this call.
            raised = error
            _signal.signal(number, handler)
    if raised is not None:
        raise raised
