"""The seam to other members: requests to them, and the events of each."""

from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from kvorum.edge.interface import Headers


class DialEventKind(IntEnum):
    """What happened to a request that was sent to another member."""

    RESPONDED = 1
    """The head of the answer. Detail: (status, headers with lower-case names)."""
    PIECE = 2
    """A piece of the answer's body. Detail: its bytes."""
    COMPLETED = 3
    """The answer is complete. Detail: None. Nothing follows."""
    FAILED = 4
    """The answer broke off, or there was none. Detail: the reason in words. Nothing follows."""
    WRITABLE = 5
    """The pending bytes of the request's body fell below `WRITABLE_BYTES`. Detail: None."""
    REFUSED = 6
    """As FAILED: the connection was refused, because nobody listens at that address."""


FAILURES = frozenset((DialEventKind.FAILED, DialEventKind.REFUSED))
"""The last event of a request that was not answered, or not completely."""


class DialEvent(NamedTuple):
    """An event of a request, under the number that `Dialer.request` returned."""

    kind: int
    number: int
    detail: Any


WRITABLE_BYTES = 256 * 1024
"""A request's body may be sent more while fewer bytes than this are pending."""


class Dialer(Protocol):
    """Sends HTTP/1.1 requests to other members, each on a connection of its own while it lasts."""

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        """Begin a request to `scheme://host:port`; return its number.

        With body None, `send` and `finish` follow. Whatever goes wrong is reported as FAILED, by a
        later `poll`.
        """

    def send(self, number: int, piece: bytes) -> None:
        """Send a piece of a request's body."""

    def finish(self, number: int) -> None:
        """End a request's body."""

    def pending_bytes(self, number: int) -> int:
        """Return how many bytes were sent and have not yet left."""

    def knock(self, number: int) -> int:
        """Ask the host that carries a request whether it is there; return the number of this knock.

        A connection is made to the same address and closed, and nothing is sent: a host answers
        whatever its processes do. The one event is COMPLETED, REFUSED or FAILED.
        """

    def cancel(self, number: int) -> None:
        """Give up a request; it has no more events."""

    def poll(self) -> list[DialEvent]:
        """Take the events, in order."""
