"""The seam between the client's core and its transport: sockets, or a simulated network.

Calls and endpoints have numbers. For each call the transport reports any number of messages and
then one end. After that end, or after the core has cancelled the call, it reports nothing more.
"""

from typing import NamedTuple, Protocol

Metadata = tuple[tuple[str, str], ...]


class End(NamedTuple):
    """How a call ended: gRPC's code and text."""

    code: int
    text: str
    is_unprocessed: bool = False
    """Whether the server did not process the call, so that even a write can be sent again."""


class ClientTransport(Protocol):
    """Carries calls to endpoints."""

    def connect(self, endpoint: int) -> None:
        """Start connecting; the transport then calls `Core.connected` or `Core.disconnected`."""

    def disconnect(self, endpoint: int) -> None:
        """Close a connection: its calls end as lost, but `Core.disconnected` is not called."""

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        """Start a call at a connected endpoint, with its first message."""

    def send(self, call: int, message: bytes) -> None:
        """Send another message on a call."""

    def cancel(self, call: int) -> None:
        """Cancel a call."""


class Calls(Protocol):
    """Receives the messages and ends of calls."""

    def take_message(self, call: int, message: bytes) -> None:
        """Take a message from the server."""

    def take_end(self, call: int, end: End) -> None:
        """Take the end of a call."""
