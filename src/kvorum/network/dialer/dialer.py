"""Requests to other members: implements `kvorum.network.dialer.interface.Dialer` on asyncio.

A connection carries one request at a time. After a complete answer the dialer keeps the connection
for a few seconds for the next request, and closes it before the other side would. If a kept
connection ends before the first byte of an answer, the dialer sends the request once more on a new
one, but only if it is a GET: the member may have processed a raft message.

`poll` returns pieces of answers as they arrive. The dialer stops reading a connection whose pieces
are not polled, so memory stays bounded whatever the other side sends. Callers that gather a whole
answer must limit it themselves.

An unforeseen error about an address or an answer only fails that request (see
`kvorum.api.boundary`): this module does not touch the member's state.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kvorum.api.boundary import Boundary
from kvorum.network.dialer.interface import WRITABLE_BYTES, DialEvent, DialEventKind
from kvorum.network.dialer.links import Connection, DialAddress, Request, address_of, error_text
from kvorum.network.edge import Headers
from kvorum.network.tls.credentials import TlsCredentials

IDLE_CONNECTIONS_MAX = 4
"""Idle connections kept for one URL of a member."""
GOODBYE_SECONDS_MAX = 1.0
"""Time for the other side to answer TLS's close_notify."""
LAST_CHUNK = b"0\r\n\r\n"


