"""What goes to clients on their streams, gathered over a turn; a stream's end comes after it."""

from collections.abc import Callable

from kvorum.api.errors import Status
from kvorum.proxy.interface import ProxyEdge
from kvorum.rpc.interface import STREAM_PENDING_BYTES_MAX


class Downstream:
    """The streams of clients, except those of watches, which send by themselves."""

    __slots__ = ("_edge", "_sends", "full")

    def __init__(self, edge: ProxyEdge) -> None:
        self._edge = edge
        self._sends: list[tuple[int, bytes]] = []
        self.full: dict[int, Callable[[], None]] = {}
        """Who is told, by call, that a client does not take what was sent to it."""

    def send(self, call: int, message: bytes) -> None:
        """Send a message; it leaves with `flush`."""
        self._sends.append((call, message))

    def finish(self, call: int, status: Status) -> None:
        """End a stream after what was sent."""
        self.flush()
        self.full.pop(call, None)
        self._edge.finish(call, status)

    def flush(self) -> None:
        """Let what was gathered leave."""
        if not self._sends:
            return
        sends, self._sends = self._sends, []
        self._edge.send(sends)
        if self.full:
            for call in {call: None for call, _ in sends}:
                told = self.full.get(call)
                if told is not None and self._edge.pending_bytes(call) >= STREAM_PENDING_BYTES_MAX:
                    told()
