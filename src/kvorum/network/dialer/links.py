"""One connection to another member, which sends a request and receives its answer.

After a complete answer the owner may keep the connection for a few seconds for the next request;
it is closed before the other side would close it.
"""

import asyncio
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import unquote

from kvorum.network.dialer.http_reader import AnswerError, Body, Head, keeps_connection
from kvorum.network.dialer.interface import WRITABLE_BYTES, DialEventKind
from kvorum.network.edge.contexts import failure
from kvorum.network.urls import split_host_port, url
from kvorum.state.membership.urls import encoded
from kvorum.storage.platform.sockets import keep_alive

if TYPE_CHECKING:
    import h11

IDLE_SECONDS_MAX = 5.0
"""Time to keep an idle connection; members close idle connections after ten seconds."""
UNPOLLED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes received since the last `poll` above which a connection stops reading."""
KEEPALIVE_SECONDS = 30
VERDICT_SECONDS_MAX = 0.5
"""Time for the other side to refuse our certificate, too, after we have refused its."""

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class DialAddress(NamedTuple):
    """The address that a URL names, for dialing."""

    url: str
    authority: str
    host: str
    port: int
    path: str
    """The path of a unix socket; empty for TCP."""
    is_secure: bool


def address_of(text: str) -> DialAddress:
    """Return the address that a URL names; raise ValueError."""
    if not (text.isascii() and text.isprintable()):
        # Members of other versions may have stored the URL without encoding it.
        text = encoded(text)
    parsed = url(text)
    is_secure = parsed.scheme in ("https", "unixs")
    if parsed.scheme.startswith("unix"):
        path = unquote(parsed.host + parsed.path, errors="strict")
        return DialAddress(
            text, parsed.host or "localhost", parsed.host.partition(":")[0], 0, path, is_secure
        )
    host, port = split_host_port(parsed.host)
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError(f"{text}: {port!r} is no port")
    return DialAddress(text, parsed.host, unquote(host, errors="strict"), int(port), "", is_secure)


class Request:
    """One request, from its start until its last event."""

    __slots__ = (
        "address",
        "connection",
        "dialing",
        "first",
        "head",
        "is_ended",
        "number",
        "unsent",
        "writable_owed",
    )

    def __init__(
        self, number: int, address: DialAddress, head: "h11.Request", body: bytes | None
    ) -> None:
        self.number = number
        self.address = address
        self.head = head
        self.first = body or b""
        """The body given with the request, if any."""
        self.unsent: list[bytes] = []
        """Pieces of the body, framed as chunks, that wait for a connection."""
        self.is_ended = body is not None
        self.writable_owed = False
        self.connection: Connection | None = None
        self.dialing: asyncio.Task[None] | None = None


class Owner(Protocol):
    """The owner of connections, to which they report: the dialer."""

    polls: int
    """Number of polls so far."""

    def add_event(self, kind: DialEventKind, number: int, detail: object) -> None:
        """Queue an event of a request."""

    def end(self, request: Request, kind: DialEventKind, detail: object) -> None:
        """Queue the last event of a request."""

    def is_open(self, request: Request) -> bool:
        """Return whether a request has neither ended nor been cancelled."""

    def check_certificate(self, certificate: bytes | None) -> str:
        """Return why to refuse the other side's certificate, or "" to accept it."""

    def report_unforeseen(self, error: Exception, what: str, sent: bytes | str) -> str:
        """Report an unforeseen error; return the failure text for the request."""

    def dial(self, request: Request) -> None:
        """Send a request on a new connection."""

    def read_after_poll(self, connection: "Connection") -> None:
        """Let a connection read again after the next poll."""

    def register(self, connection: "Connection") -> None:
        """Register a connection, which exists until `unregister`."""

    def unregister(self, connection: "Connection") -> None:
        """Remove a closed connection."""

    def keep_idle(self, connection: "Connection") -> bool:
        """Keep an idle connection; return False if enough are kept."""

    def forget_idle(self, connection: "Connection") -> None:
        """Remove a connection from the idle ones, if it is among them."""


