"""One connection to an endpoint without its socket: HTTP/2, in TLS where that is spoken."""

import ssl
from typing import Final

from kvorum.client.endpoints import Address
from kvorum.client.interface import Calls
from kvorum.client.wire import Wire

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


class Link:
    """The bytes of a connection: `receive` takes what came, `take_output` gives what to send."""

    __slots__ = (
        "_asked_at",
        "_incoming",
        "_outgoing",
        "_silent_since",
        "_tls",
        "is_leaving",
        "is_open",
        "number",
        "opens_until",
        "wire",
    )

    def __init__(
        self, number: int, address: Address, calls: Calls, context: ssl.SSLContext | None
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
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(
                self._incoming, self._outgoing, server_hostname=_server_name(address)
            )
            self._shake_hands()

    def receive(self, data: bytes) -> None:
        """Take bytes of the other side. Raises LinkError or ProtocolError."""
        self._silent_since = self._asked_at = None
        if self._tls is None:
            self.wire.receive(data)
            return
        self._incoming.write(data)
        if not self.is_open and not self._shake_hands():
            return
        try:
            while plain := self._tls.read(READ_BYTES):
                self.wire.receive(plain)
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise LinkError(f"TLS failed: {_reason(error)}") from error

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

    def take_output(self) -> bytes:
        """Return what is to be sent now."""
        output = self.wire.connection.output
        if self._tls is None:
            data = bytes(output)
            output.clear()
            return data
        if self.is_open and output:
            # A write to memory takes everything at once.
            self._tls.write(output)
            output.clear()
        return self._outgoing.read()

    def _shake_hands(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise LinkError(f"the TLS handshake failed: {_reason(error)}") from error
        if self._tls.selected_alpn_protocol() not in ("h2", None):
            raise LinkError("the server does not speak HTTP/2 over TLS")
        self.is_open = True
        return True


def _server_name(address: Address) -> str:
    if address.port is None:
        return address.host.rpartition("/")[2]
    return address.host


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
