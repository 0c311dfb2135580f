"""One connection to an endpoint without its socket: HTTP/2, inside TLS if the endpoint uses it."""

from typing import TYPE_CHECKING, Final

from kvorum.client.grpc.http2 import ForeignError
from kvorum.client.grpc.wire import Wire

if TYPE_CHECKING:
    import ssl

    from kvorum.client.grpc.tls import Tls

READ_BYTES: Final = 256 << 10
"""The most that one read takes from a socket."""


class LinkError(Exception):
    """The connection failed: TLS failed, or the server did not respond in time."""


class UnusableError(LinkError):
    """The endpoint cannot be used as configured, so a retry is useless."""


class Keepalive:
    """When a link pings a silent server, and when it gives the server up."""

    __slots__ = ("ping_seconds", "pings_without_calls", "pong_seconds_max")

    def __init__(
        self, ping_seconds: float, pong_seconds_max: float, *, pings_without_calls: bool = False
    ) -> None:
        self.ping_seconds: float = ping_seconds
        """How long no byte may arrive before a ping."""
        self.pong_seconds_max: float = pong_seconds_max
        """How long the answer to that ping may take."""
        self.pings_without_calls: bool = pings_without_calls
        """Whether to ping even if no call waits for the server."""


class Link:
    """The bytes of a connection: `receive` takes input, `take_output` returns output."""

    __slots__ = (
        "_keepalive",
        "_pinged_at",
        "_silent_since",
        "_tls",
        "is_leaving",
        "is_open",
        "is_unusable",
        "number",
        "open_deadline",
        "wire",
    )

    def __init__(self, number: int, wire: Wire, keepalive: Keepalive) -> None:
        self.number: int = number
        """The endpoint's number."""
        self.wire: Wire = wire
        self._keepalive = keepalive
        self.is_open: bool = True
        """Whether calls can be sent: without TLS at once, otherwise after the handshake."""
        self.open_deadline: float = float("inf")
        """The connection fails if it is not open by this moment."""
        self._silent_since: float | None = None
        """Since when calls have been waiting without a byte from the server."""
        self._pinged_at: float | None = None
        """When the client pinged the server, if no byte has arrived since."""
        self.is_leaving: bool = False
        """Whether the connection finishes its calls and takes no new ones."""
        self.is_unusable: bool = False
        """Whether the endpoint cannot be used as configured; it has then processed no call."""
        self._tls: Tls | None = None

    def secure(self, context: "ssl.SSLContext", server_name: str) -> None:
        """Put the connection inside TLS, before its first byte. Raises LinkError."""
        from kvorum.client.grpc import tls

        self._tls = tls.Tls(context, server_name)
        self.is_open = False

    def receive(self, data: bytes | memoryview) -> None:
        """Take bytes from the server. Raises LinkError or ProtocolError."""
        self.restart_silence()
        try:
            self._receive(data)
        except (ForeignError, UnusableError):
            self.is_unusable = True
            raise

    def end_reason(self) -> str:
        """Return the reason for the end of a connection that the server has just closed."""
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

    def restart_silence(self) -> None:
        """Count the server's silence from the next `wake_at` on."""
        self._silent_since = self._pinged_at = None

    def wake_at(self, now: float) -> float:
        """Return when to call `pass_time` next if no bytes arrive before."""
        if not self.is_open:
            return self.open_deadline
        keepalive = self._keepalive
        if not self.wire.calls_open and not keepalive.pings_without_calls:
            self.restart_silence()
            return float("inf")
        if self._silent_since is None:
            self._silent_since = now
        if self._pinged_at is None:
            return self._silent_since + keepalive.ping_seconds
        return self._pinged_at + keepalive.pong_seconds_max

    def pass_time(self, now: float) -> None:
        """Ping a silent server; raises LinkError if the pong or the TLS handshake is overdue."""
        if now < self.wake_at(now):
            return
        if not self.is_open:
            raise LinkError("the TLS handshake was not finished in time")
        if self._pinged_at is not None:
            raise LinkError("the server does not answer any more")
        self._pinged_at = now
        self.wire.connection.ping()

    @property
    def can_wait(self) -> bool:
        """Whether the output can wait for the next call: it holds at most answers to pings."""
        connection = self.wire.connection
        return self.is_open and not connection.output and not self.wire.calls_open

    def take_output(self) -> bytes:
        """Return the bytes to send now."""
        connection = self.wire.connection
        if self._tls is None:
            return connection.take_output()
        return self._tls.take_output(connection.take_output() if self.is_open else b"")
