"""The interfaces between the services and the edge.

A unary handler is a function of the call's number, its caller and its payload. It returns the
answer, or None if the member answers later; it raises DecodeError if it cannot decode the payload.
A stream handler is an object that receives the stream's events. Services concatenate an encoded
header and an encoded response: a message's bytes are its fields' bytes, one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import Message

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import Headers, Limits
from kvorum.network.edge.subject import subject_of
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.results import Result

STREAM_PENDING_BYTES_MAX = Limits().stream_writable_bytes
"""Services pause a stream with this many unsent bytes; the edge reports WRITABLE below it."""

OK = Status(Code.OK, "")
"""The status that ends a stream; its procedure returns None if the stream stays open."""

Unary = Callable[[int, Caller, bytes], Result | None]


class RpcOutput(Protocol):
    """The part of the edge that takes answers; see `kvorum.network.edge.interface.Edge`."""

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages on streams."""

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream."""

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes of a stream the edge has yet to send."""

    def mark_waiting(self, call: int) -> None:
        """Ask the edge to report ENDED if a unary call ends before its reply."""


class Connections(Protocol):
    """The part of the edge that describes client connections."""

    def peer(self, call: int) -> str:
        """As `Edge.peer`."""

    def peer_certificate(self, call: int) -> bytes | None:
        """As `Edge.peer_certificate`."""


class Clients:
    """Looks up the addresses and certificates of an edge's clients; an `Origin` for callers."""

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

    def open_stream(self, call: int) -> None:
        """Open a stream."""

    def take_message(self, call: int, caller: Caller, payload: bytes) -> Status | None:
        """Take a message; a returned status ends the stream. May raise DecodeError."""

    def take_half_close(self, call: int) -> Status | None:
        """Note that the client sends nothing more; a returned status ends the stream."""

    def end_stream(self, call: int) -> None:
        """Forget a stream whose client is gone or that was finished; called once per stream."""

    def pause_stream(self, call: int) -> None:
        """Pause a stream whose client reads more slowly than the service sends."""

    def resume_stream(self, call: int) -> None:
        """Resume a paused stream."""


def canonical(message: Message) -> bytes:
    """Encode a message so that every member decodes the same: without unknown fields."""
    message.DiscardUnknownFields()
    return message.SerializeToString(deterministic=True)
