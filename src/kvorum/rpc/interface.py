"""What the services have in common: how they answer, and what they need of the edge.

A unary call is a function of its number, its caller and its payload. It returns the answer, or None
if the member answers later; a payload that cannot be decoded raises DecodeError. A stream is an
object that is told what happens to it. Headers are put in front of an encoded response as they are:
a message's bytes are its fields' bytes, one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import Message

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import Headers, Limits
from kvorum.edge.subject import subject_of
from kvorum.member.callers import Caller
from kvorum.member.outbox import Result

STREAM_PENDING_BYTES_MAX = Limits().stream_writable_bytes
"""A stream with so many bytes not yet sent is held back; the edge says when it has fewer."""

OK = Status(Code.OK, "")
"""What the procedure of a stream returns at its end; None if the stream outlives it."""

Unary = Callable[[int, Caller, bytes], Result | None]


class Output(Protocol):
    """The part of the edge that answers go to; see `kvorum.edge.interface.Edge`."""

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes of a stream are on their way."""

    def mark_waiting(self, call: int) -> None:
        """Ask to be told if a unary call ends before its reply."""


class Connections(Protocol):
    """The part of the edge that knows its clients."""

    def peer(self, call: int) -> str:
        """As `Edge.peer`."""

    def peer_certificate(self, call: int) -> bytes | None:
        """As `Edge.peer_certificate`."""


class Clients:
    """Where the calls of an edge come from: the origin of its callers."""

    def __init__(self, edge: Connections) -> None:
        self._edge = edge

    def remote(self, call: int) -> str:
        """Return the client's address."""
        return self._edge.peer(call)

    def certificate_name(self, call: int) -> str:
        """Return the common name in the client's certificate; empty if there is none."""
        certificate = self._edge.peer_certificate(call)
        try:
            return "" if certificate is None else subject_of(certificate).common_name
        except ValueError:
            return ""


class Streams(Protocol):
    """All streams of one method."""

    def opened(self, call: int) -> None:
        """Begin a stream."""

    def received(self, call: int, caller: Caller, payload: bytes) -> Status | None:
        """Take a message; a status ends the stream. Raises DecodeError if it cannot be decoded."""

    def half_closed(self, call: int) -> Status | None:
        """Note that the client sends nothing more; a status ends the stream."""

    def ended(self, call: int) -> None:
        """Forget a stream: its client is gone, or it was finished. Called once."""

    def full(self, call: int) -> None:
        """Send less: the client does not take what was sent."""

    def writable(self, call: int) -> None:
        """Go on with a stream that was held back."""


def canonical(message: Message) -> bytes:
    """Return the bytes of a message as every member reads them: without unknown fields."""
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)
