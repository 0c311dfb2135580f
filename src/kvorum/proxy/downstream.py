"""Messages for clients' streams, gathered over a turn; a stream's end comes after its messages."""

from collections.abc import Callable

from kvorum.api.errors import Status
from kvorum.proxy.interface import ProxyEdge
from kvorum.server.rpc.interface import STREAM_PENDING_BYTES_MAX


class Downstream:
    """Sends on the streams of clients, except Watch streams, which have their own `Outgoing`."""

    __slots__ = ("_edge", "_sends", "full")

    def __init__(self, edge: ProxyEdge) -> None:
        self._edge = edge
        self._sends: list[tuple[int, bytes]] = []
        self.full: dict[int, Callable[[], None]] = {}
        """Callbacks, by call, that run after a flush if the client has too many bytes unread."""

    def send(self, call: int, message: bytes) -> None:
        """Send a message with the next `flush`."""
        self._sends.append((call, message))

    def finish(self, call: int, status: Status) -> None:
        """End a stream after the messages gathered for it."""
        self.flush()
        self.full.pop(call, None)
        self._edge.finish(call, status)

    def flush(self) -> None:
        """Send the gathered messages."""
        if not self._sends:
            return
        sends, self._sends = self._sends, []
        self._edge.send(sends)
        if self.full:
            for call in {call: None for call, _ in sends}:
                pause = self.full.get(call)
                if pause is not None and self._edge.pending_bytes(call) >= STREAM_PENDING_BYTES_MAX:
                    pause()
