"""The seams of the proxy: its edge, and the interfaces between its parts.

No part blocks. A call to a member reports its end exactly once, unless its caller cancels it, and
never before the function that made the call has returned.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from kvorum.api.errors import Code, Status
from kvorum.network.edge.upstream import End
from kvorum.server.http.http import HttpOutput as HttpOutput
from kvorum.server.rpc.interface import RpcOutput as CallOutput

OnAnswer: TypeAlias = Callable[[bytes | End], None]
"""Called with the answer to a unary call, or with the `End` of one that has none."""


class ProxyEdge(CallOutput, HttpOutput, Protocol):
    """The part of `kvorum.network.edge.interface.Edge` that a proxy uses; it never polls."""

    def peer(self, call: int) -> str:
        """As `Edge.peer`."""

    def drain(self) -> None:
        """As `Edge.drain`."""

    def is_quiet(self) -> bool:
        """As `Edge.is_quiet`."""

    def is_drained(self) -> bool:
        """As `Edge.is_drained`."""


class StreamListener(Protocol):
    """Receives the events of one stream to a member; it may send or cancel while handling one."""

    def take_message(self, data: bytes) -> None:
        """Process a message."""

    def take_end(self, end: End) -> None:
        """Process the stream's end; no event follows."""

    def take_writable(self) -> None:
        """Continue sending: the stream's pending bytes have become few."""


class Logger(Protocol):
    """Writes lines with named fields, as `kvorum.server.telemetry.logs.Logger` does."""

    def debug(self, message: str, /, **fields: object) -> None:
        """Log a line for developers."""

    def info(self, message: str, /, **fields: object) -> None:
        """Log a change of state."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a condition that needs attention."""

    def error(self, message: str, /, **fields: object) -> None:
        """Log a failure."""

    def critical(self, message: str, /, **fields: object) -> None:
        """Log the last line before the process ends."""


def status_of(end: End) -> Status:
    """Return the status that a client gets for an end reported by the upstream."""
    code, text, _ = end
    try:
        return Status(Code(code), text)
    except ValueError:
        return Status(Code.UNKNOWN, text)
