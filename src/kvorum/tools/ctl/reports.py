"""Report on the latency of many calls: rates, percentiles, and a histogram in text."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
ROWS = 12
BAR_CHARACTERS = 40


class Timings:
    """The durations and failures of calls so far."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.failures: dict[str, int] = {}

    def fail(self, reason: str) -> None:
        """Count a failure."""
        self.failures[reason] = self.failures.get(reason, 0) + 1


class LoadReport(NamedTuple):
    """The result of a run of calls."""

    name: str
    took_seconds: float
    """The duration of the whole run."""
    seconds: Sequence[float]
    """The duration of each successful call, sorted."""
    failures: dict[str, int]

    @property
    def rate(self) -> float:
        """The number of successful calls per second."""
        return len(self.seconds) / self.took_seconds if self.took_seconds else 0.0

    def percentile(self, percent: float) -> float:
        """Return the duration that `percent` of the calls do not exceed."""
        at = -(-len(self.seconds) * percent // 100)
        return self.seconds[max(0, int(at) - 1)]


def report(name: str, took_seconds: float, timings: Timings) -> LoadReport:
    """Return the report of timings."""
    return LoadReport(name, took_seconds, sorted(timings.seconds), timings.failures)


def as_json(made: LoadReport) -> dict[str, object]:
    """Return a report for programs."""
    shown: dict[str, object] = {
        "count": len(made.seconds),
        "failed": sum(made.failures.values()),
        "took_seconds": made.took_seconds,
        "per_second": made.rate,
    }
    if made.seconds:
        average, deviation = _average(made.seconds)
        shown |= {
            "fastest_seconds": made.seconds[0],
            "average_seconds": average,
            "deviation_seconds": deviation,
            "slowest_seconds": made.seconds[-1],
            **{f"p{percent:g}_seconds": made.percentile(percent) for percent in PERCENTILES},
        }
    if made.failures:
        shown["failures"] = made.failures
    return shown


def as_lines(made: LoadReport) -> list[str]:
    """Return a report for people."""
    count, failed = len(made.seconds), sum(made.failures.values())
    lines = [
        f"{made.name}: {count:,} in {made.took_seconds:.3f} s, {made.rate:,.0f} per second, "
        f"{failed:,} failed"
    ]
    if made.seconds:
        average, deviation = _average(made.seconds)
        rows = [
            ("fastest", made.seconds[0]),
            ("average", average),
            ("deviation", deviation),
            *((f"p{percent:g}", made.percentile(percent)) for percent in PERCENTILES),
            ("slowest", made.seconds[-1]),
        ]
        lines += ["", *(f"  {name:<10} {_milliseconds(value)}" for name, value in rows)]
        lines += ["", *histogram(made.seconds)]
    if made.failures:
        reasons = sorted(made.failures.items(), key=lambda each: -each[1])
        lines += ["", *(f"  {number:,} times: {reason}" for reason, number in reasons)]
    return lines


def histogram(seconds: Sequence[float]) -> list[str]:
    """Draw a histogram; rows grow by a factor, because durations span powers of ten."""
    low, high = max(1e-6, seconds[0]), max(1e-6, seconds[-1])
    factor = (high / low) ** (1 / ROWS)
    bounds = [low * factor**row for row in range(1, ROWS)] + [float("inf")]
    counts = [0] * ROWS
    row = 0
    for value in seconds:
        while value > bounds[row]:
            row += 1
        counts[row] += 1
    bounds[-1] = high
    most = max(counts)
    width = len(f"{most:,}")
    return [
        f"  {_milliseconds(bound)}  {count:>{width},}  "
        f"{'█' * round(count * BAR_CHARACTERS / most)}".rstrip()
        for bound, count in zip(bounds, counts, strict=True)
    ]


def _average(seconds: Sequence[float]) -> tuple[float, float]:
    average = sum(seconds) / len(seconds)
    return average, sqrt(sum((each - average) ** 2 for each in seconds) / len(seconds))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:>10.3f} ms"
