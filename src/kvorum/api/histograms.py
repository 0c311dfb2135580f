"""Histograms as plain numbers, for any code that times something; telemetry shows them.

Any package may have one. An observation costs next to nothing if the value is below the first
bound, as most are, and many equal observations cost as much as one.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts observations by upper bound."""

    __slots__ = ("_first", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Counts by bound, without those of lower bounds; the last one is for values above all
        bounds."""
        self.total = 0.0
        self._first: float = bounds[0]

    def observe(self, value: float, count: int = 1) -> None:
        """Record this many observations of a value."""
        if value <= self._first:
            self.counts[0] += count
        else:
            self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


def exponential(start: float, count: int) -> tuple[float, ...]:
    """Return this many bounds, starting with `start`, each twice the previous one."""
    return tuple(start * 2**power for power in range(count))
