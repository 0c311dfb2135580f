"""The calls in flight, from their arrival to their end; both pass through here.

This is the edge as the services see it. A clean end waits until nothing is in flight, and slow
calls are found here; calls are counted for the metrics on their way.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import EventKind, Headers, Request
from kvorum.rpc.interface import Output
from kvorum.telemetry.access import AccessLog
from kvorum.telemetry.counting import Arrivals, CallCounts
from kvorum.telemetry.request_stats import RequestStats


class CallsInFlight:
    """Every RPC that has begun and not ended, by its number."""

    __slots__ = ("_edge", "_marks", "_slow", "access", "counts", "stats", "streams", "unary")

    def __init__(self, edge: Output, counts: CallCounts) -> None:
        self._edge = edge
        self.counts = counts
        self.access: AccessLog | None = None
        """Is told of every call, too, if there is one."""
        self.stats: RequestStats | None = None
        """Is told of unary calls, while the log is for developers."""
        self.unary: dict[int, Arrivals] = {}
        """Every unary call in flight, with others of its method that came in the same turn."""
        self.streams: dict[int, Arrivals] = {}
        """Every open stream."""
        # The calls in flight at each of the last ticks, and those that were slow at the last one.
        self._marks: deque[list[int]] = deque()
        self._slow: set[int] = set()

    def methods(self) -> Iterator[int]:
        """Return the method of every call in flight."""
        for arrivals in (*self.unary.values(), *self.streams.values()):
            yield arrivals.method

    # What arrives.

    def receive(self, requests: Sequence[Request], started: object) -> None:
        """Note unary calls, which came in the turn that began then by the stopwatch."""
        unary = self.unary
        together: dict[int, Arrivals] = {}
        last = Arrivals(-1, started)
        for call, method, _, metadata in requests:
            if method != last.method:
                found = together.get(method)
                if found is None:
                    found = together[method] = Arrivals(method, started)
                last = found
            unary[call] = last
            if metadata is not None:
                self.counts.count_version("unary", metadata)
        if self.access is not None:
            self.access.receive(requests)
        if self.stats is not None:
            self.stats.receive(requests)

    def note(self, kind: int, call: int, detail: Any, started: object) -> None:
        """Note an event of a stream, or a client that went away; `started` is as in `receive`."""
        streams, counts = self.streams, self.counts
        if kind == EventKind.MESSAGE:
            if call in streams:
                counts.messages_received[streams[call].method] += 1
        elif kind == EventKind.OPENED:
            method, metadata = detail
            streams[call] = Arrivals(method, started)
            if metadata is not None:
                counts.count_version("stream", metadata)
        elif kind == EventKind.ENDED:
            self._end(call, Code.CANCELLED)
        if self.access is not None:
            self.access.note(kind, call, detail)

    def _end(self, call: int, code: Code) -> None:
        arrivals = self.streams.pop(call, None)
        if arrivals is None:
            arrivals = self.unary.pop(call, None)
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
            if call in streams:
                sent[streams[call].method] += 1
        self._edge.send(batch)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""
        self._end(call, status.code)
        self._edge.finish(call, status, trailers)

    def pending_bytes(self, call: int) -> int:
        """As `Edge.pending_bytes`."""
        return self._edge.pending_bytes(call)

    def mark_waiting(self, call: int) -> None:
        """Ask to be told if a unary call ends before its reply."""
        self._edge.mark_waiting(call)

    def slow(self, ticks: int) -> list[tuple[int, int]]:
        """Return unary calls, with their methods, that have run for so many ticks.

        Must be called once a tick. Each call is returned once. Nothing is noted per call for this.
        """
        self._marks.append(list(self.unary))
        if len(self._marks) <= ticks:
            return []
        known = self._slow
        self._slow = {call for call in self._marks.popleft() if call in self.unary}
        return [(call, self.unary[call].method) for call in sorted(self._slow - known)]
