"""The seams of a server: the edge, the exchange with other members, and the logger."""

from collections.abc import Container, Iterable
from typing import Protocol

from kvorum.network.dialer.interface import DialEvent
from kvorum.network.edge.interface import Headers
from kvorum.server.http.calls import GatewayOutput
from kvorum.server.http.http import HttpOutput as HttpOutput
from kvorum.server.rpc.interface import Connections


class ServerEdge(GatewayOutput, HttpOutput, Connections, Protocol):
    """The part of `kvorum.network.edge.interface.Edge` that a server uses; it never polls."""

    def has_room(self, call: int, is_long: bool = False) -> bool:
        """As `Edge.has_room`."""

    def drain(self) -> None:
        """As `Edge.drain`."""

    def is_quiet(self) -> bool:
        """As `Edge.is_quiet`."""

    def is_drained(self) -> bool:
        """As `Edge.is_drained`."""


class Peers(Protocol):
    """Carries messages from the member to others, and from them to the member."""

    @property
    def open(self) -> Container[int]:
        """The open calls of the peer port."""

    @property
    def foreign_cluster(self) -> int:
        """A foreign cluster's id if every other member reports a foreign one; else 0."""

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """Take a request from another member."""

    def handle(self, kind: int, call: int, detail: object, now: float) -> None:
        """Take an event of an open request."""

    def take_dialed(self, events: Iterable[DialEvent], now: float) -> None:
        """Take the dialer's events about requests to other members."""

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""

    def deliver(self, now: float) -> None:
        """Send the member's messages; called after each of the member's turns."""

    def stop(self) -> None:
        """End every stream and request, and discard what the member sends afterwards."""


class Logger(Protocol):
    """Takes lines with named fields, as `kvorum.server.telemetry.logs.Logger` does."""

    def info(self, message: str, /, **fields: object) -> None:
        """Log a change of state."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a condition that needs attention."""
