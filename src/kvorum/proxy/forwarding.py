"""Streams that are passed on as they come: Snapshot, Observe, RangeStream, the health service.

Each stream of a client is one stream to a member, with the client's metadata. A client that does
not take what it is sent holds its member back, and nobody else; a client that goes takes its
stream to the member with it. Ends keep their codes and texts.
"""

from collections.abc import Callable

from kvorum.api.errors import Status
from kvorum.edge.interface import Metadata
from kvorum.edge.upstream import End
from kvorum.proxy.downstream import Downstream
from kvorum.proxy.interface import status_of
from kvorum.proxy.routes import Routes

ChangeRequest = Callable[[bytes], bytes | Status]
"""Makes of a message what the member is to get; a status ends the stream."""
ChangeAnswer = Callable[[bytes], bytes]


def as_it_is(message: bytes) -> bytes:
    """Change nothing."""
    return message


class _Relay:
    """One stream; it listens to the member's side of it."""

    __slots__ = ("_forwarding", "answer", "call", "number", "request")

    def __init__(
        self, forwarding: "Forwarding", call: int, request: ChangeRequest, answer: ChangeAnswer
    ) -> None:
        self._forwarding = forwarding
        self.call = call
        self.request = request
        self.answer = answer
        self.number = 0
        """The stream to the member."""

    def message(self, data: bytes) -> None:
        self._forwarding.downstream.send(self.call, self.answer(data))

    def ended(self, end: End) -> None:
        self._forwarding.finished(self.call, end)

    def writable(self) -> None:
        """Do nothing: what clients send here is one short message."""

    def full(self) -> None:
        """Hold the member back."""
        self._forwarding.routes.pause(self.number)


class Forwarding:
    """The streams that are passed on."""

    def __init__(self, routes: Routes, downstream: Downstream) -> None:
        self.routes = routes
        self.downstream = downstream
        self._open: dict[int, _Relay] = {}

    def __contains__(self, call: object) -> bool:
        return call in self._open

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        call: int,
        path: str,
        metadata: Metadata | None,
        request: ChangeRequest = as_it_is,
        answer: ChangeAnswer = as_it_is,
    ) -> None:
        """Begin a stream; what is sent and answered may be changed on its way."""
        relay = self._open[call] = _Relay(self, call, request, answer)
        sent = () if metadata is None else tuple(metadata.items())
        relay.number = self.routes.stream(path, sent, relay)
        self.downstream.full[call] = relay.full

    def message(self, call: int, data: bytes) -> None:
        """Pass on what a client sent."""
        relay = self._open[call]
        request = relay.request(data)
        if isinstance(request, Status):
            self.ended(call)
            self.downstream.finish(call, request)
        else:
            self.routes.send(relay.number, request)

    def half_closed(self, call: int) -> None:
        """Tell the member that the client sends nothing more."""
        self.routes.half_close(self._open[call].number)

    def writable(self, call: int) -> None:
        """Let the member go on: the client has taken what was sent."""
        self.routes.resume(self._open[call].number)

    def ended(self, call: int) -> None:
        """Forget a stream: its client is gone."""
        relay = self._open.pop(call)
        self.downstream.full.pop(call, None)
        self.routes.cancel(relay.number)

    def finished(self, call: int, end: End) -> None:
        """End a client's stream as the member ended it."""
        del self._open[call]
        self.downstream.finish(call, status_of(end))

    def stop(self, status: Status) -> None:
        """End every stream: the proxy stops."""
        for call in list(self._open):
            self.ended(call)
            self.downstream.finish(call, status)
