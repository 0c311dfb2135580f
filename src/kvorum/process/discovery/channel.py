"""A minimal gRPC client over one HTTP/2 connection.

It supports what discovery needs: calls with one request, whose answers the caller awaits one by
one, and pings while a call is open. A connection that ends for any reason ends all its calls with
`UNAVAILABLE`; callers then connect again.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, cast
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from kvorum.api.errors import Code, Status, StatusError
from kvorum.network.dialer.links import words_of
from kvorum.network.edge.pure.grpc import MessageParser, framed, is_grpc

PING_SECONDS_MIN = 10.0
"""Shortest time between pings, whatever the settings; servers end connections that ping faster."""
FRAME_KIND_BYTES, SETTINGS_KIND = 4, 4
"""Bytes of a frame up to its kind: three of length, one of kind. A server's first is SETTINGS."""

Headers = list[tuple[bytes, bytes]]


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

    @property
    def is_ended(self) -> bool:
        """Whether the call has its final status."""
        return self._status is not None

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
        self._http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self._calls: dict[int, DiscoveryCall] = {}
        self._unsent: dict[int, tuple[bytes, bool]] = {}
        """The unsent rest of each call's request, and whether END_STREAM follows it."""
        self._beginning = b""
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
        self, path: str, request: bytes, metadata: Headers, seconds_max: float | None = None
    ) -> DiscoveryCall:
        """Start a call with one request, and send the server its deadline.

        Without `seconds_max`, the call is a stream and stays open on our side: some servers end
        the call when the client half-closes.
        """
        call = DiscoveryCall(self._answer_bytes_max)
        number = self._http.get_next_available_stream_id()
        headers: Headers = [
            (b":method", b"POST"),
            (b":scheme", b"https" if self.address.is_secure else b"http"),
            (b":path", path.encode()),
            (b":authority", self.address.authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"kvorum"),
            *metadata,
        ]
        if seconds_max is not None:
            headers.append((b"grpc-timeout", b"%dm" % max(1, int(seconds_max * 1000))))
        self._calls[number] = call
        self._unsent[number] = framed(request), seconds_max is not None
        self._http.send_headers(number, headers)
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
        self._http.initiate_connection()
        self._send()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the server."""
        if not self.ready.done():
            # Check the first frame's kind: h2 would take another protocol's text for the header of
            # a frame of megabytes, and wait for the rest.
            self._beginning = (self._beginning + data)[:FRAME_KIND_BYTES]
            if len(self._beginning) == FRAME_KIND_BYTES and self._beginning[-1] != SETTINGS_KIND:
                self._fail("the server does not speak HTTP/2")
                return
        try:
            for event in self._http.receive_data(data):
                self._handle(event)
            self._send()
        except h2.exceptions.ProtocolError as error:
            self._fail(f"the server does not speak HTTP/2: {error}")
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._ping_seconds, self._ping)

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls."""
        self._fail("connection closed by the server" if error is None else words_of(error))

    # Frames.

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RemoteSettingsChanged):
            if not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._fail(f"the server ended the connection (code {event.error_code})")
        elif isinstance(event, h2.events.DataReceived):
            self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if event.stream_id in self._calls:
                self._calls[event.stream_id].feed(event.data)
        elif isinstance(event, h2.events.ResponseReceived):
            fields = dict(event.headers)
            status, kind = fields.get(b":status", b""), fields.get(b"content-type", b"")
            if status != b"200" or not is_grpc(kind):
                text = f"HTTP status {status.decode(errors='replace')} instead of a gRPC answer"
                self._end(event.stream_id, Status(Code.UNAVAILABLE, text))
            elif b"grpc-status" in fields:
                self._end(event.stream_id, _status(event.headers))
        elif isinstance(event, h2.events.TrailersReceived):
            self._end(event.stream_id, _status(event.headers))
        elif isinstance(event, h2.events.StreamReset):
            text = f"the server reset the stream (code {event.error_code})"
            self._end(event.stream_id, Status(Code.UNAVAILABLE, text))
        elif isinstance(event, h2.events.StreamEnded):
            self._end(event.stream_id, Status(Code.INTERNAL, "the answer ended without a status"))

    def _end(self, number: int, status: Status) -> None:
        self._unsent.pop(number, None)
        call = self._calls.pop(number, None)
        if call is not None:
            call.end(status)

    def _send(self) -> None:
        """Send requests as far as the server's windows allow, and all other frames."""
        for number in list(self._unsent):
            data, is_last = self._unsent.pop(number)
            while data:
                window = self._http.local_flow_control_window(number)
                room = min(window, self._http.max_outbound_frame_size)
                if room <= 0:
                    self._unsent[number] = data, is_last
                    break
                self._http.send_data(number, data[:room], is_last and len(data) <= room)
                data = data[room:]
        if self._transport is not None:
            self._transport.write(self._http.data_to_send())

    def _ping(self) -> None:
        """Send a keepalive ping if a call is open."""
        self._timer = None
        if self._calls and self._transport is not None:
            self._http.ping(b"kvorum\0\0")
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


def _status(headers: Iterable[tuple[bytes, bytes]]) -> Status:
    fields = dict(headers)
    code = Code.UNKNOWN
    with suppress(ValueError):
        code = Code(int(fields.get(b"grpc-status", b"")))
    return Status(code, unquote(fields.get(b"grpc-message", b"").decode(errors="replace")))


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
