"""The narrow interface between the network and the loop.

The edge speaks HTTP/1.1, HTTP/2 and gRPC; it knows nothing of keys or Raft. The loop takes
what arrived with `poll`, in batches, and gives answers back in batches. Two implementations
keep this contract, the native one and the pure-Python one, and one set of tests holds both
to it.

A loop looks like this:

    while running:
        requests, events = edge.poll(1000, 4 << 20)
        ...                                   # serve them; edge.reply(...), edge.send(...)
        if not requests and not events and edge.announce_sleep():
            wait until edge.fileno() is readable
            edge.awake()

A *call* is a number that names one RPC or HTTP request as long as the edge lives. Whatever is sent
to a call that has ended is ignored: its client is gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from kvorum.api.errors import Status

Headers: TypeAlias = Sequence[tuple[str, str]]


class ListenerKind(IntEnum):
    """Who connects to a listener, and so which share of the connections they count towards."""

    CLIENT = 0
    METRICS = 1
    PEER = 2


class Serves(IntEnum):
    """What is served at a listener."""

    BOTH = 0
    """gRPC and plain HTTP; the content type of a request decides."""
    HTTP = 1
    """Every request is plain HTTP, whatever its content type."""
    GRPC = 2
    """Plain requests over HTTP/2 are answered 415, HTTP/1.1 by closing, as grpc-go does."""


class EventKind(IntEnum):
    """What happened to a call that is not a plain unary request."""

    OPENED = 1
    """A streaming RPC began. Detail: (method number, metadata or None)."""
    MESSAGE = 2
    """One message of a streaming RPC, or a piece of an HTTP body. Detail: its bytes."""
    HALF_CLOSED = 3
    """The client will send nothing more. Detail: None."""
    ENDED = 4
    """The client cancelled, its connection broke, or its deadline passed. Detail: None.
    Comes for streams and HTTP requests that were not finished, and for unary calls marked
    with `mark_waiting`; never after `finish` or `reply`."""
    HTTP_OPENED = 5
    """A plain HTTP request began; its body follows as MESSAGE and HALF_CLOSED.
    Detail: (listener number, method, target, subscribed headers with lower-case names). The
    authority of an HTTP/2 request is its `host` header. A header that was sent several times is
    there as often, its values in order. Values and targets are as they were sent, each byte a
    character (latin-1); control characters other than tabs do not occur."""
    WRITABLE = 6
    """A stream's pending bytes fell below `stream_writable_bytes` after having reached it.
    Detail: None."""


Metadata: TypeAlias = dict[str, bytes]
Request: TypeAlias = tuple[int, int, bytes, Metadata | None]
"""A complete unary request: (call, method number, payload, metadata).

