"""The arithmetic of calls at a fixed rate: when each is due, percentiles, pauses and what ran then.

Latency is counted from the time at which a call was due, not from the time at which it was sent: a
pause counts for every call that should have been sent in it. Times are seconds from the begin of
the run, in the order in which calls are due; a call without an answer took infinitely long.
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
        """Return how many calls are due by then."""
        return -(-(nanos + 1) * self.per_second // NANOS)


def percentile(ordered: Sequence[float], part: int) -> float:
    """Return the least value that so many of ten thousand do not exceed; 0 where there is none."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-len(ordered) * part // 10_000) - 1)]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """What is told of many latencies, in seconds."""

    count: int
    median: float
    p99: float
    p999: float
    longest: float


def percentiles(latencies: Sequence[float]) -> Percentiles:
    """Return what is told of these."""
    ordered = sorted(latencies)
    found = (percentile(ordered, part) for part in (MEDIAN, P99, P999, 10_000))
    return Percentiles(len(ordered), *found)


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that ran beside the calls for a time."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Calls that took longer than a limit, each of which was under way together with another."""

    begin: float
    """When the first of them was due."""
    end: float
    """When the last of them was answered."""
    longest: float
    calls: int
    meanwhile: tuple[str, ...]
    """What ran at some time of it, by name."""


def running(activities: Sequence[Activity], begin: float, end: float) -> tuple[str, ...]:
    """Return the names of what ran at some time between these."""
    return tuple(sorted({each.name for each in activities if each.begin < end > begin < each.end}))


def pauses(
    dues: Sequence[float], latencies: Sequence[float], limit: float, activities: Sequence[Activity]
) -> list[Pause]:
    """Return the pauses, the longest first; `dues` ascend."""
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
    """Return the latencies of calls during which something ran, by its name; "" if nothing did.

    A call during which two things ran is listed with both.
    """
    found: dict[str, list[float]] = {"": []}
    for due, latency in zip(dues, latencies, strict=True):
        for name in running(activities, due, due + latency) or ("",):
            found.setdefault(name, []).append(latency)
    return found


def by_second(dues: Sequence[float], latencies: Sequence[float], seconds: int) -> list[Percentiles]:
    """Return what is told of the calls due in each second of a run."""
    parts: list[list[float]] = [[] for _ in range(seconds)]
    for due, latency in zip(dues, latencies, strict=True):
        parts[min(math.floor(due), seconds - 1)].append(latency)
    return [percentiles(part) for part in parts]
