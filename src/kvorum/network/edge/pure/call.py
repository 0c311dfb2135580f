"""One RPC or HTTP request, as plain data."""

from enum import IntEnum

from kvorum.network.edge.interface import Metadata
from kvorum.network.edge.pure.grpc import MessageParser


class CallKind(IntEnum):
    """Kinds of calls, which `poll` reports and the loop answers in different ways."""

    UNARY = 1
    STREAMING = 2
    HTTP = 3


class EdgeCall:
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
        """Time at which the edge answers DEADLINE_EXCEEDED; 0: never."""

        # The client's side.
        self.parser: MessageParser | None = None
        self.partial_bytes = 0
        """Bytes of an incomplete message, as counted in the connection's total."""
        self.payload: bytes | None = None
        """A unary call's message, once it is complete."""
        self.request_bytes = 0
        """The cost of a unary call's message and metadata while they wait for `poll`."""
        self.queued_messages = 0
        """Messages that wait for `poll`."""
        self.half_closed = False
        """Whether the client has half-closed while a compressed message still waits."""
        self.is_paused = False
        """Whether the loop has paused a plain HTTP request's body."""
        self.unacknowledged = 0
        """Bytes of an incomplete message, or of a paused body, not yet returned to the client's
        flow-control window."""
        self.credit = 0
        """Bytes of queued messages returned to the window before they were polled."""

        # The loop's side.
        self.announced = False
        """Whether the loop has polled this call; if not, it needs no ENDED."""
        self.waiting = False
        """Whether the loop requested ENDED for this unary call with `mark_waiting`."""

        # The answer.
        self.started = False
        """Whether the response's headers were sent."""
        self.head_only = False
        """Whether the response has no body, whatever its headers say (a HEAD request)."""
        self.outgoing = bytearray()
        """Body bytes that wait for room in the client's windows or the socket."""
        self.writable_owed = False
        self.finished = False
        """Whether the loop has finished the call."""
        self.ending: list[tuple[bytes, bytes]] | None = None
        """The trailers that follow the outgoing bytes, once the call is finished."""
        self.ended = False
