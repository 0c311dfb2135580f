"""Counting RPCs by method and outcome, between the services and the edge.

A unary call is remembered from its arrival to its answer, which also tells what is in flight
when the server stops. Everything else about a call is added up when metrics are asked for.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence

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
from kvorum.edge import Edge, Event, EventKind, Headers, Request
from kvorum.telemetry.exposition import Histogram

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
"""Client versions that are told apart: a client could invent any number of them, of any length.
All others count as one."""


class CallCounts:
    """The edge as the services see it, and what went through."""

    __slots__ = (
        "_edge",
        "_marks",
        "_ok",
        "_slow",
        "failed",
        "messages_received",
        "messages_sent",
        "proposals_failed",
        "streams",
        "unary",
        "versions",
    )

    def __init__(self, edge: Edge, methods: int) -> None:
        self._edge = edge
        self.unary: dict[int, int] = {}
        """The method of every unary call in flight."""
        self.streams: dict[int, int] = {}
        """The method of every stream that is open."""
        self._ok = [0] * methods
        self.failed: Counter[tuple[int, Code]] = Counter()
        self.messages_received = [0] * methods
        self.messages_sent = [0] * methods
        self.proposals_failed = 0
        # Calls in flight at the last ticks, and those that were slow at the last one.
        self._marks: deque[list[int]] = deque()
        self._slow: set[int] = set()
        self.versions: Counter[tuple[str, str]] = Counter()
        """Calls whose client told its version, by their type and that version."""

    # What arrives.

    def received(self, requests: Iterable[Request]) -> None:
        """Note unary calls."""
        unary = self.unary
        for call, method, _, metadata in requests:
            unary[call] = method
            if metadata is not None:
                self._count_version("unary", metadata)

    def happened(self, events: Iterable[Event]) -> None:
        """Note what happened to streams, and clients that went away."""
        streams = self.streams
        for kind, call, detail in events:
            if kind == EventKind.MESSAGE:
                if call in streams:
                    self.messages_received[streams[call]] += 1
            elif kind == EventKind.OPENED:
                method, metadata = detail
                streams[call] = method
                if metadata is not None:
                    self._count_version("stream", metadata)
            elif kind == EventKind.ENDED:
                self._end(call, Code.CANCELLED)

    def _count_version(self, kind: str, metadata: dict[str, bytes]) -> None:
        version = metadata.get("client-api-version", b"")
        if version:
            name = OTHER_VERSION
            if len(version) <= VERSION_CHARACTERS_MAX:
                name = version.decode(errors="replace")
            key = kind, name
            if key not in self.versions and len(self.versions) >= VERSIONS_MAX:
                key = kind, OTHER_VERSION
            self.versions[key] += 1

    def _end(self, call: int, code: Code) -> None:
        method = self.streams.pop(call, None)
        if method is None:
            method = self.unary.pop(call, None)
        if method is None:
            return
        if code is Code.OK:
            self._ok[method] += 1
        else:
            self.failed[method, code] += 1

    # What is answered.

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        pop, ok = self.unary.pop, self._ok
        for call, result in batch:
            method = pop(call, None)
            if method is not None:
                if result.__class__ is bytes:
                    ok[method] += 1
                else:
                    self.failed[method, result.code] += 1  # type: ignore[union-attr]
                    self.proposals_failed += result in PROPOSAL_FAILURES
        self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""
        streams, sent = self.streams, self.messages_sent
        for call, _ in batch:
            if call in streams:
                sent[streams[call]] += 1
        self._edge.send(batch)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""
        self._end(call, status.code)
        self._edge.finish(call, status, trailers)

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes of a stream are on their way."""
        return self._edge.pending_bytes(call)

    def mark_waiting(self, call: int) -> None:
        """Ask to be told if a unary call ends before its reply."""
        self._edge.mark_waiting(call)

    def slow_calls(self, ticks: int) -> list[tuple[int, int]]:
        """Return calls and methods that are in flight since so many ticks; called once a tick.

        Each call is returned once. Nothing is noted per call for this.
        """
        self._marks.append(list(self.unary))
        if len(self._marks) <= ticks:
            return []
        known = self._slow
        self._slow = {call for call in self._marks.popleft() if call in self.unary}
        return [(call, self.unary[call]) for call in sorted(self._slow - known)]

    # What metrics show.

    def handled(self) -> Counter[tuple[int, Code]]:
        """Return how many calls of each method ended with each code."""
        counts = Counter(self.failed)
        counts.update({(method, Code.OK): ok for method, ok in enumerate(self._ok) if ok})
        return counts

    def succeeded(self) -> list[int]:
        """Return how many calls of each method ended well."""
        return list(self._ok)

    def started(self) -> list[int]:
        """Return how many calls of each method began."""
        started = list(self._ok)
        for (method, _), count in self.failed.items():
            started[method] += count
        for method in self.unary.values():
            started[method] += 1
        for method in self.streams.values():
            started[method] += 1
        return started


class TimedCallCounts(CallCounts):
    """Counts, and how long each call took; for `--metrics=extensive`."""

    __slots__ = ("_arrived", "seconds")

    def __init__(self, edge: Edge, methods: int) -> None:
        super().__init__(edge, methods)
        self._arrived: dict[int, float] = {}
        self.seconds = [Histogram(HANDLING_BOUNDS) for _ in range(methods)]

    def received(self, requests: Iterable[Request]) -> None:
        """Note unary calls and when they came."""
        now = time.monotonic()
        self._arrived.update((request[0], now) for request in requests)
        super().received(requests)

    def happened(self, events: Iterable[Event]) -> None:
        """Note streams and when they began."""
        now = time.monotonic()
        for kind, call, _ in events:
            if kind == EventKind.OPENED:
                self._arrived[call] = now
            elif kind == EventKind.ENDED:
                self._observe(call, now)
        super().happened(events)

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        now = time.monotonic()
        for call, _ in batch:
            self._observe(call, now)
        super().reply(batch)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""
        self._observe(call, time.monotonic())
        super().finish(call, status, trailers)

    def _observe(self, call: int, now: float) -> None:
        arrived = self._arrived.pop(call, None)
        method = self.unary.get(call, self.streams.get(call))
        if arrived is not None and method is not None:
            self.seconds[method].observe(now - arrived)
