"""One connection to a discovery service on the asyncio loop.

It supports what discovery needs: calls with one request, whose answers the caller awaits one by
one, and pings while a call is open. A connection that ends for any reason ends all its calls with
`UNAVAILABLE`; callers then connect again.

The frames are those of `client/grpc/`. Its `Wire` is not used here, because it judges an answer
only when it ends, and then in the client's words.
"""

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from typing import NamedTuple, cast

from kvorum.api.errors import Code, Status, StatusError
from kvorum.client.grpc.http2 import (
    Fields,
    ForeignError,
    Http2Connection,
    ProtocolError,
    StreamEventKind,
)
from kvorum.client.grpc.wire import Metadata, frame_message, request_block, status_of
from kvorum.network.dialer.links import error_text
from kvorum.network.edge.pure.grpc import MessageParser, is_grpc

AGENT = "kvorum"
PING_SECONDS_MIN = 10.0
"""Shortest time between pings, whatever the settings; servers end connections that ping faster."""


class ServiceAddress(NamedTuple):
    """A server's address: a TCP host and port, or the path of a unix socket."""

    host: str
    port: int
    path: str
    is_secure: bool

    @property
    def authority(self) -> str:
        """The `:authority` of requests."""
        if self.path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class DiscoveryCall:
    """An open or ended call: the answers that have arrived, and the final status."""

    def __init__(self, answer_bytes_max: int) -> None:
        self._parser = MessageParser(b"", answer_bytes_max)
        self._messages: deque[bytes] = deque()
        self._status: Status | None = None
        self._arrived = asyncio.Event()

    def end(self, status: Status) -> None:
        """Set the final status, unless it is set already."""
        if self._status is None:
            self._status = status
            self._arrived.set()

    def feed(self, data: bytes) -> None:
        """Parse received bytes into answers."""
        try:
            self._parser.feed(data)
            while (taken := self._parser.take(False)) is not None:
                self._messages.append(taken[0])
        except StatusError as error:
            self.end(error.status)
        self._arrived.set()

    async def message(self) -> bytes:
        """Wait for the next answer and return it; raise StatusError if the call ends first."""
        while not self._messages:
            if self._status is not None:
                raise StatusError(self._status)
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()


class Channel(asyncio.Protocol):
    """An HTTP/2 connection. Callers may call `begin` only while it `is_open`."""

    def __init__(
        self,
        address: ServiceAddress,
        ping_seconds: float,
        ping_timeout_seconds: float,
        answer_bytes_max: int,
    ) -> None:
        self.address = address
        self._answer_bytes_max = answer_bytes_max
        self._ping_seconds = max(ping_seconds, PING_SECONDS_MIN)
        self._ping_timeout_seconds = ping_timeout_seconds
        self._http = Http2Connection()
        self._calls: dict[int, DiscoveryCall] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done when the server's SETTINGS have arrived; fails if the connection does."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._transport is not None

    def begin(
        self, path: str, request: bytes, metadata: Metadata, seconds_max: float | None = None
    ) -> DiscoveryCall:
        """Start a call with one request, and send the server its deadline.

        Without `seconds_max`, the call is a stream and stays open on our side: some servers end
        the call when the client half-closes.
        """
        call = DiscoveryCall(self._answer_bytes_max)
        if not self._http.has_room:
            call.end(Status(Code.UNAVAILABLE, "the server takes no call"))
            return call
        if seconds_max is not None:
            metadata = (*metadata, ("grpc-timeout", f"{max(1, int(seconds_max * 1000))}m"))
        address = self.address
        block = request_block(
            path, address.authority, metadata, is_secure=address.is_secure, agent=AGENT
        )
        ends = seconds_max is not None
        self._calls[self._http.open(block, frame_message(request), ends=ends)] = call
        self._send()
        if self._timer is None:
            self._timer = self._loop.call_later(self._ping_seconds, self._ping)
        return call

    def close(self) -> None:
        """Close the connection and end all its calls."""
        self._fail("the connection was closed")

    # Callbacks from the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the HTTP/2 preface."""
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the server."""
        try:
            events = self._http.receive(data)
        except ForeignError:
            self._fail("the server does not speak HTTP/2")
            return
        except ProtocolError as error:
            self._fail(f"the server does not speak HTTP/2: {error}")
            return
        if self._http.has_settings and not self.ready.done():
            self.ready.set_result(None)
        for kind, number, detail in events:
            self._handle(kind, number, detail)
        if self._http.go_away_code is not None:
            self._fail(f"the server ended the connection (code {self._http.go_away_code})")
        self._send()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._ping_seconds, self._ping)

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls."""
        self._fail("connection closed by the server" if error is None else error_text(error))

    # Frames.

    def _handle(self, kind: StreamEventKind, number: int, detail: Fields | bytes | int) -> None:
        if isinstance(detail, tuple):
            status = _status_in(dict(detail))
            if status is not None:
                self._end(number, status)
        elif kind is StreamEventKind.ENDED:
            self._end(number, Status(Code.INTERNAL, "the answer ended without a status"))
        elif isinstance(detail, bytes):
            if number in self._calls:
                self._calls[number].feed(detail)
        elif kind is StreamEventKind.RESET or detail:
            # A stream that a GOAWAY refuses has no error code; it ends with the connection.
            text = f"the server reset the stream (code {detail})"
            self._end(number, Status(Code.UNAVAILABLE, text))

    def _end(self, number: int, status: Status) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.end(status)

    def _send(self) -> None:
        if self._transport is not None and (data := self._http.take_output()):
            self._transport.write(data)

    def _ping(self) -> None:
        """Send a keepalive ping if a call is open."""
        self._timer = None
        if self._calls and self._transport is not None:
            self._http.ping()
            self._send()
            self._timer = self._loop.call_later(
                self._ping_timeout_seconds, self._fail, "keepalive ping failed to receive ACK"
            )

    def _fail(self, reason: str) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
            # Mark the exception as retrieved: `connect` may no longer await it.
            self.ready.exception()
        for number in list(self._calls):
            self._end(number, Status(Code.UNAVAILABLE, reason))


def _status_in(fields: dict[str, str]) -> Status | None:
    """Return the status that header fields or trailers give a call; None if they give none."""
    # Only the fields at the beginning of an answer have HTTP's status.
    http_status = fields.get(":status")
    if http_status is not None:
        if http_status.startswith("1"):
            return None
        kind = fields.get("content-type", "").encode("latin-1")
        if http_status != "200" or not is_grpc(kind):
            text = f"HTTP status {http_status} instead of a gRPC answer"
            return Status(Code.UNAVAILABLE, text)
        if "grpc-status" not in fields:
            return None
    end = status_of(fields)
    code = Code.UNKNOWN
    with suppress(ValueError):
        code = Code(end.code)
    return Status(code, end.text)


async def connect(
    channel: Channel, context: ssl.SSLContext | None, server_name: str, seconds_max: float
) -> None:
    """Connect, and wait for the server's SETTINGS; raise OSError or ValueError."""
    loop, address = asyncio.get_running_loop(), channel.address
    name = None if context is None else server_name
    try:
        async with asyncio.timeout(seconds_max):
            if address.path:
                await loop.create_unix_connection(
                    lambda: channel, address.path, ssl=context, server_hostname=name
                )
            else:
                await loop.create_connection(
                    lambda: channel, address.host, address.port, ssl=context, server_hostname=name
                )
            await channel.ready
    except BaseException as error:
        channel.close()
        if isinstance(error, TimeoutError) and not error.errno:
            raise TimeoutError(f"no connection within {seconds_max:g} s") from None
        raise
