"""One non-blocking connection to a server: name lookup, connect, TLS, HTTP/2, close.

A connection tries the addresses of a name in turn; each has an equal share of the time left. TLS,
if set, and HTTP/2's SETTINGS follow. Every failure raises `DialError`, after which the owner closes
the connection.
"""

import errno
import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from kvorum.client.grpc.http2 import ProtocolError
from kvorum.client.grpc.link import READ_BYTES, Keepalive, Link, LinkError
from kvorum.client.grpc.trust import server_context
from kvorum.client.grpc.wire import Calls, Wire
from kvorum.network.edge.contexts import load_identity
from kvorum.network.edge.upstream import UpstreamSettings, UpstreamTls
from kvorum.storage.platform.readiness import READABLE, WRITABLE, make_pipe

AGENT: Final = "kvorum-upstream"
NEVER: Final = float("inf")
OUTPUT_BYTES_MAX: Final = 64 * 1024
"""Bytes waiting for the socket from which on no further output is taken from HTTP/2."""

Addresses = Sequence[tuple[int, Any]]
"""Socket families and addresses."""


class DialError(Exception):
    """The connection to the server could not be made, or is lost."""


class ThreadedLookups:
    """Resolves names in threads; a descriptor becomes readable when a result is there."""

    __slots__ = ("_found", "_reading", "_threads", "_writing")

    def __init__(self) -> None:
        self._reading, self._writing = make_pipe()
        self._found: deque[tuple[int, Addresses | OSError]] = deque()
        self._threads: list[threading.Thread] = []

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._reading

    def ask(self, number: int, host: str, port: int) -> None:
        """Start a thread that resolves a name."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._look_up, args=(number, host, port), daemon=True)
        self._threads.append(thread)
        thread.start()

    def take(self) -> list[tuple[int, Addresses | OSError]]:
        """Take finished lookups as (number given to `ask`, addresses or error)."""
        taken = []
        while self._found:
            try:
                # One byte for each result.
                os.read(self._reading, 1)
            except BlockingIOError:
                # The thread has not written it yet.
                break
            taken.append(self._found.popleft())
        return taken

    def close(self) -> None:
        """Wait for the threads, and close the descriptor."""
        for thread in self._threads:
            thread.join()
        os.close(self._reading)
        os.close(self._writing)

    def _look_up(self, number: int, host: str, port: int) -> None:
        try:
            found: Addresses | OSError = addresses_of(host, port)
        except OSError as error:
            found = error
        self._found.append((number, found))
        os.write(self._writing, b"\0")


def addresses_of(host: str, port: int, flags: int = 0) -> Addresses:
    """Return the addresses of a host; with `AI_NUMERICHOST`, resolve no names."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]


