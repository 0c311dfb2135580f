"""Counters of RPCs by method and outcome.

`kvorum.server.inflight` reports the calls; totals are computed only when metrics are scraped.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

from kvorum.api.errors import (
    CONTEXT_DEADLINE_EXCEEDED,
    PROPOSAL_DROPPED,
    REQUEST_TOO_MANY_REQUESTS,
    TIMEOUT,
    TIMEOUT_DUE_TO_CONNECTION_LOST,
    TIMEOUT_DUE_TO_LEADER_FAIL,
    Code,
    Status,
)
from kvorum.api.histograms import Histogram
from kvorum.network.edge.interface import Metadata
from kvorum.server.http.calls import Gateway

PROPOSAL_FAILURES = frozenset(
    {
        CONTEXT_DEADLINE_EXCEEDED,
        PROPOSAL_DROPPED,
        REQUEST_TOO_MANY_REQUESTS,
        TIMEOUT,
        TIMEOUT_DUE_TO_CONNECTION_LOST,
        TIMEOUT_DUE_TO_LEADER_FAIL,
    }
)
UNKNOWN_VERSION = "unknown"
HANDLING_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OTHER_VERSION = "other"
VERSIONS_MAX = 100
VERSION_CHARACTERS_MAX = 32
"""Number and length of the client versions that are counted separately, because clients could
invent any number of any length. All other versions count as `OTHER_VERSION`."""


class CallCounts:
    """Counts calls by method and outcome, and the messages of streams."""

    __slots__ = (
        "failed",
        "messages_received",
        "messages_sent",
        "ok",
        "proposals_failed",
        "seconds",
        "versions",
    )

    def __init__(self, methods: int) -> None:
        self.ok = [0] * methods
        """Calls that succeeded, by method; the hot path adds to it directly."""
        self.failed: Counter[tuple[int, Code]] = Counter()
        self.messages_received = [0] * methods
        self.messages_sent = [0] * methods
        self.proposals_failed = 0
        self.versions: Counter[tuple[str, str]] = Counter()
        """Calls whose client sent its version, by call type and version."""
        self.seconds: CallSeconds | None = None
        """The durations of calls, if they are measured."""

    def count_version(self, kind: str, metadata: Metadata) -> None:
        """Count a call, `unary` or `stream`, by its client's version."""
        version = metadata.get("client-api-version", b"")
        if version:
            name = OTHER_VERSION
            if len(version) <= VERSION_CHARACTERS_MAX:
                name = version.decode(errors="replace")
            key = kind, name
            if key not in self.versions and len(self.versions) >= VERSIONS_MAX:
                key = kind, OTHER_VERSION
            self.versions[key] += 1

    def count_failure(self, method: int, status: Status) -> None:
        """Count a call that was refused or failed."""
        self.failed[method, status.code] += 1
        self.proposals_failed += status in PROPOSAL_FAILURES

    def count_end(self, method: int, code: Code) -> None:
        """Count the end of a stream, or of a call whose client left."""
        if code is Code.OK:
            self.ok[method] += 1
        else:
            self.failed[method, code] += 1

    # Read by metrics.

    def handled(self) -> Counter[tuple[int, Code]]:
        """Return how many calls of each method ended with each code."""
        counts = Counter(self.failed)
        counts.update({(method, Code.OK): ok for method, ok in enumerate(self.ok) if ok})
        return counts

    def started(self, in_flight: Iterable[int]) -> list[int]:
        """Return how many calls of each method began, given the methods of those in flight."""
        started = list(self.ok)
        for (method, _), count in self.failed.items():
            started[method] += count
        for method in in_flight:
            started[method] += 1
        return started


class CallSeconds:
    """The durations of calls by method, for `--metrics=extensive`."""

    __slots__ = ("histograms", "stopwatch")

    def __init__(self, methods: int, stopwatch: Callable[[], float]) -> None:
        self.stopwatch = stopwatch
        self.histograms = [Histogram(HANDLING_BOUNDS) for _ in range(methods)]

    def end(self, arrivals: "Iterable[Arrivals]") -> None:
        """Observe the durations of calls that have ended, all now."""
        now = self.stopwatch()
        for each in arrivals:
            self.histograms[each.method].observe(now - cast("float", each.started), each.ended)
            each.ended = 0


class Arrivals:
    """The calls of one method that a front received in one turn, with their common start."""

    __slots__ = ("arrived", "ended", "front", "method", "started")

    def __init__(
        self,
        method: int,
        arrived: float,
        started: object,
        front: Gateway | None = None,
    ) -> None:
        self.method = method
        self.arrived = arrived
        """The turn's time by the server's clock."""
        self.started = started
        """The turn's start by the stopwatch: a float."""
        self.front = front
        """The front that received the calls and translates their answers; None for calls over gRPC,
        whose answers go to the edge as they are."""
        self.ended = 0
        """How many of the calls have ended that `CallSeconds` has not observed yet."""
