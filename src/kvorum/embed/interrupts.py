"""Run code that no signal handler interrupts.

Python runs signal handlers in the main thread, between any two of its steps, and an exception that
a handler raises, such as KeyboardInterrupt, appears there. `run_uninterrupted` delays the handlers
until its function has returned, as if the signals had come then. Other threads never run handlers.
"""

# The functions of `signal` turn numbers into names and back, which costs more than the rest here.
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
"""Real-time signals are left out, because programs do not give them handlers that raise."""
_MAIN: Final = threading.main_thread()


def run_uninterrupted(moment: Callable[[], T]) -> T:
    """Run a function, and after it the handlers of signals that arrived meanwhile."""
    if threading.get_ident() != _MAIN.ident:
        return moment()
    held = _handlers()
    came: list[int] = []
    try:
        for number in held:
            _signal.signal(number, lambda number, _: came.append(number))
        return moment()
    finally:
        _restore_handlers(held)
        # Call handlers instead of raising signals again, which the wakeup descriptor has reported.
        for number in came:
            held[number](number, sys._getframe())


_seen: tuple[list[object], dict[int, Handler]] = ([], {})
"""The dispositions of all signals at the last call, and the callable handlers among them."""


def _handlers() -> dict[int, Handler]:
    """Return the current handlers; the dictionary is rebuilt only after a change."""
    global _seen
    found = list(map(_signal.getsignal, _NUMBERS))
    seen, handlers = _seen
    if found != seen:
        pairs = zip(_NUMBERS, found, strict=True)
        handlers = {number: handler for number, handler in pairs if callable(handler)}
        _seen = found, handlers
    return handlers


def _restore_handlers(held: dict[int, Handler]) -> None:
    raised: BaseException | None = None
    for number, handler in held.items():
        try:
            _signal.signal(number, handler)
        except BaseException as error:
            # The exception is of an already restored handler, whose signal came before this call.
            raised = error
            _signal.signal(number, handler)
    if raised is not None:
        raise raised
