"""One connection to an endpoint without its socket: HTTP/2, in TLS where that is spoken."""

from typing import TYPE_CHECKING, Final

from kvorum.client.endpoints import Address
from kvorum.client.http2 import ForeignError
from kvorum.client.interface import Calls
from kvorum.client.wire import Wire

if TYPE_CHECKING:
    import ssl

    from kvorum.client.tls import Tls

AGENT: Final = "kvorum-client"
SILENT_SECONDS: Final = 6.0
"""After so long without a byte the server is asked whether it is there, if a call waits for it.

Servers of etcd take it amiss if they are asked more often than every five seconds.
"""
PONG_SECONDS_MAX: Final = 5.0
"""How long it may take to answer that."""
READ_BYTES: Final = 256 << 10
"""How much is read from a socket at once."""


class LinkError(Exception):
    """The connection cannot be used: the other side does not speak as it should."""


class UnusableError(LinkError):
    """The endpoint cannot be used as it was given, and it would be no better to ask again."""


class Link:
    """The bytes of a connection: `receive` takes what came, `take_output` gives what to send."""

    __slots__ = (
        "_asked_at",
        "_silent_since",
        "_tls",
        "is_leaving",
        "is_open",
        "is_unusable",
        "number",
        "opens_until",
        "wire",
    )

    def __init__(
        self, number: int, address: Address, calls: Calls, context: "ssl.SSLContext | None"
    ) -> None:
        self.number: int = number
        """The endpoint's."""
        self.wire: Wire = Wire(calls, address.authority, is_secure=context is not None, agent=AGENT)
        self.is_open: bool = context is None
        """Whether calls can be sent: without TLS at once, otherwise after the handshake."""
        self.opens_until: float = float("inf")
        """When that must have come, or the connection is given up."""
        self._silent_since: float | None = None
        """Since when calls wait and nothing came."""
        self._asked_at: float | None = None
        """When the server was asked whether it is there, if nothing came since."""
        self.is_leaving: bool = False
        """Whether only calls that have begun are finished here."""
        self.is_unusable: bool = False
        """Whether the endpoint cannot be used as it was given; then it has looked at no call."""
        self._tls: Tls | None = None
        if context is not None:
            from kvorum.client import tls

            self._tls = tls.Tls(context, _server_name(address))

    def receive(self, data: bytes | memoryview) -> None:
        """Take bytes of the other side. Raises LinkError or ProtocolError."""
        self._silent_since = self._asked_at = None
        try:
            self._receive(data)
        except (ForeignError, UnusableError):
            self.is_unusable = True
            raise

    def end_reason(self) -> str:
        """Return why the connection has ended, if the server has just closed it."""
        closed = "the server closed the connection"
        if not self.is_open:
            return (
                f"{closed} during the TLS handshake; if the port speaks no TLS, write the endpoint "
                "with http://"
            )
        if self._tls is None and not self.wire.connection.has_settings:
            return (
                f"{closed} without a word; if the port speaks TLS, write the endpoint with https://"
            )
        return closed

    def _receive(self, data: bytes | memoryview) -> None:
        if self._tls is None:
            self.wire.receive(data)
            return
        for plain in self._tls.receive(data):
            self.wire.receive(plain)
        self.is_open = self._tls.is_open

    def wake_at(self, now: float) -> float:
        """Return when there is something to do even if nothing comes before."""
        if not self.is_open:
            return self.opens_until
        if not self.wire.calls_open:
            self._silent_since = self._asked_at = None
            return float("inf")
        if self._silent_since is None:
            self._silent_since = now
        if self._asked_at is None:
            return self._silent_since + SILENT_SECONDS
        return self._asked_at + PONG_SECONDS_MAX

    def pass_time(self, now: float) -> None:
        """Ask a silent server whether it is there; raises LinkError if it is not."""
        if now < self.wake_at(now):
            return
        if not self.is_open:
            raise LinkError("the TLS handshake was not finished in time")
        if self._asked_at is not None:
            raise LinkError("the server does not answer any more")
        self._asked_at = now
        self.wire.connection.ping()

    @property
    def can_wait(self) -> bool:
        """Whether nothing is lost if what is to be sent goes out with the next call."""
        connection = self.wire.connection
        return self.is_open and not connection.output and not self.wire.calls_open

    def take_output(self) -> bytes:
        """Return what is to be sent now."""
        connection = self.wire.connection
        if self._tls is None:
            return connection.take_output()
        return self._tls.take_output(connection.take_output() if self.is_open else b"")


def _server_name(address: Address) -> str:
    if address.port is None:
        return address.host.rpartition("/")[2]
    return address.host
