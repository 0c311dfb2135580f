"""The seam between the client's core and what carries its calls: sockets, or a simulated network.

The core speaks of calls by number and of endpoints by number. It hears of each call any number of
messages, then one end; after an end, and after it has cancelled a call, it hears no more of it.
"""

from typing import NamedTuple, Protocol

Metadata = tuple[tuple[str, str], ...]


class End(NamedTuple):
    """How a call ended: gRPC's code and text."""

    code: int
    text: str
    is_unprocessed: bool = False
    """Whether the server never looked at it, so that even a write can be sent again."""


class Transport(Protocol):
    """What carries calls to endpoints."""

    def connect(self, endpoint: int) -> None:
        """Begin to connect; `Core.connected` or `Core.disconnected` tells how that ended."""

    def disconnect(self, endpoint: int) -> None:
        """Give a connection up; its calls end as when it is lost, nothing else is told."""

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        """Begin a call at an endpoint that is connected, with its first message."""

    def send(self, call: int, message: bytes) -> None:
        """Send a message more."""

    def cancel(self, call: int) -> None:
        """Break a call off."""


class Calls(Protocol):
    """What hears of calls."""

    def take_message(self, call: int, message: bytes) -> None:
        """Take a message of the server's."""

    def take_end(self, call: int, end: End) -> None:
        """Take the end of a call."""