class Dialed:
    """A connection to an endpoint. Its owner watches the socket for the events in `mask`."""

    __slots__ = (
        "_address",
        "_addresses",
        "_context",
        "_deadline",
        "_next_until",
        "_output",
        "_settings",
        "_tls_settings",
        "bytes_read",
        "bytes_written",
        "endpoint",
        "is_connected",
        "is_held",
        "is_open",
        "link",
        "mask",
        "queued_bytes",
        "socket",
        "timer_at",
        "wire",
    )

    def __init__(
        self,
        endpoint: int,
        address: str,
        authority: str,
        tls: UpstreamTls | None,
        settings: UpstreamSettings,
        calls: Calls,
        now: float,
    ) -> None:
        self.endpoint = endpoint
        self.wire = Wire(
            calls,
            authority,
            is_secure=tls is not None,
            agent=AGENT,
            message_bytes_max=settings.message_bytes_max,
            # Half the limit: the window is held only once the other half waits for `poll`.
            stream_window_bytes=max(settings.stream_queued_bytes_max // 2, 1),
        )
        keepalive = Keepalive(
            settings.ping_seconds or NEVER,
            settings.pong_seconds_max,
            pings_without_calls=settings.pings_without_calls,
        )
        self.link = Link(endpoint, self.wire, keepalive)
        self.socket: socket.socket | None = None
        self.mask = 0
        """The poller's events to watch the socket for."""
        self.is_open = False
        """Whether calls can be made: the server's SETTINGS have arrived."""
        self.is_held = False
        """Whether reading has stopped because too many bytes wait for `poll`."""
        self.queued_bytes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.timer_at = NEVER
        """The time for which the owner has set a timer."""
        self.is_connected = False
        """Whether the socket is connected."""
        self._address = address
        self._tls_settings = tls
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._addresses: deque[tuple[int, Any]] = deque()
        self._deadline = now + settings.connect_seconds_max
        self._next_until = self._deadline
        self._output = bytearray()

    # Connecting.

    def dial(self, lookups: ThreadedLookups, now: float) -> None:
        """Start connecting."""
        if self._tls_settings is not None:
            self._context = _context_of(self._tls_settings)
        address = self._address
        if address.startswith("unix:"):
            path = address.removeprefix("unix:").removeprefix("//")
            self.take_addresses([(socket.AF_UNIX, path)], now)
            return
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal():
            raise DialError(f"{address}: expected host:port or unix:path")
        try:
            found = addresses_of(host, int(port), socket.AI_NUMERICHOST)
        except socket.gaierror:
            lookups.ask(self.endpoint, host, int(port))
        else:
            self.take_addresses(found, now)

    def take_addresses(self, found: Addresses | OSError, now: float) -> None:
        """Take the addresses of the server, and try the first."""
        if isinstance(found, OSError):
            raise DialError(f"{self._address}: {found.strerror or found}")
        self._addresses.extend(found)
        self._try_next(OSError(0, "the name has no address"), now)

    def _try_next(self, failure: OSError, now: float) -> None:
        self.close()
        while self._addresses:
            self._next_until = now + (self._deadline - now) / len(self._addresses)
            family, address = self._addresses.popleft()
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
                self.socket.setblocking(False)
                number = self.socket.connect_ex(address)
            except OSError as error:
                number = error.errno or errno.EIO
            if number == 0:
                self._reached()
                return
            if number == errno.EINPROGRESS:
                self.mask = WRITABLE
                return
            failure = OSError(number, os.strerror(number))
            self.close()
        raise DialError(f"{self._address}: {failure.strerror}")

    def _reached(self) -> None:
        assert self.socket is not None
        self.is_connected = True
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            assert self._tls_settings is not None
            try:
                self.link.secure(self._context, self._tls_settings.server_name)
            except (LinkError, ValueError, ssl.SSLError) as error:
                raise DialError(f"{self._address}: {error}") from None
        self.write()

    # Bytes.

    def handle(self, mask: int, now: float) -> None:
        """Handle the poller's events of the socket."""
        assert self.socket is not None
        if not self.is_connected:
            number = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                self._try_next(OSError(number, os.strerror(number)), now)
            else:
                self._reached()
            return
        if mask & ~WRITABLE and not self.is_held:
            self._read()
        self.write()

    def _read(self) -> None:
        assert self.socket is not None
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise DialError(f"the connection is lost: {error.strerror}") from None
        if not data:
            raise DialError("the server closed the connection")
        self.bytes_read += len(data)
        try:
            self.link.receive(data)
        except (LinkError, ProtocolError) as error:
            raise DialError(f"{self._address}: {error}") from None

    def write(self) -> None:
        """Send as much output as the socket accepts, and set `mask`."""
        if self.socket is None or not self.is_connected:
            return
        output = self._output
        while True:
            if len(output) < OUTPUT_BYTES_MAX:
                output += self.link.take_output()
            if not output:
                break
            try:
                size = self.socket.send(output)
            except BlockingIOError:
                break
            except OSError as error:
                raise DialError(f"the connection is lost: {error.strerror}") from None
            self.bytes_written += size
            del output[:size]
        reading = 0 if self.is_held else READABLE
        self.mask = reading | (WRITABLE if output else 0)

    # Time.

    def begins_call(self) -> None:
        """Restart the silence timer at a first call: without calls, silence is normal."""
        if not self.wire.calls_open and not self._settings.pings_without_calls:
            self.link.restart_silence()

    def wake_at(self, now: float) -> float:
        """Return the time at which `pass_time` has work if no data arrives earlier."""
        if not self.is_open:
            return self._deadline if self.is_connected else self._next_until
        return NEVER if self.is_held else self.link.wake_at(now)

    def pass_time(self, now: float) -> None:
        """Send a keepalive ping, or handle a timeout, if its time has come."""
        if now < self.wake_at(now):
            return
        if self.is_open:
            try:
                self.link.pass_time(now)
            except LinkError as error:
                raise DialError(str(error)) from None
            self.write()
        elif self.is_connected:
            what = "HTTP/2's settings" if self.link.is_open else "the TLS handshake"
            raise DialError(f"{self._address}: {what} took too long")
        else:
            self._try_next(OSError(0, "connecting took too long"), now)

    def resumes(self) -> None:
        """Resume reading, and restart the silence timer."""
        self.is_held = False
        self.link.restart_silence()

    def close(self) -> None:
        """Close the socket."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self.mask = None, 0


def _context_of(tls: UpstreamTls) -> ssl.SSLContext:
    try:
        context = server_context(tls.ca_file)
    except OSError as error:
        raise DialError(f"{tls.ca_file}: {error.strerror or error}") from None
    context.set_alpn_protocols(["h2"])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file or tls.key_file:
        try:
            load_identity(context, tls.cert_file, tls.key_file)
        except (OSError, ValueError) as error:
            raise DialError(str(error)) from None
    return context
