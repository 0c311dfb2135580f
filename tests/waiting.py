"""Waiting for what other threads and processes do: the one helper for it, with one limit.

Prefer an event that can be awaited (a line of a log, a condition variable, a readable descriptor).
`until` is for what no event announces, such as the state of another process.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
WAIT_SECONDS_MAX = 120.0
"""How long a test waits before it fails: far above what a starved machine needs, and below the
time after which pytest ends the test."""
_PAUSE_SECONDS = 0.005


def until(what: str, condition: Callable[[], T | None], seconds: float = WAIT_SECONDS_MAX) -> T:
    """Wait until a condition holds, and return what it returned."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} seconds: {what}"
        time.sleep(_PAUSE_SECONDS)
    return found
