"""The seam to other members: requests to them, and the events of each request."""

from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from kvorum.network.edge.interface import Headers


class DialEventKind(IntEnum):
    """Kinds of events of a request to another member."""

    RESPONDED = 1
    """The head of the answer. Detail: (status, headers with lower-case names)."""
    PIECE = 2
    """A piece of the answer's body. Detail: its bytes."""
    COMPLETED = 3
    """The answer is complete. Detail: None. This is the last event."""
    FAILED = 4
    """The answer broke off or never came. Detail: the reason as text. This is the last event."""
    WRITABLE = 5
    """The pending bytes of the request's body fell below `WRITABLE_BYTES`. Detail: None."""
    REFUSED = 6
    """As FAILED, where the host refused the connection: no process listens at the address."""


FAILURES = frozenset((DialEventKind.FAILED, DialEventKind.REFUSED))
"""Kinds of last events that mean no complete answer."""


class DialEvent(NamedTuple):
    """An event of a request, under the number that `Dialer.request` returned."""

    kind: int
    number: int
    detail: Any


WRITABLE_BYTES = 256 * 1024
"""Pending bytes of a request's body below which the caller may send more."""


class Dialer(Protocol):
    """Sends HTTP/1.1 requests to other members; a connection carries one request at a time."""

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        """Start a request to `scheme://host:port`; return its number.

        With body None, `send` and `finish` follow. A later `poll` reports every failure.
        """

    def send(self, number: int, piece: bytes) -> None:
        """Send a piece of a request's body."""

    def finish(self, number: int) -> None:
        """End a request's body."""

    def pending_bytes(self, number: int) -> int:
        """Return the number of bytes queued that have not left yet."""

    def probe_host(self, number: int) -> int:
        """Probe the host at the other end of a request's connection; return the probe's number.

        The probe opens and closes a connection to the same address and sends nothing, so the
        host's kernel answers whatever its processes do. Its only event is COMPLETED, REFUSED or
        FAILED.
        """

    def cancel(self, number: int) -> None:
        """Cancel a request; no event of it follows."""

    def poll(self) -> list[DialEvent]:
        """Take the events, in order."""
