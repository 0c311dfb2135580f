"""HTTP requests to client endpoints, with the TLS settings of the global flags."""

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from kvorum.client.credentials import TlsOptions, contexts
from kvorum.client.endpoints import Address, parse_endpoint
from kvorum.tools.ctl.invocation import CtlInvocation

PAGE_BYTES_MAX = 16 << 20


class FetchedPage(NamedTuple):
    """An endpoint's answer."""

    text: str
    date: float | None
    """The time in the header Date, in whole Unix seconds; None without that header."""
    asked_at: float
    """This machine's time, in Unix seconds, before the request."""
    answered_at: float
    certificate: bytes | None
    """The server's certificate in DER; None without TLS."""


class Fetcher:
    """Fetches pages from endpoints."""

    def __init__(self, invocation: CtlInvocation, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._is_plain = invocation.switch("insecure-transport")
        self._options = TlsOptions(
            invocation.text("cacert"),
            invocation.text("cert"),
            invocation.text("key"),
            invocation.switch("insecure-skip-tls-verify"),
        )
        self._context = contexts(self._options)

    def get(self, endpoint: str, path: str) -> FetchedPage:
        """Fetch a page; raises OSError or HTTPException."""
        connection = _Connection(self._address(endpoint), self._context, self._seconds_max)
        try:
            asked_at = time.time()
            connection.request("GET", path, headers={"Accept": "text/plain"})
            certificate = _shown(connection.sock)
            response = connection.getresponse()
            answered_at = time.time()
            if response.status != 200:
                raise http.client.HTTPException(f"{path} answers {response.status}")
            text = response.read(PAGE_BYTES_MAX).decode("utf-8", "replace")
            date = _seconds(response.getheader("Date"))
            return FetchedPage(text, date, asked_at, answered_at, certificate)
        finally:
            connection.close()

    def certificate(self, endpoint: str) -> bytes | None:
        """Return an endpoint's certificate in DER without verifying it; None without TLS."""
        address = self._address(endpoint)
        if not address.is_secure:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = _Connection(address, lambda _: context, self._seconds_max)
        try:
            connection.connect()
            return _shown(connection.sock)
        finally:
            connection.close()

    def _address(self, endpoint: str) -> Address:
        address = parse_endpoint(endpoint)
        if address.is_secure is None:
            is_secure = self._options.is_given or not self._is_plain
            address = address._replace(is_secure=is_secure)
        return address


def _shown(connected: object) -> bytes | None:
    return connected.getpeercert(binary_form=True) if isinstance(connected, ssl.SSLSocket) else None


def _seconds(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


class _Connection(http.client.HTTPConnection):
    """HTTP/1.1 to an endpoint, over TCP or a Unix socket."""

    def __init__(
        self,
        address: Address,
        context: Callable[[Address], ssl.SSLContext | None],
        seconds_max: float,
    ) -> None:
        super().__init__(
            "localhost" if address.port is None else address.host, address.port, timeout=seconds_max
        )
        self._address = address
        self._context_of = context

    def connect(self) -> None:
        """Connect to a port or a Unix socket, with TLS if the endpoint uses it."""
        if self._address.port is None:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(self.timeout)
            made.connect(self._address.host)
        else:
            made = socket.create_connection((self.host, self.port), self.timeout)
        context = self._context_of(self._address)
        if context is not None:
            context.set_alpn_protocols(["http/1.1"])
            made = context.wrap_socket(made, server_hostname=self.host)
        self.sock = made
