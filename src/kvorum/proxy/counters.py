"""A proxy's counters: its clients' calls, and the watches and events it saved the cluster."""

from collections import Counter

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import Headers
from kvorum.proxy.interface import ProxyEdge
from kvorum.server.rpc.table import METHODS


class ProxyCounters:
    """The counters: totals since the start, and gauges."""

    __slots__ = (
        "events_coalesced",
        "started",
        "streams",
        "streams_ended",
        "watchers_coalesced",
    )

    def __init__(self) -> None:
        self.started = [0] * len(METHODS)
        """Calls of each method that were not relayed; the hot path adds to it directly."""
        self.streams: dict[int, int] = {}
        """The method number of each stream that a client has open, by call."""
        self.streams_ended: Counter[tuple[int, Code]] = Counter()
        self.watchers_coalesced = 0
        """How many watchers share a watch at a member with an earlier one, now."""
        self.events_coalesced = 0
        """Deliveries of messages with events to watchers beyond the first of a broadcast."""


class CountedEdge:
    """An edge that counts streams when they end."""

    def __init__(self, edge: ProxyEdge, counters: ProxyCounters) -> None:
        self._edge = edge
        self._counters = counters
        self.reply = edge.reply
        self.send = edge.send
        self.pending_bytes = edge.pending_bytes
        self.mark_waiting = edge.mark_waiting
        self.respond = edge.respond
        self.peer = edge.peer
        self.drain = edge.drain
        self.is_quiet = edge.is_quiet
        self.is_drained = edge.is_drained

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """As `Edge.finish`."""
        self.count_end(call, status.code)
        self._edge.finish(call, status, trailers)

    def count_end(self, call: int, code: Code) -> None:
        """Count the end of a stream."""
        method = self._counters.streams.pop(call, None)
        if method is not None:
            self._counters.streams_ended[method, code] += 1
