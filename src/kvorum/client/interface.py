"""The seam between the client's core and its transport: sockets, or a simulated network.

Calls and endpoints have numbers. For each call the transport reports any number of messages and
then one end. After that end, or after the core has cancelled the call, it reports nothing more.
"""

from typing import Protocol

from kvorum.client.grpc.wire import Metadata


class ClientTransport(Protocol):
    """Carries calls to endpoints."""

    def connect(self, endpoint: int) -> None:
        """Start connecting; then call `Core.note_connected` or `Core.note_disconnected`."""

    def disconnect(self, endpoint: int) -> None:
        """Close a connection: its calls end as lost, but `Core.note_disconnected` is not called."""

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        """Start a call at a connected endpoint, with its first message."""

    def send(self, call: int, message: bytes) -> None:
        """Send another message on a call."""

    def cancel(self, call: int) -> None:
        """Cancel a call."""
