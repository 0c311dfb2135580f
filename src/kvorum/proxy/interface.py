"""The seams of the proxy: the edge it answers through, and what its parts know of each other.

A part never waits. Whoever makes a call to a member hears of its end exactly once, unless they
cancel it, and never before the function that made it has returned.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import Metadata
from kvorum.edge.upstream import End
from kvorum.gateway.http import Output as HttpOutput
from kvorum.rpc.interface import Output as CallOutput

Answered: TypeAlias = Callable[[bytes | End], None]
"""Hears how a unary call to a member ended: with a message, or without."""


class ProxyEdge(CallOutput, HttpOutput, Protocol):
    """The part of `kvorum.edge.interface.Edge` that a proxy uses; it never polls."""

    def peer(self, call: int) -> str:
        """As `Edge.peer`."""

    def drain(self) -> None:
        """As `Edge.drain`."""

    def is_quiet(self) -> bool:
        """As `Edge.is_quiet`."""

    def is_drained(self) -> bool:
        """As `Edge.is_drained`."""


class StreamListener(Protocol):
    """Hears of one stream to a member; it may send on it, or cancel it, while it is told."""

    def message(self, data: bytes) -> None:
        """Take a message."""

    def ended(self, end: End) -> None:
        """Take its end; nothing follows."""

    def writable(self) -> None:
        """Go on sending: what is on its way has become little."""


class WatchService(Protocol):
    """Serves the Watch streams of clients. A call is the edge's number of such a stream."""

    def __contains__(self, call: object) -> bool:
        """Return whether a stream is open here."""

    def open(self, call: int, metadata: Metadata | None, now: float) -> None:
        """Begin a stream."""

    def message(self, call: int, data: bytes, now: float) -> None:
        """Take a request of a client; whatever it raises ends this stream with INTERNAL."""

    def half_closed(self, call: int) -> None:
        """Note that the client asks for nothing more."""

    def ended(self, call: int) -> None:
        """Forget a stream: its client is gone. Not called after the service has finished it."""

    def writable(self, call: int) -> None:
        """Go on with a stream whose client has taken what was sent."""

    def stop(self, status: Status) -> None:
        """End every stream with a status: the proxy stops."""

    def flush(self) -> None:
        """Send what was gathered; called once at the end of each turn, before calls leave."""

    def pass_time(self, now: float) -> float:
        """Do what is due; return when something will be due next."""


class Logger(Protocol):
    """Takes lines with named fields, as `kvorum.telemetry.logs.Logger` does."""

    def debug(self, message: str, /, **fields: object) -> None:
        """Take a line that only a developer wants."""

    def info(self, message: str, /, **fields: object) -> None:
        """Take a line about a change of state."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Take a line about something that needs attention."""

    def error(self, message: str, /, **fields: object) -> None:
        """Take a line about something that went wrong."""

    def critical(self, message: str, /, **fields: object) -> None:
        """Take a last line."""


def status_of(end: End) -> Status:
    """Return the status of a call that ended so, as its caller is to get it."""
    code, text, _ = end
    try:
        return Status(Code(code), text)
    except ValueError:
        return Status(Code.UNKNOWN, text)
