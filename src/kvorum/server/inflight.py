"""The calls in flight, from their arrival to their end; both pass through here.

This is the edge as the services see it. A clean end waits until nothing is in flight, and slow
calls are found here; calls are counted for the metrics on their way.

Nothing is noted per call to find the slow ones: those of a method that came in one turn share one
`Arrivals`, which knows the moment, and `look` finds those that are about to become slow.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import EventKind, Headers, Request
from kvorum.rpc.interface import Output
from kvorum.telemetry.access import AccessLog
from kvorum.telemetry.counting import Arrivals, CallCounts
from kvorum.telemetry.interface import Tracing
from kvorum.telemetry.request_stats import RequestStats

_OPENED: Final = int(EventKind.OPENED)
_MESSAGE: Final = int(EventKind.MESSAGE)
_ENDED: Final = int(EventKind.ENDED)

OnSlow = Callable[[int, int, float, "bytes | Status | None"], bool]


class CallsInFlight:
    """Every RPC that has begun and not ended, by its number."""

    __slots__ = (
        "_edge",
        "_slow_seconds",
        "_told",
        "access",
        "counts",
        "is_delivering",
        "look_at",
        "look_seconds",
        "on_slow",
        "slow",
        "stats",
        "streams",
        "tracing",
        "unary",
    )

    def __init__(self, edge: Output, counts: CallCounts, slow_seconds: float = inf) -> None:
        """Note calls on their way to an edge, and those that take longer than so many seconds."""
        self._edge = edge
        self.counts = counts
        self.access: AccessLog | None = None
        """Is told of every call, too, if there is one."""
        self.stats: RequestStats | None = None
        """Is told of unary calls, while the log is for developers."""
        self.tracing: Tracing | None = None
        """Traces calls, if that is wanted."""
        self.is_delivering = False
        """Whether what is replied now is the member's answer; if not, the services refuse a call,
        or answer it by themselves."""
        self.unary: dict[int, Arrivals] = {}
        """Every unary call in flight, with others of its method that came in the same turn."""
        self.streams: dict[int, Arrivals] = {}
        """Every open stream."""
        self._slow_seconds = slow_seconds
        self.look_seconds = slow_seconds
        """The time between two looks, at most what a slow call takes."""
        self.look_at = 0.0
        self.slow: dict[int, float] = {}
        """Unary calls that will be slow at the next look if they do not end before, and since when
        they have been in flight."""
        self.on_slow: OnSlow | None = None
        """Called when one of them ends: with the call, its method, when it arrived, and its answer,
        None if its client went away; returns whether it was told of."""
        self._told: set[int] = set()

    def methods(self) -> Iterator[int]:
        """Return the method of every call in flight."""
        for arrivals in (*self.unary.values(), *self.streams.values()):
            yield arrivals.method

    # What arrives.

    def receive(self, requests: Sequence[Request], now: float, started: object) -> None:
        """Note unary calls, which came in the turn of now; by the stopwatch, it began then."""
        unary = self.unary
        together: dict[int, Arrivals] = {}
        last = Arrivals(-1, now, started)
        for call, method, _, metadata in requests:
            if method != last.method:
                found = together.get(method)
                if found is None:
                    found = together[method] = Arrivals(method, now, started)
                last = found
            unary[call] = last
            if metadata is not None:
                self.counts.count_version("unary", metadata)
        if self.access is not None:
            self.access.receive(requests)
        if self.stats is not None:
            self.stats.receive(requests)
        if self.tracing is not None:
            self.tracing.begin(requests, now)

    def note(self, kind: int, call: int, detail: Any, now: float, started: object) -> None:
        """Note an event of a stream, or a client that went away; times are as in `receive`."""
        streams, counts = self.streams, self.counts
        if kind == _MESSAGE:
            if call in streams:
                counts.messages_received[streams[call].method] += 1
                if self.tracing is not None:
                    self.tracing.received(call, detail)
        elif kind == _OPENED:
            method, metadata = detail
            streams[call] = Arrivals(method, now, started)
            if metadata is not None:
                counts.count_version("stream", metadata)
            if self.tracing is not None:
                self.tracing.opened(call, method, metadata)
        elif kind == _ENDED:
            self._end(call, Code.CANCELLED)
        if self.access is not None:
            self.access.note(kind, call, detail)

    def _end(self, call: int, code: Code, text: str = "") -> None:
        if self.tracing is not None:
            self.tracing.ended(call, code, text)
        arrivals = self.streams.pop(call, None)
        if arrivals is None:
            arrivals = self.unary.pop(call, None)
            if call in self.slow and arrivals is not None:
                self._end_slow(call, arrivals.method, None)
        if arrivals is not None:
            self.counts.count_end(arrivals.method, code)
            if self.counts.seconds is not None:
                arrivals.ended += 1
                self.counts.seconds.end((arrivals,))
            if self.access is not None:
                self.access.end(call, code)
            if self.stats is not None:
                self.stats.forget(call)

    # What is answered.

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        pop, counts = self.unary.pop, self.counts
        ok, seconds = counts.ok, counts.seconds
        ending: list[Arrivals] = []
        if self.slow:
            for call, result in batch:
                if call in self.slow and call in self.unary:
                    self._end_slow(call, self.unary[call].method, result)
        if self.tracing is not None:
            self.tracing.replied(batch, self.is_delivering)
        for call, result in batch:
            arrivals = pop(call, None)
            if arrivals is not None:
                if result.__class__ is bytes:
                    ok[arrivals.method] += 1
                else:
                    counts.count_failure(arrivals.method, result)  # type: ignore[arg-type]
                if seconds is not None:
                    if not arrivals.ended:
                        ending.append(arrivals)
                    arrivals.ended += 1
        if seconds is not None and ending:
            seconds.end(ending)
        if self.access is not None:
            self.access.reply(batch)
        if self.stats is not None:
            self.stats.reply(batch)
        self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""
        streams, sent = self.streams, self.counts.messages_sent
        for call, _ in batch:
            stream = streams.get(call)
            if stream is not None:
                sent[stream.method] += 1
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
        self.look_at = now + self.look_seconds
        since_before = self.look_at - self._slow_seconds
        before = self.slow
        self.slow = {
            call: arrivals.arrived
            for call, arrivals in self.unary.items()
            if arrivals.arrived <= since_before
        }
        return not self.slow.keys() <= before.keys()

    def overdue(self, now: float) -> list[tuple[int, int]]:
        """Return the calls, with their methods, that are slow and still in flight, each once."""
        since_before = now - self._slow_seconds
        told = self._told
        self._told = {call for call, since in self.slow.items() if since <= since_before}
        return [(call, self.unary[call].method) for call in sorted(self._told - told)]

    def _end_slow(self, call: int, method: int, result: "bytes | Status | None") -> None:
        since = self.slow.pop(call)
        if self.on_slow is None or not self.on_slow(call, method, since, result):
            return
        if self.stats is not None:
            # One line is enough.
            self.stats.forget(call)
