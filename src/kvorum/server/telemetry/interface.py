"""The interface through which the server reports calls to tracing."""

from collections.abc import Sequence
from typing import Protocol

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import Metadata, Request


class Tracing(Protocol):
    """Receives the beginning and end of every call; most calls are not traced."""

    def note_calls(self, requests: Sequence[Request], now: float) -> None:
        """Report unary calls that arrived."""

    def note_replies(self, batch: Sequence[tuple[int, bytes | Status]], is_delivered: bool) -> None:
        """Report answers to unary calls; `is_delivered`: the member made the answers."""

    def note_stream(self, call: int, method: int, metadata: Metadata | None) -> None:
        """Report a stream that begins."""

    def note_message(self, call: int, message: bytes) -> None:
        """Report a message from a stream's client."""

    def note_sent(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Report messages to streams' clients."""

    def note_end(self, call: int, code: Code, text: str) -> None:
        """Report the end of a stream, or of a unary call whose client left."""
