"""The calls in flight, from their arrival to their end; both pass through here.

This is the edge as the services see it. A clean end waits until nothing is in flight, and slow
calls are found here; calls are counted for the metrics on their way.

Nothing is noted per call to find the slow ones. Calls are kept in the order of their arrival, and
between them the moments at which they arrived; `look` reads these before a call can have become
slow, and forgets them.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import EventKind, Headers, Request
from kvorum.rpc.interface import Output
from kvorum.telemetry.counting import CallCounts
from kvorum.telemetry.interface import Tracing

OnSlow = Callable[[int, int, float, "bytes | Status | None"], None]


class CallsInFlight:
    """Every RPC that has begun and not ended, by its number."""

    __slots__ = (
        "_arrived",
        "_edge",
        "_moments",
        "_slow_seconds",
        "_told",
        "counts",
        "is_delivering",
        "look_at",
        "look_seconds",
        "on_slow",
        "slow",
        "streams",
        "tracing",
        "unary",
    )

    def __init__(self, edge: Output, counts: CallCounts, slow_seconds: float = inf) -> None:
        """Note calls on their way to an edge, and those that take longer than so many seconds."""
        self._edge = edge
        self.counts = counts
        self.unary: dict[int, int] = {}
        """The method of every unary call in flight, in the order of their arrival. A key below 0 is
        no call: those behind it arrived at one of the moments, `~key` being its place."""
        self.streams: dict[int, int] = {}
        """The method of every open stream."""
        self.tracing: Tracing | None = None
        """Traces calls, if that is wanted."""
        self.is_delivering = False
        """Whether what is replied now is the member's answer; if not, the services refuse a call,
        or answer it by themselves."""
        self._moments: list[float] = []
        # Since when the calls that were in flight at the last look have been so.
        self._arrived: dict[int, float] = {}
        self._slow_seconds = slow_seconds
        self.look_seconds = slow_seconds
        """The time between two looks, at most what a slow call takes."""
        self.look_at = 0.0
        self.slow: dict[int, float] = {}
        """Unary calls that will be slow at the next look if they do not end before, and since when
        they have been in flight."""
        self.on_slow: OnSlow | None = None
        """Called when one of them ends: with the call, its method, when it arrived, and its answer,
        None if its client went away."""
        self._told: set[int] = set()

    @property
    def unary_count(self) -> int:
        """How many unary calls are in flight."""
        return len(self.unary) - len(self._moments)

    def methods(self) -> Iterator[int]:
        """Return the method of every call in flight."""
        for call, method in self.unary.items():
            if call >= 0:
                yield method
        yield from self.streams.values()

    # What arrives.

    def receive(self, requests: Sequence[Request], now: float) -> None:
        """Note unary calls."""
        unary, seconds = self.unary, self.counts.seconds
        unary[~len(self._moments)] = 0
        self._moments.append(now)
        for call, method, _, metadata in requests:
            unary[call] = method
            if metadata is not None:
                self.counts.count_version("unary", metadata)
        if seconds is not None:
            seconds.begin([request[0] for request in requests])
        if self.tracing is not None:
            self.tracing.begin(requests, now)

    def note(self, kind: int, call: int, detail: Any) -> None:
        """Note an event of a stream, or a client that went away."""
        streams, counts = self.streams, self.counts
        if kind == EventKind.MESSAGE:
            if call in streams:
                counts.messages_received[streams[call]] += 1
                if self.tracing is not None:
                    self.tracing.received(call, detail)
        elif kind == EventKind.OPENED:
            method, metadata = detail
            streams[call] = method
            if metadata is not None:
                counts.count_version("stream", metadata)
            if counts.seconds is not None:
                counts.seconds.begin((call,))
            if self.tracing is not None:
                self.tracing.opened(call, method, metadata)
        elif kind == EventKind.ENDED:
            self._end(call, Code.CANCELLED)

    def _end(self, call: int, code: Code, text: str = "") -> None:
        if self.tracing is not None:
            self.tracing.ended(call, code, text)
        method = self.streams.pop(call, None)
        if method is None:
            method = self.unary.pop(call, None)
            if call in self.slow and method is not None:
                self._end_slow(call, method, None)
        if method is not None:
            self.counts.count_end(method, code)
            if self.counts.seconds is not None:
                self.counts.seconds.end(call, method)

    # What is answered.

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        pop, counts = self.unary.pop, self.counts
        ok, seconds = counts.ok, counts.seconds
        if self.slow:
            for call, result in batch:
                if call in self.slow and call in self.unary:
                    self._end_slow(call, self.unary[call], result)
        if self.tracing is not None:
            self.tracing.replied(batch, self.is_delivering)
        for call, result in batch:
            method = pop(call, None)
            if method is not None:
                if result.__class__ is bytes:
                    ok[method] += 1
                else:
                    counts.count_failure(method, result)  # type: ignore[arg-type]
                if seconds is not None:
                    seconds.end(call, method)
        self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""
        streams, sent = self.streams, self.counts.messages_sent
        for call, _ in batch:
            if call in streams:
                sent[streams[call]] += 1
        if self.tracing is not None:
            self.tracing.sent(batch)
        self._edge.send(batch)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""
        self._end(call, status.code, status.text)
        self._edge.finish(call, status, trailers)

    def pending_bytes(self, call: int) -> int:
        """As `Edge.pending_bytes`."""
        return self._edge.pending_bytes(call)

    def mark_waiting(self, call: int) -> None:
        """Ask to be told if a unary call ends before its reply."""
        self._edge.mark_waiting(call)

    # Slow calls.

    def look(self, now: float) -> bool:
        """Find out which calls will be slow at the next look; return whether there are others.

        To be called when `look_at` has come, before answers are given.
        """
        known, unary, moments = self._arrived, self.unary, self._moments
        arrived: dict[int, float] = {}
        moment = now
        for call in unary:
            if call < 0:
                moment = moments[~call]
            else:
                arrived[call] = known.get(call, moment)
        for place in range(len(moments)):
            del unary[~place]
        moments.clear()
        self._arrived = arrived
        self.look_at = now + self.look_seconds
        since_before = self.look_at - self._slow_seconds
        before = self.slow
        self.slow = {call: since for call, since in arrived.items() if since <= since_before}
        return not self.slow.keys() <= before.keys()

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Return the calls, with their methods, that are slow and still in flight, each once."""
        since_before = now - self._slow_seconds
        told = self._told
        self._told = {call for call, since in self.slow.items() if since <= since_before}
        return [(call, self.unary[call]) for call in sorted(self._told - told)]

    def _end_slow(self, call: int, method: int, result: "bytes | Status | None") -> None:
        since = self.slow.pop(call)
        if self.on_slow is not None:
            self.on_slow(call, method, since, result)