class Connection(asyncio.Protocol):
    """One connection to a member; it carries at most one request at a time."""

    __slots__ = (
        "_arrived_bytes",
        "_arrived_poll",
        "_body",
        "_head",
        "_idle_timer",
        "_is_kept",
        "_loop",
        "_may_keep",
        "_owner",
        "_refusal",
        "_request",
        "address",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, request: Request) -> None:
        self._loop = loop
        self._owner = owner
        self.address = request.address
        self._request: Request | None = request
        self._head: Head | None = None
        self._body: Body | None = None
        self._is_kept = False
        self._may_keep = False
        self._refusal = ""
        """Why the other side's certificate is refused; empty if it is not."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._arrived_bytes = 0
        self._arrived_poll = 0

    # Requests.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the other side's certificate, and send the first request."""
        self.transport = transport = cast(asyncio.Transport, transport)
        self._owner.register(self)
        transport.set_write_buffer_limits(high=WRITABLE_BYTES - 1, low=WRITABLE_BYTES - 1)
        if not self.address.path:
            _set_options(transport.get_extra_info("socket"))
        request, self._request = self._request, None
        if request is None or not self._owner.is_open(request):
            transport.abort()
            return
        try:
            if self.address.is_secure:
                certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
                if refusal := self._owner.check_certificate(certificate):
                    # Send nothing, but wait briefly before failing: in TLS 1.3 the other side's
                    # alert about our own certificate may still arrive, and the operator needs to
                    # see it.
                    self._request, self._refusal = request, refusal
                    self._idle_timer = self._loop.call_later(
                        VERDICT_SECONDS_MAX, self._fail, refusal
                    )
                    return
            self.begin(request, is_kept=False)
        except Exception as error:
            self._request = request
            self._fail_unforeseen(error, b"")

    def begin(self, request: Request, *, is_kept: bool) -> None:
        """Send a request, with the queued part of its body."""
        self._request, self._body, self._is_kept = request, None, is_kept
        self._head = Head(request.head.method.decode())
        request.connection = self
        unsent, request.unsent = request.unsent, []
        pieces = [self._head.write(request.head), request.first, *unsent]
        self.transport.writelines([piece for piece in pieces if piece])
        if request.writable_owed and self._pending_bytes() < WRITABLE_BYTES:
            self.resume_writing()

    def resume_writing(self) -> None:
        """Report WRITABLE if the request's body has reached the limit before."""
        request = self._request
        if request is not None and request.writable_owed:
            request.writable_owed = False
            if not request.is_ended:
                self._owner.add_event(DialEventKind.WRITABLE, request.number, None)

    def _pending_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    # Answers.

    def data_received(self, data: bytes) -> None:
        """Process a part of an answer."""
        request = self._request
        if request is None:
            # The other side sends data without a request.
            self.abort()
            return
        if self._refusal:
            self._fail(self._refusal)
            return
        try:
            if self._body is None:
                data = self._receive_head(request, data)
                if self._body is None:
                    return
            piece = self._body.feed(data) if data else b""
        except AnswerError as error:
            self._fail(str(error))
            return
        except Exception as error:
            self._fail_unforeseen(error, data)
            return
        if piece:
            owner = self._owner
            owner.add_event(DialEventKind.PIECE, request.number, piece)
            if self._arrived_poll != owner.polls:
                self._arrived_poll, self._arrived_bytes = owner.polls, 0
            self._arrived_bytes += len(piece)
            if self._arrived_bytes > UNPOLLED_BYTES_MAX:
                self.transport.pause_reading()
                owner.read_after_poll(self)
        if self._body.is_complete:
            self._complete(request)

    def _receive_head(self, request: Request, data: bytes) -> bytes:
        """Process a part of the answer's head; return the bytes after the head."""
        assert self._head is not None
        self._is_kept = False
        found = self._head.feed(data)
        if found is None:
            return b""
        response, self._body, rest = found
        self._head = None
        self._may_keep = keeps_connection(response) and not self._body.ends_with_connection
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers
        ]
        self._owner.add_event(
            DialEventKind.RESPONDED, request.number, (response.status_code, headers)
        )
        return rest

    def _complete(self, request: Request) -> None:
        body = self._body
        assert body is not None
        self._request = self._body = None
        may_keep = (
            self._may_keep
            and request.is_ended
            and not body.has_excess
            and not self.transport.is_closing()
            and not self._pending_bytes()
        )
        if may_keep and self._owner.keep_idle(self):
            self._idle_timer = self._loop.call_later(IDLE_SECONDS_MAX, self._retire)
        elif request.is_ended:
            self.transport.close()
        else:
            # The other side has answered without reading the rest of the body.
            self.transport.abort()
        self._owner.end(request, DialEventKind.COMPLETED, None)

    def read_on(self) -> None:
        """Resume reading after a poll."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # The end.

    def leave_idle(self) -> bool:
        """Stop the idle timer; return whether the connection is usable."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        return not self.transport.is_closing()

    def _retire(self) -> None:
        self._idle_timer = None
        self._owner.forget_idle(self)
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once, without an event."""
        self.leave_idle()
        self._owner.forget_idle(self)
        self._request = None
        self.transport.abort()

    def _fail(self, text: str) -> None:
        request = self._request
        self.abort()
        if request is not None:
            self._owner.end(request, DialEventKind.FAILED, f"{self.address.url}: {text}")

    def _fail_unforeseen(self, error: Exception, sent: bytes) -> None:
        what = f"a connection to {self.address.url}"
        self._fail(self._owner.report_unforeseen(error, what, sent))

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete, resend or fail the request of a connection that has ended."""
        request, body = self._request, self._body
        self.leave_idle()
        self._owner.forget_idle(self)
        self._owner.unregister(self)
        self._request = self._body = None
        if request is None or not self._owner.is_open(request):
            return
        if body is not None and body.ends_with_connection and exc is None:
            self._owner.end(request, DialEventKind.COMPLETED, None)
        elif self._is_kept and request.head.method == b"GET" and request.is_ended:
            # The other side closed the idle connection before any byte of an answer.
            request.connection = None
            self._owner.dial(request)
        else:
            text = error_text(exc) if exc is not None else "the connection was closed"
            if self._refusal:
                text = self._refusal if exc is None else f"{self._refusal}; {text}"
            self._owner.end(request, DialEventKind.FAILED, f"{self.address.url}: {text}")


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock, KEEPALIVE_SECONDS, KEEPALIVE_SECONDS)


def error_text(error: Exception) -> str:
    """Return an error's text, in Go's words where possible."""
    if isinstance(error, ssl.SSLError):
        return failure(error)
    if isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    if isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno).lower()
        # `load_identity` and `load_authorities` put the file's path into `strerror`.
        return error.strerror if error.strerror and "/" in error.strerror else text
    if isinstance(error, ConnectionResetError) and not str(error):
        return "connection reset by peer"
    return str(error) or type(error).__name__
