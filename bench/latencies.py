"""Calculate due times of calls at a fixed rate, percentiles, pauses, and activities during them.

Latency counts from a call's due time, not from its sending, so a pause counts for every call due in
it. Times are seconds from the start of the run, in the order of due times; a call without an answer
has infinite latency.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NANOS = 1_000_000_000
MEDIAN, P99, P999 = 5_000, 9_900, 9_990
"""Percentiles in parts of ten thousand, so that ranks are whole numbers."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Calls at a fixed rate: the first is due at once."""

    per_second: int

    def due_nanos(self, call: int) -> int:
        """Return when a call is due, in nanoseconds."""
        return call * NANOS // self.per_second

    def due_count(self, nanos: int) -> int:
        """Return how many calls are due at a time in nanoseconds."""
        return -(-(nanos + 1) * self.per_second // NANOS)


def percentile(ordered: Sequence[float], part: int) -> float:
    """Return the least value that `part` of ten thousand values do not exceed; 0 for no values."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-len(ordered) * part // 10_000) - 1)]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Summary of many latencies, in seconds."""

    count: int
    median: float
    p99: float
    p999: float
    longest: float


def percentiles(latencies: Sequence[float]) -> Percentiles:
    """Summarize latencies."""
    ordered = sorted(latencies)
    found = (percentile(ordered, part) for part in (MEDIAN, P99, P999, 10_000))
    return Percentiles(len(ordered), *found)


@dataclass(frozen=True, slots=True)
class Activity:
    """An activity that ran beside the calls for a time."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Slow calls whose times overlap without a gap, each longer than a limit."""

    begin: float
    """When the first slow call was due."""
    end: float
    """When the last slow call was answered."""
    longest: float
    calls: int
    meanwhile: tuple[str, ...]
    """Names of the activities that ran at some time during the pause."""


def running(activities: Sequence[Activity], begin: float, end: float) -> tuple[str, ...]:
    """Return the names of the activities that ran at some time within an interval."""
    return tuple(sorted({each.name for each in activities if each.begin < end > begin < each.end}))


def pauses(
    dues: Sequence[float], latencies: Sequence[float], limit: float, activities: Sequence[Activity]
) -> list[Pause]:
    """Return the pauses, the longest first; `dues` must ascend."""
    found: list[Pause] = []
    begin = end = longest = -math.inf
    calls = 0

    def note() -> None:
        if calls:
            found.append(Pause(begin, end, longest, calls, running(activities, begin, end)))

    for due, latency in zip(dues, latencies, strict=True):
        if latency > limit:
            if due > end:
                note()
                begin, end, longest, calls = due, due, latency, 0
            end, longest, calls = max(end, due + latency), max(longest, latency), calls + 1
    note()
    return sorted(found, key=lambda each: -each.longest)


def by_activity(
    dues: Sequence[float], latencies: Sequence[float], activities: Sequence[Activity]
) -> dict[str, list[float]]:
    """Return the latencies of calls by the name of an activity during them; "" means none.

    A call during two activities is listed with both.
    """
    found: dict[str, list[float]] = {"": []}
    for due, latency in zip(dues, latencies, strict=True):
        for name in running(activities, due, due + latency) or ("",):
            found.setdefault(name, []).append(latency)
    return found


def by_second(dues: Sequence[float], latencies: Sequence[float], seconds: int) -> list[Percentiles]:
    """Summarize the calls due in each second of a run."""
    parts: list[list[float]] = [[] for _ in range(seconds)]
    for due, latency in zip(dues, latencies, strict=True):
        parts[min(math.floor(due), seconds - 1)].append(latency)
    return [percentiles(part) for part in parts]
