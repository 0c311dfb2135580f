"""What traces calls, as far as the server knows it."""

from collections.abc import Sequence
from typing import Protocol

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import Metadata, Request


class Tracing(Protocol):
    """Is told of every call's beginning and end; most calls are not traced."""

    def begin(self, requests: Sequence[Request], now: float) -> None:
        """Take unary calls that arrived."""

    def replied(self, batch: Sequence[tuple[int, bytes | Status]], is_delivered: bool) -> None:
        """Take answers to unary calls; `is_delivered` says that the member made them."""

    def opened(self, call: int, method: int, metadata: Metadata | None) -> None:
        """Take a stream that begins."""

    def received(self, call: int, message: bytes) -> None:
        """Take a message of a stream's client."""

    def sent(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Take messages to streams' clients."""

    def ended(self, call: int, code: Code, text: str) -> None:
        """Take the end of a stream, or of a unary call whose client went away."""
