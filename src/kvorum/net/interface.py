"""The seam to other members: who sends requests to them, and what is told of each."""

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
    """It broke off, or never came about. Detail: the reason in words. Nothing follows."""
    WRITABLE = 5
    """What was sent of the request's body has fallen below `WRITABLE_BYTES`. Detail: None."""


class DialEvent(NamedTuple):
    """An event of a request, under the number that `Dialer.request` returned."""

    kind: int
    number: int
    detail: Any


WRITABLE_BYTES = 256 * 1024
"""A request's body with fewer bytes on their way takes more."""


class Dialer(Protocol):
    """Sends HTTP/1.1 requests to other members, each on a connection of its own while it lasts."""

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        """Begin a request to `scheme://host:port`; return its number.

        With body None, `send` and `finish` follow. Whatever goes wrong is told as FAILED, by
        a later `poll`.
        """

    def send(self, number: int, piece: bytes) -> None:
        """Send a piece of a request's body."""

    def finish(self, number: int) -> None:
        """End a request's body."""

    def pending_bytes(self, number: int) -> int:
        """Return how many bytes were sent and not yet taken by the network."""

    def cancel(self, number: int) -> None:
        """Give a request up; nothing is told of it any more."""

    def poll(self) -> list[DialEvent]:
        """Take what happened, in order."""
