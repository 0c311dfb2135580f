"""One RPC or HTTP request, as plain data."""

from enum import IntEnum

from kvorum.edge.interface import Metadata
from kvorum.edge.pure.grpc import MessageParser


class CallKind(IntEnum):
    """How a call is handed out and answered."""

    UNARY = 1
    STREAMING = 2
    HTTP = 3


class Call:
    """A call's state on both sides."""

    __slots__ = (
        "announced",
        "credit",
        "deadline",
        "ended",
        "ending",
        "finished",
        "half_closed",
        "head_only",
        "is_paused",
        "kind",
        "metadata",
        "method",
        "number",
        "opened",
        "outgoing",
        "parser",
        "partial_bytes",
        "payload",
        "queued_messages",
        "request_bytes",
        "started",
        "stream",
        "unacknowledged",
        "waiting",
        "writable_owed",
    )

    def __init__(self, number: int, kind: CallKind, method: int, opened: float) -> None:
        self.number = number
        self.stream = number & 0xFFFFFFFF
        self.kind = kind
        self.method = method
        self.opened = opened
        self.metadata: Metadata | None = None
        self.deadline = 0.0
        """When it is to be answered DEADLINE_EXCEEDED; 0 is never."""

        # What the client sends.
        self.parser: MessageParser | None = None
        self.partial_bytes = 0
        """Bytes of an incomplete message, counted by the connection."""
        self.payload: bytes | None = None
        """A unary call's message, once it is complete."""
        self.request_bytes = 0
        """The cost of a unary call's message and metadata while they wait for `poll`."""
        self.queued_messages = 0
        """Messages that wait for `poll`."""
        self.half_closed = False
        """Whether the client has half-closed, but a compressed message still waits before that."""
        self.is_paused = False
        """Whether the loop wants no more of a plain HTTP request's body for now."""
        self.unacknowledged = 0
        """Bytes of an incomplete message, or of a paused body, that were not yet given back to the
        client's window."""
        self.credit = 0
        """Bytes of queued messages that were given back before they were polled."""

        # What the loop knows and wants.
        self.announced = False
        """Whether the loop knows this call. If not, it need not be told of its end."""
        self.waiting = False
        """Whether the loop wants to be told when this unary call has ended."""

        # What the client gets.
        self.started = False
        """Whether the response's headers are sent."""
        self.head_only = False
        """Whether the response has no body, whatever its headers say (a HEAD request)."""
        self.outgoing = bytearray()
        """Body bytes for which the client's windows or the socket have no room yet."""
        self.writable_owed = False
        self.finished = False
        """Whether the loop has finished the call."""
        self.ending: list[tuple[bytes, bytes]] | None = None
        """The trailers that follow the outgoing bytes, once the call is finished."""
        self.ended = False