Metadata holds the first value of each subscribed key, and is None where none was sent."""
Event: TypeAlias = tuple[int, int, Any]
"""(`EventKind`, call, detail)."""


DESCRIPTORS_RESERVED = 150
"""Descriptors that connections leave to the rest of the process."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit of the edge.

    Most hold a client back, and nothing is lost. Those that end a call or a connection say so.
    """

    request_bytes_max: int = 2 * 1024 * 1024
    """Largest gRPC message; a larger one is answered RESOURCE_EXHAUSTED."""
    streams_per_connection_max: int = 2**32 - 1
    """Concurrent streams that HTTP/2 clients are told they may open."""
    connections_max: int = 0
    """Clients' connections served at once; more wait in the listen queue. 0: as many as the
    process may open descriptors, less a reserve of 150 and what metrics and members may have."""
    metrics_connections_max: int = 64
    """The same at listeners for metrics."""
    peer_connections_max: int = 512
    """The same at listeners for members. Nobody takes connections from another kind."""
    header_list_bytes_max: int = 256 * 1024
    """Size of a call's headers, counting 32 bytes more for each; HTTP/2 clients are told it."""
    http_calls_per_connection_max: int = 100
    """Plain HTTP requests of one connection that are handed out at once; more wait."""
    http_header_bytes_max: int = 64 * 1024
    """Size of a plain HTTP request's headers; larger ones are answered 431."""
    handshake_seconds_max: float = 10.0
    """Time for a TLS handshake, from when the connection was accepted."""
    header_read_seconds_max: float = 30.0
    """Time for a new connection's first bytes, and for an HTTP/1.1 request's headers."""
    http1_idle_seconds_max: float = 10.0
    """At listeners for HTTP/1.1 only: how long a connection may be without a request."""
    http1_read_seconds_max: float = 5.0
    """At those: time for a request's headers, and for each further piece of its body."""
    ping_seconds_min: float = 5.0
    """Shortest time between a client's pings while it has calls; without calls it is two hours.
    After two early pings the next one ends the connection with `too_many_pings`, as in grpc-go. An
    answer in between resets the count."""
    keepalive_seconds: float = 7200.0
    """Silence after which a client is sent a ping; 0: none."""
    keepalive_timeout_seconds: float = 20.0
    """Time for a client to answer it, or to send anything else; 0: no pings are sent."""
    resets_per_second_max: int = 1000
    """Young, unanswered calls that a client may cancel in a second; one more ends the connection.
    Answers that it gets meanwhile are in its favour."""
    stream_queued_bytes_max: int = 1024 * 1024
    """How much a stream's client may send ahead of `poll` (its HTTP/2 window)."""
    connection_queued_bytes_max: int = 16 * 1024 * 1024
    """Bytes received but not polled, headers and unpacked messages included. A connection above it
    is not read from, and nothing more is unpacked, until it is below."""
    queued_bytes_max: int = 256 * 1024 * 1024
    """The same over all connections: above it, each may only have an equal share of it."""
    connection_partial_bytes_max: int = 64 * 1024 * 1024
    """Bytes of messages that are not complete. A call whose message goes past it, or past the
    connection's share while there are more than `queued_bytes_max` of them in all, is refused as
    unprocessed (REFUSED_STREAM), so that clients may try again."""
    connection_unread_bytes_max: int = 16 * 1024 * 1024
    """Answers to unary calls and HTTP requests that the client does not take. Above it, the
    client's other calls wait; if their headers exceed `connection_queued_bytes_max`, or nothing is
    taken for `unread_seconds_max`, the connection is ended."""
    unread_bytes_max: int = 256 * 1024 * 1024
    """What all clients together do not take, streams included. Above it, long answers wait, and so
    do all calls of clients that have not taken theirs; above twice as much, every call. After
    `unread_seconds_max`, the clients that need longest for what they have are ended."""
    unread_seconds_max: float = 10.0
    stream_writable_bytes: int = 64 * 1024
    """WRITABLE is reported when a stream's pending bytes fall below this."""

    def connections_by_kind(self, descriptors_max: int) -> tuple[int, int, int]:
        """Return how many connections each `ListenerKind` may have."""
        clients, others = (
            self.connections_max,
            (
                self.metrics_connections_max,
                self.peer_connections_max,
            ),
        )
        if not clients:
            left = max(2, descriptors_max - DESCRIPTORS_RESERVED)
            clients = max(left - sum(others), left // 2)
        return clients, *others


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of one listener. The files are PEM, and are read again when they change.

    If changed files cannot be used, such as a key that does not fit its certificate, the old ones
    stay in use, and an incident reports it.
    """

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    """Authorities of clients' certificates. With it, only clients that show one are served."""
    client_crl_file: str = ""
    """Revocation list, PEM or DER; a certificate whose serial number it names is refused."""
    allowed_names: tuple[str, ...] = ()
    """Common names of clients; empty: any."""
    allowed_hostnames: tuple[str, ...] = ()
    """Host names; a client's certificate has to be for one of them. Empty: any."""
    version_min: str = "TLS1.2"
    version_max: str = ""
    """`TLS1.2` or `TLS1.3`; empty: the highest."""
    cipher_suites: tuple[str, ...] = ()
    """Suites of TLS 1.2, by the names of RFC 5289; empty: all of `CIPHER_SUITES`."""
    plain_too: bool = False
    """Serve clients without TLS at the same address; the first byte tells."""


CIPHER_SUITES = (
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
)
"""Suites of TLS 1.2 that both edges have. Those of TLS 1.3 are always allowed."""


class Incident(NamedTuple):
    """Why clients were refused or held back: the last time, and how often."""

    name: str
    """One of `INCIDENTS`."""
    listener: int
    peer: str
    """The last client's address; empty if no particular client was concerned."""
    text: str
    times: int
    """How often it happened since incidents were last taken."""


class Edge(Protocol):
    """One network front. It is used by one thread at a time, and no method blocks.

    After `stop`, and in a forked child, calls raise ValueError.
    """

    def check_tls(self, tls: TlsSettings) -> None:
        """Raise OSError, with the file, if `listen` could not use these settings."""

    def listen(
        self,
        address: str,
        tls: TlsSettings | None = None,
        *,
        http1_only: bool = False,
        kind: ListenerKind = ListenerKind.CLIENT,
        serves: Serves = Serves.BOTH,
        reuse_port: bool = False,
    ) -> tuple[int, str]:
        """Accept connections at `host:port`, `[v6 host]:port` or `unix:path`.

        With `http1_only`, for members and metrics, HTTP/2 is answered 400 and closed, and so there
        is no gRPC; clients that stop in the middle of a request, or send none, are soon
        disconnected; and pieces that are sent together may leave as one chunk.

        With `reuse_port`, other sockets that ask for the same may listen at the same port, and the
        system divides connections among them.

        Returns the listener's number and the address, with the port the system chose for 0. Raises
        OSError with the address in its message, and with the file if TLS cannot be set up. An
        existing socket file is replaced.
        """

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to poll."""

    def announce_sleep(self) -> bool:
        """Ask to be woken through `fileno`. False: something has arrived already, do not sleep."""

    def awake(self) -> None:
        """Say that the sleep is over; until the next `announce_sleep` nobody writes to `fileno`."""

    def poll(self, calls_max: int, bytes_max: int) -> tuple[list[Request], list[Event]]:
        """Take what arrived: at most so many requests and events, and about so many bytes.

        Connections are served in turn. While both kinds wait, each gets at least half of
        `calls_max`. What is not taken stays where it is; a client that sends faster than it
        is polled is held back by its socket.
        """

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls: with a message, or with an error status."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streaming RPCs, and pieces of HTTP bodies.

        Over HTTP/1.1 each piece is one chunk, unless the answer's headers tell its length.
        """

    def start(self, call: int, metadata: Headers) -> None:
        """Send a gRPC call's initial metadata now instead of with its first message."""

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a streaming RPC after what was sent, or an HTTP body.

        An HTTP body that ends with an error status is broken off, so that the client does
        not take it for complete. A unary call may be served by `start`, `send` and `finish`
        in place of `reply`.
        """

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request; with body None, `send` and `finish` follow.

        The answer to HEAD, and one of status 204 or 304, leaves without its body. If the request's
        own body has not ended, a little more of it is read to keep the connection, and thrown away.

        Status 101 turns an HTTP/1.1 connection over to the caller: MESSAGE and `send` carry
        raw bytes from then on. ENDED is reported when the client closes; `finish` closes the
        connection when everything sent has left.
        """

    def has_room(self, call: int, is_long: bool = False) -> bool:
        """Return whether the answer to a call may be made: its client has taken earlier ones.

        If not, `fileno` becomes readable, or `announce_sleep` says no, as soon as there is more
        room. `poll` hands out only calls with room; before making many answers or long ones, ask
        again.
        """

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes were sent on a call and have not yet left."""

    def pause(self, call: int) -> None:
        """Read no more of a plain HTTP request's body until `resume`; poll what has arrived.

        Over HTTP/1.1 the connection is not read. Over HTTP/2 its other calls go on, and the window
        of this one bounds what still arrives. Calls of gRPC are not paused.
        """

    def resume(self, call: int) -> None:
        """Read a request's body again."""

    def mark_waiting(self, call: int) -> None:
        """Ask for ENDED if this unary call ends before its reply.

        A call that has ended already is reported all the same.
        """

    def peer(self, call: int) -> str:
        """Return the client's address, or "" if the connection is gone."""

    def peer_certificate(self, call: int) -> bytes | None:
        """Return the client's verified certificate in DER; see `kvorum.edge.subject`.

        None without TLS, where no certificates are asked for, or if the connection is gone.
        """

    def counters(self) -> dict[str, int]:
        """Return the edge's counters; see `COUNTERS`, `LEVELS` and `INCIDENTS`."""

    def incidents(self) -> list[tuple[str, int, str, str, int]]:
        """Take the incidents since the last time: at most one `Incident` of each name."""

    def write_log(self, descriptor: int, offset: int, data: bytes, sync: bool) -> int:
        """Write to a file off the loop, in order; return the write's number.

        `sync` asks for fdatasync before the write counts as done.
        """

    def written(self) -> list[tuple[int, int, float, float]]:
        """Return finished writes as (number, errno, seconds, seconds), in order.

        Errno 0 is success; the seconds are those that writing took, and then syncing.
        After a failure nothing more is written: later writes report ECANCELED.
        """

    def drain(self) -> None:
        """Accept no more connections, and ask clients for no more calls.

        Calls that are on their way when a client hears of it are served. A connection closes when
        its client has confirmed, and its last call is finished.
        """

    def is_quiet(self) -> bool:
        """Return whether, after `drain`, no gRPC call can come any more and all were polled.

        Every client has confirmed or is gone; calls may still be unanswered.
        """

    def is_drained(self) -> bool:
        """Return whether, after `drain`, every listener and the last connection are closed."""

    def stop(self) -> None:
        """Close everything now, and return when no thread of the edge runs any more.

        A write to the log that is in progress is completed; those behind it are not begun.
        """


COUNTERS = (
    "connections_accepted",
    "connections_open",
    "calls_received",
    "calls_open",
    "messages_received",
    "messages_sent",
    "bytes_read",
    "bytes_written",
    "deadlines_exceeded",
    "requests_refused",
    "tls_handshakes",
)
"""Names in `Edge.counters`: totals, and for `_open` the number now.

Messages are those of gRPC. A refused request was answered or reset by the edge itself."""

LEVELS = ("queued_bytes", "unread_bytes")
"""Further names in `Edge.counters`: bytes that were received and not polled, and bytes that were
sent and not taken, now."""

INCIDENTS = (
    "tls_handshakes_failed",
    "tls_handshakes_timed_out",
    "tls_reloads_failed",
    "headers_timed_out",
    "bodies_timed_out",
    "connections_delayed",
    "pings_excessive",
    "keepalives_unanswered",
    "resets_excessive",
    "partial_messages_refused",
    "calls_delayed",
    "unread_excessive",
)
"""Names of incidents; `Edge.counters` counts them, too."""
