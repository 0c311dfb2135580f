"""Histograms as plain numbers, kept wherever something is timed; telemetry shows them.

Any room may have one. Observing costs next to nothing where the value is below the first bound,
which most are, and many equal observations cost as much as one.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts observations by upper bounds."""

    __slots__ = ("_first", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By bound, each without those below; the last count is of what exceeds every bound."""
        self.total = 0.0
        self._first: float = bounds[0]

    def observe(self, value: float, count: int = 1) -> None:
        """Count that many observations of a value."""
        if value <= self._first:
            self.counts[0] += count
        else:
            self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


def exponential(start: float, count: int) -> tuple[float, ...]:
    """Return bounds that double, beginning with `start`."""
    return tuple(start * 2**power for power in range(count))