class HttpDialer:
    """The `Dialer` of an event loop; only the thread of that loop may use it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        credentials: TlsCredentials,
        *,
        connect_seconds_max: float,
        local_address: str = "",
        wake: Callable[[], None],
        boundary: Boundary | None = None,
    ) -> None:
        """Create a dialer that calls `wake` when it has events to poll.

        Connections start from the local address, if one is given. Without a boundary, unforeseen
        errors fail their requests without being reported.
        """
        self._loop = loop
        self._credentials = credentials
        self._connect_seconds_max = connect_seconds_max
        self._local = (local_address, 0) if local_address else None
        self._wake = wake
        self._boundary = boundary
        self._numbers = 0
        self._requests: dict[int, Request] = {}
        self._events: list[DialEvent] = []
        self.polls = 0
        self._host_probes: dict[int, asyncio.Task[None]] = {}
        self._held: list[Connection] = []
        self._idle: dict[str, list[Connection]] = {}
        self._connections: set[Connection] = set()

    # The interface.

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        """Start a request."""
        self._numbers += 1
        number = self._numbers
        try:
            self._begin(number, url, method, target, headers, body)
        except ValueError as error:
            self.add_event(DialEventKind.FAILED, number, str(error))
        except Exception as error:
            self._requests.pop(number, None)
            problem = self.report_unforeseen(error, f"a request to {url}", f"{method} {target}")
            self.add_event(DialEventKind.FAILED, number, problem)
        return number

    def _begin(
        self, number: int, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> None:
        # A cluster of one member dials no peers and does not need this import.
        import h11

        address = address_of(url)
        fields = [("host", address.authority), *headers]
        if body is None:
            fields.append(("transfer-encoding", "chunked"))
        elif body or method not in ("GET", "HEAD"):
            fields.append(("content-length", str(len(body))))
        head = h11.Request(method=method, target=target, headers=fields)
        request = self._requests[number] = Request(number, address, head, body)
        kept = self._take_idle(address)
        if kept is None:
            self.dial(request)
        else:
            kept.begin(request, is_kept=True)

    def send(self, number: int, piece: bytes) -> None:
        """Send a piece of a request's body."""
        request = self._requests.get(number)
        if request is None or not piece:
            return
        assert not request.is_ended, "nothing follows a body's end"
        framed = (b"%x\r\n" % len(piece), piece, b"\r\n")
        if request.connection is None:
            request.unsent += framed
        else:
            request.connection.transport.writelines(framed)
        if self.pending_bytes(number) >= WRITABLE_BYTES:
            request.writable_owed = True

    def finish(self, number: int) -> None:
        """End a request's body."""
        request = self._requests.get(number)
        if request is not None and not request.is_ended:
            request.is_ended = True
            if request.connection is None:
                request.unsent.append(LAST_CHUNK)
            else:
                request.connection.transport.write(LAST_CHUNK)

    def pending_bytes(self, number: int) -> int:
        """Return the number of bytes queued that have not left yet."""
        request = self._requests.get(number)
        if request is None:
            return 0
        if request.connection is None:
            return len(request.first) + sum(map(len, request.unsent))
        return request.connection.transport.get_write_buffer_size()

    def probe_host(self, number: int) -> int:
        """Probe the host at the other end of a request's connection."""
        self._numbers += 1
        probe_host = self._numbers
        request = self._requests.get(number)
        connection = None if request is None else request.connection
        if connection is None or connection.address.path:
            # No connection exists, or it is a unix socket on this host.
            self.add_event(DialEventKind.FAILED, probe_host, "no host")
        else:
            self._host_probes[probe_host] = self._loop.create_task(
                self._probe_host(probe_host, connection)
            )
        return probe_host

    async def _probe_host(self, probe_host: int, connection: Connection) -> None:
        # Use the connection's peer address: a name lookup may take as long as a silent host.
        carrier: socket.socket = connection.transport.get_extra_info("socket")
        kind = DialEventKind.FAILED
        try:
            with socket.socket(carrier.family, socket.SOCK_STREAM) as probing_host:
                probing_host.setblocking(False)
                async with asyncio.timeout(self._connect_seconds_max):
                    await self._loop.sock_connect(
                        probing_host, connection.transport.get_extra_info("peername")
                    )
            kind = DialEventKind.COMPLETED
        except ConnectionRefusedError:
            kind = DialEventKind.REFUSED
        except OSError:
            pass
        if self._host_probes.pop(probe_host, None) is not None:
            self.add_event(kind, probe_host, None)

    def cancel(self, number: int) -> None:
        """Cancel a request."""
        request = self._requests.pop(number, None)
        if request is not None:
            _abort_request(request)
        if self._events:
            self._events = [event for event in self._events if event.number != number]

    def poll(self) -> list[DialEvent]:
        """Take the events, in order."""
        events, self._events = self._events, []
        self.polls += 1
        if self._held:
            held, self._held = self._held, []
            for connection in held:
                connection.read_on()
        return events

    def stop(self) -> None:
        """Cancel all requests and close all connections; no events follow."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            _abort_request(request)
        host_probes, self._host_probes = self._host_probes, {}
        for probe_host in host_probes.values():
            probe_host.cancel()
        for connection in list(self._connections):
            connection.abort()
        self._events, self._held = [], []

    # Connecting.

    def dial(self, request: Request) -> None:
        """Send a request on a new connection."""
        request.dialing = self._loop.create_task(self._connect(request))

    async def _connect(self, request: Request) -> None:
        address, seconds = request.address, self._connect_seconds_max
        try:
            context = self._credentials.context() if address.is_secure else None
            async with asyncio.timeout(seconds):
                try:
                    await self._open(request, context)
                except ssl.SSLError as error:
                    context = self._credentials.second_context(error)
                    if context is None:
                        raise
                    await self._open(request, context)
        except (OSError, ValueError) as error:
            text = error_text(error)
            if isinstance(error, TimeoutError) and not error.errno:
                text = f"no connection within {seconds:g} s"
            is_refused = isinstance(error, ConnectionRefusedError)
            kind = DialEventKind.REFUSED if is_refused else DialEventKind.FAILED
            self.end(request, kind, f"{address.url}: {text}")
        except Exception as error:
            problem = self.report_unforeseen(error, f"a connection to {address.url}", "")
            self.end(request, DialEventKind.FAILED, f"{address.url}: {problem}")
        finally:
            request.dialing = None

    async def _open(self, request: Request, context: ssl.SSLContext | None) -> None:
        address = request.address
        security = self._security(address, context) if context is not None else {}
        if address.path:
            await self._loop.create_unix_connection(
                lambda: Connection(self._loop, self, request), address.path, **security
            )
        else:
            await self._loop.create_connection(
                lambda: Connection(self._loop, self, request),
                address.host,
                address.port,
                local_addr=self._local,
                **security,
            )

    def _security(self, address: DialAddress, context: ssl.SSLContext) -> dict[str, Any]:
        name = self._credentials.settings.server_name or address.host
        if not name:
            raise ValueError("a URL without a host cannot be dialed with TLS")
        return {
            "ssl": context,
            "server_hostname": name,
            "ssl_shutdown_timeout": GOODBYE_SECONDS_MAX,
        }

    def _take_idle(self, address: DialAddress) -> "Connection | None":
        kept = self._idle.get(address.url)
        while kept:
            connection = kept.pop()
            if connection.leave_idle():
                return connection
        return None

    # Callbacks from connections; see `kvorum.network.dialer.links.Owner`.

    def add_event(self, kind: DialEventKind, number: int, detail: object) -> None:
        """Queue an event of a request."""
        if not self._events:
            self._wake()
        self._events.append(DialEvent(kind, number, detail))

    def end(self, request: Request, kind: DialEventKind, detail: object) -> None:
        """Queue the last event of a request."""
        if self._requests.pop(request.number, None) is not None:
            self.add_event(kind, request.number, detail)

    def report_unforeseen(self, error: Exception, what: str, sent: bytes | str) -> str:
        """Report an unforeseen error; return the failure text for the request."""
        if self._boundary is not None:
            self._boundary.take(error, "dial", what, sent)
        return f"unforeseen {type(error).__name__}: {error}"

    def is_open(self, request: Request) -> bool:
        """Return whether a request has neither ended nor been cancelled."""
        return request.number in self._requests

    def check_certificate(self, certificate: bytes | None) -> str:
        """Return why to refuse the other side's certificate, or "" to accept it."""
        return self._credentials.refusal(certificate)

    def read_after_poll(self, connection: Connection) -> None:
        """Let a connection read again after the next poll."""
        self._held.append(connection)

    def register(self, connection: Connection) -> None:
        """Register a connection, which exists until `unregister`."""
        self._connections.add(connection)

    def unregister(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)

    def keep_idle(self, connection: Connection) -> bool:
        """Keep an idle connection; return False if enough are kept."""
        kept = self._idle.setdefault(connection.address.url, [])
        if len(kept) >= IDLE_CONNECTIONS_MAX:
            return False
        kept.append(connection)
        return True

    def forget_idle(self, connection: Connection) -> None:
        """Remove a connection from the idle ones, if it is among them."""
        kept = self._idle.get(connection.address.url)
        if kept and connection in kept:
            kept.remove(connection)
        if not kept:
            self._idle.pop(connection.address.url, None)


def _abort_request(request: Request) -> None:
    if request.dialing is not None:
        request.dialing.cancel()
    if request.connection is not None:
        request.connection.abort()
