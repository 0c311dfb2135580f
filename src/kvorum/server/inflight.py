"""Track the calls in flight, from their arrival to their end.

This object stands between the services and their fronts, and counts calls for the metrics. Each
call is entered with the front that received it, which gets the answer: gRPC's answers go straight
to the edge, and those of JSON calls to the gateway, which translates them. A graceful shutdown
waits until no call is in flight. This module also finds slow calls.

Slow-call detection keeps no record per call: calls of one method that came in the same turn share
one `Arrivals` with the time, and `find_slow` finds the calls that are about to become slow.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final

from kvorum.api.errors import INTERNAL, Code, Status
from kvorum.network.edge.interface import EdgeEventKind, Headers, Request
from kvorum.server.http.calls import Gateway
from kvorum.server.rpc.interface import RpcOutput
from kvorum.server.telemetry.access import AccessLog
from kvorum.server.telemetry.counting import Arrivals, CallCounts
from kvorum.server.telemetry.interface import Tracing
from kvorum.server.telemetry.request_stats import RequestStats

_OPENED: Final = int(EdgeEventKind.OPENED)
_MESSAGE: Final = int(EdgeEventKind.MESSAGE)
_ENDED: Final = int(EdgeEventKind.ENDED)

OnSlow = Callable[[int, int, float, "bytes | Status | None"], bool]


class CallsInFlight:
    """Every RPC in flight, by its call number."""

    __slots__ = (
        "_edge",
        "_reported",
        "_slow_seconds",
        "access",
        "check_at",
        "check_seconds",
        "counts",
        "is_delivering",
        "on_slow",
        "slow",
        "stats",
        "streams",
        "tracing",
        "unary",
    )

    def __init__(self, edge: RpcOutput, counts: CallCounts, slow_seconds: float = inf) -> None:
        """Track calls in front of an edge; calls above `slow_seconds` are slow."""
        self._edge = edge
        self.counts = counts
        self.access: AccessLog | None = None
        """Logs every call; None without an access log."""
        self.stats: RequestStats | None = None
        """Logs every unary call; set at log level debug."""
        self.tracing: Tracing | None = None
        """Traces calls; None unless tracing is enabled."""
        self.is_delivering = False
        """Whether the current replies are answers of the member; if not, they are the services' own
        answers and refusals."""
        self.unary: dict[int, Arrivals] = {}
        """The arrival of every unary call in flight."""
        self.streams: dict[int, Arrivals] = {}
        """The arrival of every open stream."""
        self._slow_seconds = slow_seconds
        self.check_seconds = slow_seconds
        """The interval of calls to `find_slow`, at most the threshold of a slow call."""
        self.check_at = 0.0
        self.slow: dict[int, float] = {}
        """Unary calls that will be slow at the next `find_slow` unless they end before, with the
        times of their arrival."""
        self.on_slow: OnSlow | None = None
        """Called when one of them ends, with the call, its method, the time of its arrival, and its
        answer, None if its client went away; returns whether it logged the call."""
        self._reported: set[int] = set()

    def methods(self) -> Iterator[int]:
        """Return the method of every call in flight."""
        for arrivals in (*self.unary.values(), *self.streams.values()):
            yield arrivals.method

    # Calls and events from the fronts.

    def receive(
        self,
        requests: Sequence[Request],
        now: float,
        started: object,
        front: Gateway | None = None,
    ) -> None:
        """Record the arrival of unary calls: the turn's time, and its start by the stopwatch.

        `front` is the gateway for JSON calls, and None for calls over gRPC.
        """
        unary = self.unary
        together: dict[int, Arrivals] = {}
        last: Arrivals | None = None
        for call, method, _, metadata in requests:
            if last is None or method != last.method:
                last = together.get(method)
                if last is None:
                    last = together[method] = Arrivals(method, now, started, front)
            unary[call] = last
            if metadata is not None:
                self.counts.count_version("unary", metadata)
        if self.access is not None:
            self.access.receive(requests)
        if self.stats is not None:
            self.stats.receive(requests)
        if self.tracing is not None:
            self.tracing.note_calls(requests, now)

    def note(
        self,
        kind: int,
        call: int,
        detail: Any,
        now: float,
        started: object,
        front: Gateway | None = None,
    ) -> None:
        """Record an event of a stream, or the end of a unary call.

        The times and `front` are as in `receive`.
        """
        streams, counts = self.streams, self.counts
        if kind == _MESSAGE:
            if call in streams:
                counts.messages_received[streams[call].method] += 1
                if self.tracing is not None:
                    self.tracing.note_message(call, detail)
        elif kind == _OPENED:
            method, metadata = detail
            streams[call] = Arrivals(method, now, started, front)
            if metadata is not None:
                counts.count_version("stream", metadata)
            if self.tracing is not None:
                self.tracing.note_stream(call, method, metadata)
        elif kind == _ENDED:
            self._end(call, Code.CANCELLED)
        if self.access is not None:
            self.access.note(kind, call, detail)

    def _end(self, call: int, code: Code, text: str = "") -> Arrivals | None:
        """Forget a call; return its entry, None if it has none."""
        if self.tracing is not None:
            self.tracing.note_end(call, code, text)
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
        return arrivals

    # Answers to the fronts.

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        pop, counts = self.unary.pop, self.counts
        ok, seconds = counts.ok, counts.seconds
        ending: list[Arrivals] = []
        translated: list[tuple[Gateway, int, bytes | Status]] = []
        if self.slow:
            for call, result in batch:
                if call in self.slow and call in self.unary:
                    self._end_slow(call, self.unary[call].method, result)
        if self.tracing is not None:
            self.tracing.note_replies(batch, self.is_delivering)
        for call, result in batch:
            arrivals = pop(call, None)
            if arrivals is not None:
                if result.__class__ is bytes:
                    ok[arrivals.method] += 1
                else:
                    counts.count_failure(arrivals.method, result)  # type: ignore[arg-type]
                if arrivals.front is not None:
                    translated.append((arrivals.front, call, result))
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
        if translated:
            elsewhere = {call for _, call, _ in translated}
            batch = [each for each in batch if each[0] not in elsewhere]
            for front, call, result in translated:
                front.reply(call, result)
        if batch:
            self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""
        streams, sent = self.streams, self.counts.messages_sent
        is_translated = False
        for call, _ in batch:
            stream = streams.get(call)
            if stream is not None:
                sent[stream.method] += 1
                if stream.front is not None:
                    is_translated = True
        if self.tracing is not None:
            self.tracing.note_sent(batch)
        self._edge.send(self._translate(batch) if is_translated else batch)

    def _translate(self, batch: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Let the gateway encode the messages of its streams, without changing the order of all."""
        encoded: list[tuple[int, bytes]] = []
        for call, message in batch:
            stream = self.streams.get(call)
            if stream is None or stream.front is None:
                encoded.append((call, message))
                continue
            found = stream.front.encode_message(call, message)
            if found is not None:
                encoded.append((call, found))
                continue
            # The stream's earlier messages come before its end.
            self._edge.send(encoded)
            encoded = []
            stream.front.finish(call, INTERNAL)
        return encoded

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""
        arrivals = self._end(call, status.code, status.text)
        if arrivals is None or arrivals.front is None:
            self._edge.finish(call, status, trailers)
        else:
            arrivals.front.finish(call, status)

    def pending_bytes(self, call: int) -> int:
        """As `Edge.pending_bytes`."""
        return self._edge.pending_bytes(call)

    def mark_waiting(self, call: int) -> None:
        """As `Edge.mark_waiting`."""
        arrivals = self.unary.get(call)
        if arrivals is None or arrivals.front is None:
            self._edge.mark_waiting(call)
        else:
            arrivals.front.mark_waiting(call)

    # Slow calls.

    def find_slow(self, now: float) -> bool:
        """Find the calls that will be slow at the next `find_slow`; return whether any is new.

        Call this once `check_at` has come, before sending answers.
        """
        self.check_at = now + self.check_seconds
        since_before = self.check_at - self._slow_seconds
        before = self.slow
        self.slow = {
            call: arrivals.arrived
            for call, arrivals in self.unary.items()
            if arrivals.arrived <= since_before
        }
        return not self.slow.keys() <= before.keys()

    def take_overdue(self, now: float) -> list[tuple[int, int]]:
        """Return slow calls that are still in flight, with their methods, each call once."""
        since_before = now - self._slow_seconds
        reported = self._reported
        self._reported = {call for call, since in self.slow.items() if since <= since_before}
        return [(call, self.unary[call].method) for call in sorted(self._reported - reported)]

    def _end_slow(self, call: int, method: int, result: "bytes | Status | None") -> None:
        since = self.slow.pop(call)
        if self.on_slow is None or not self.on_slow(call, method, since, result):
            return
        if self.stats is not None:
            # The slow call is logged already.
            self.stats.forget(call)
