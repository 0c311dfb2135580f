"""The seams of a server: the edge it answers through, and its way to the other members."""

from collections.abc import Container, Iterable
from typing import Protocol

from kvorum.edge.interface import Headers
from kvorum.gateway.calls import GatewayOutput
from kvorum.gateway.http import Output as HttpOutput
from kvorum.net.interface import DialEvent
from kvorum.rpc.interface import Connections


class ServerEdge(GatewayOutput, HttpOutput, Connections, Protocol):
    """The part of `kvorum.edge.interface.Edge` that a server uses; it never polls."""

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
        """The calls of the peer port that have not ended."""

    @property
    def foreign_cluster(self) -> int:
        """The other cluster that every other member says it belongs to; 0 if one does not."""

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """Take a request from another member."""

    def handle(self, kind: int, call: int, detail: object, now: float) -> None:
        """Take an event of a request that has not ended."""

    def take_dialed(self, events: Iterable[DialEvent], now: float) -> None:
        """Take what the dialer reports about requests to other members."""

    def pass_time(self, now: float) -> float:
        """Do what is due; return when something will be due next."""

    def deliver(self, now: float) -> None:
        """Send the member's messages; called after each of its turns."""

    def stop(self) -> None:
        """End every stream and request; what the member sends afterwards is lost."""


class Logger(Protocol):
    """Takes lines with named fields, as `kvorum.telemetry.logs.Logger` does."""

    def info(self, message: str, /, **fields: object) -> None:
        """Take a line about a change of state."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Take a line about something that needs attention."""
