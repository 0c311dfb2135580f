"""When to retry after failures: with a delay that grows up to a limit."""

from typing import Final

_FAILURES_MAX: Final = 20


class BackOff:
    """The delay before the next attempt."""

    __slots__ = ("_failures", "_seconds", "_seconds_max", "until")

    def __init__(self, seconds: float, seconds_max: float) -> None:
        """Start with a delay of `seconds`, which grows by half with each failure in a row."""
        self._seconds = seconds
        self._seconds_max = seconds_max
        self._failures = 0
        self.until: float = 0.0
        """No attempt may start before this moment."""

    def note_failure(self, now: float) -> None:
        """Record that an attempt failed."""
        self.until = now + min(self._seconds * 1.5**self._failures, self._seconds_max)
        self._failures = min(self._failures + 1, _FAILURES_MAX)

    def note_success(self) -> None:
        """Record that an attempt succeeded."""
        self._failures = 0
