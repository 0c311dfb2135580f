"""When to try again what has failed: later each time, up to a limit."""

from typing import Final

_FAILURES_MAX: Final = 20


class BackOff:
    """The time before another attempt."""

    __slots__ = ("_failures", "_seconds", "_seconds_max", "until")

    def __init__(self, seconds: float, seconds_max: float) -> None:
        """Wait so long after the first failure, and half as long again after each more in a row."""
        self._seconds = seconds
        self._seconds_max = seconds_max
        self._failures = 0
        self.until: float = 0.0
        """Nothing is to be tried before this moment."""

    def failed(self, now: float) -> None:
        """Note that an attempt failed."""
        self.until = now + min(self._seconds * 1.5**self._failures, self._seconds_max)
        self._failures = min(self._failures + 1, _FAILURES_MAX)

    def worked(self) -> None:
        """Note that an attempt did not fail."""
        self._failures = 0
