"""Streams that the proxy forwards unchanged: Snapshot, Observe, RangeStream, the health service.

Each stream of a client is one stream to a member, with the client's metadata. A client that does
not read slows only its own stream from the member; a client that leaves cancels it. The proxy
passes on the codes and texts of ends.
"""

from collections.abc import Callable

from kvorum.api.errors import Status
from kvorum.network.edge.interface import Metadata
from kvorum.network.edge.upstream import End
from kvorum.proxy.downstream import Downstream
from kvorum.proxy.interface import status_of
from kvorum.proxy.routes import Routes

ChangeRequest = Callable[[bytes], bytes | Status]
"""Turns a client's message into the member's; a status ends the stream instead."""
ChangeAnswer = Callable[[bytes], bytes]


def keep_unchanged(message: bytes) -> bytes:
    """Return the message unchanged."""
    return message


class _ForwardedStream:
    """One forwarded stream; it receives the events of the member's side."""

    __slots__ = ("_forwarding", "answer", "call", "number", "request")

    def __init__(
        self, forwarding: "Forwarding", call: int, request: ChangeRequest, answer: ChangeAnswer
    ) -> None:
        self._forwarding = forwarding
        self.call = call
        self.request = request
        self.answer = answer
        self.number = 0
        """The number of the stream to the member."""

    def take_message(self, data: bytes) -> None:
        self._forwarding.downstream.send(self.call, self.answer(data))

    def take_end(self, end: End) -> None:
        self._forwarding.take_member_end(self.call, end)

    def take_writable(self) -> None:
        """Do nothing: clients send only one short message on these streams."""

    def pause_member(self) -> None:
        """Stop reading from the member until the client has read."""
        self._forwarding.routes.pause(self.number)


class Forwarding:
    """Serves the streams that the proxy forwards."""

    def __init__(self, routes: Routes, downstream: Downstream) -> None:
        self.routes = routes
        self.downstream = downstream
        self._open: dict[int, _ForwardedStream] = {}

    def __contains__(self, call: object) -> bool:
        return call in self._open

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        call: int,
        path: str,
        metadata: Metadata | None,
        request: ChangeRequest = keep_unchanged,
        answer: ChangeAnswer = keep_unchanged,
    ) -> None:
        """Open a stream; `request` and `answer` may change its messages."""
        relay = self._open[call] = _ForwardedStream(self, call, request, answer)
        sent = () if metadata is None else tuple(metadata.items())
        relay.number = self.routes.open_stream(path, sent, relay)
        self.downstream.full[call] = relay.pause_member

    def take_message(self, call: int, data: bytes) -> None:
        """Forward a client's message."""
        relay = self._open[call]
        request = relay.request(data)
        if isinstance(request, Status):
            self.take_end(call)
            self.downstream.finish(call, request)
        else:
            self.routes.send(relay.number, request)

    def take_half_close(self, call: int) -> None:
        """Close the sending side to the member, as the client did."""
        self.routes.half_close(self._open[call].number)

    def take_writable(self, call: int) -> None:
        """Read from the member again, because the client has read."""
        self.routes.resume(self._open[call].number)

    def take_end(self, call: int) -> None:
        """Forget a stream whose client has left."""
        relay = self._open.pop(call)
        self.downstream.full.pop(call, None)
        self.routes.cancel(relay.number)

    def take_member_end(self, call: int, end: End) -> None:
        """End a client's stream as the member ended it."""
        del self._open[call]
        self.downstream.finish(call, status_of(end))

    def stop(self, status: Status) -> None:
        """End every stream because the proxy stops."""
        for call in list(self._open):
            self.take_end(call)
            self.downstream.finish(call, status)
