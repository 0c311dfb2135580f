"""The narrow interface between the network and the loop.

The edge speaks HTTP/1.1, HTTP/2 and gRPC; it knows nothing of keys or Raft. The loop polls
batches of requests and events and returns batches of answers. Two implementations, in Rust and in
pure Python, fulfil this contract, and one set of tests checks both.

A loop looks like this:

    while running:
        requests, events = edge.poll(1000, 4 << 20)
        ...                                   # serve them; edge.reply(...), edge.send(...)
        if not requests and not events and edge.announce_sleep():
            wait until edge.fileno() is readable
            edge.awake()

A *call* is a number that identifies one RPC or HTTP request for the lifetime of the edge. The edge
ignores data sent to a call that has ended, because its client is gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from kvorum.api.errors import Status

Headers: TypeAlias = Sequence[tuple[str, str]]


class ListenerKind(IntEnum):
    """Kind of clients that a listener accepts; each kind has its own limit of connections."""

    CLIENT = 0
    METRICS = 1
    PEER = 2


class Serves(IntEnum):
    """Protocols that a listener serves."""

    BOTH = 0
    """gRPC and plain HTTP; the content type of a request decides."""
    HTTP = 1
    """Every request is plain HTTP, whatever its content type."""
    GRPC = 2
    """The edge answers plain HTTP/2 requests with 415 and closes HTTP/1.1, as grpc-go does."""


class EdgeEventKind(IntEnum):
    """Kinds of events; a complete unary request is a `Request` instead."""

    OPENED = 1
    """A streaming RPC began. Detail: (method number, metadata or None)."""
    MESSAGE = 2
    """One message of a streaming RPC, or a piece of an HTTP body. Detail: its bytes."""
    HALF_CLOSED = 3
    """The client has ended its side of the call. Detail: None."""
    ENDED = 4
    """The client cancelled, its connection broke, or its deadline passed. Detail: None.
    The edge reports it for unfinished streams and HTTP requests, and for unary calls marked
    with `mark_waiting`; never after `finish` or `reply`."""
    HTTP_OPENED = 5
    """A plain HTTP request began; its body follows as MESSAGE and HALF_CLOSED.
    Detail: (listener number, method, target, subscribed headers with lower-case names). The
    authority of an HTTP/2 request becomes its `host` header. A repeated header appears once for
    each value, in order. Values and targets are the bytes on the wire, decoded as latin-1; control
    characters other than tabs do not occur."""
    WRITABLE = 6
    """A stream's pending bytes fell below `stream_writable_bytes` after having reached it.
    Detail: None."""


Metadata: TypeAlias = dict[str, bytes]
Request: TypeAlias = tuple[int, int, bytes, Metadata | None]
"""A complete unary request: (call, method number, payload, metadata).

Metadata holds the first value of each subscribed key; None if the client sent none of them."""
Event: TypeAlias = tuple[int, int, Any]
"""(`EdgeEventKind`, call, detail)."""


DESCRIPTORS_RESERVED = 150
"""File descriptors reserved for the rest of the process when `connections_max` is 0."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit of the edge.

    Most limits only apply back-pressure to a client and lose nothing. Limits that end a call or a
    connection say so.
    """

    request_bytes_max: int = 2 * 1024 * 1024
    """Largest gRPC message; a larger one is answered RESOURCE_EXHAUSTED."""
    streams_per_connection_max: int = 2**32 - 1
    """Concurrent streams of one connection, announced to HTTP/2 clients in SETTINGS."""
    connections_max: int = 0
    """Client connections served at once; more wait in the listen queue. 0: the process's limit of
    descriptors, less a reserve of 150 and the limits for metrics and peers."""
    metrics_connections_max: int = 64
    """Connections served at once at listeners for metrics."""
    peer_connections_max: int = 512
    """Connections served at once at listeners for peers. The three limits are independent."""
    header_list_bytes_max: int = 256 * 1024
    """Size of a request's headers, plus 32 bytes for each; announced to HTTP/2 clients. The edge
    answers larger ones with 431."""
    http_calls_per_connection_max: int = 100
    """Plain HTTP requests of one connection that the loop may have at once; more wait."""
    http_header_bytes_max: int = 64 * 1024
    """Size of a plain HTTP request's headers; the edge answers larger ones with 431."""
    handshake_seconds_max: float = 10.0
    """Time for a TLS handshake, from when the edge accepted the connection."""
    header_read_seconds_max: float = 30.0
    """Time for a new connection's first bytes, and for an HTTP/1.1 request's headers."""
    http1_idle_seconds_max: float = 10.0
    """At listeners for HTTP/1.1 only: time that a connection may have no request."""
    http1_read_seconds_max: float = 5.0
    """At listeners for HTTP/1.1 only: time for a request's headers, and for each further piece of
    its body."""
    ping_seconds_min: float = 5.0
    """Shortest time between a client's pings while it has calls; without calls it is two hours.
    After two early pings the next one ends the connection with `too_many_pings`, as in grpc-go. An
    answer in between resets the count."""
    keepalive_seconds: float = 7200.0
    """Time without data from a client after which the edge sends a ping; 0: no pings."""
    keepalive_timeout_seconds: float = 20.0
    """Time in which a client must answer a ping or send other data; 0: no pings."""
    resets_per_second_max: int = 1000
    """Young, unanswered calls that a client may cancel in a second; one more ends the connection.
    Each completed answer offsets one cancelled call."""
    stream_queued_bytes_max: int = 1024 * 1024
    """Bytes that a client may send on one stream ahead of `poll` (its HTTP/2 window)."""
    connection_queued_bytes_max: int = 16 * 1024 * 1024
    """Bytes received but not polled, headers and decompressed messages included. The edge stops
    reading and decompressing for a connection above this limit until it is below."""
    queued_bytes_max: int = 256 * 1024 * 1024
    """Bytes received but not polled over all connections. Above this limit, each connection may
    have only an equal share of it."""
    connection_partial_bytes_max: int = 64 * 1024 * 1024
    """Bytes of incomplete messages. The edge resets a call whose message exceeds this, or exceeds
    the connection's share while all connections together have more than `queued_bytes_max`. Unary
    calls end with REFUSED_STREAM, so that clients may retry, streams with ENHANCE_YOUR_CALM."""
    connection_unread_bytes_max: int = 16 * 1024 * 1024
    """Answers to unary calls and HTTP requests that the client has not read. Above this limit, the
    client's other calls wait. If the waiting calls exceed `connection_queued_bytes_max`, or the
    client reads nothing for `unread_seconds_max`, the edge ends the connection."""
    unread_bytes_max: int = 256 * 1024 * 1024
    """Bytes that all clients together have not read, streams included. Above this limit, long
    answers wait, and so do all calls of clients with unread answers; above twice this limit, every
    call waits. After `unread_seconds_max`, the edge ends the connections that would take longest
    to read the rest."""
    unread_seconds_max: float = 10.0
    stream_writable_bytes: int = 64 * 1024
    """The edge reports WRITABLE when a stream's pending bytes fall below this."""

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
    """TLS of one listener. The edge reloads the PEM files when they change.

    If changed files are unusable, such as a key that does not match its certificate, the old ones
    stay in use and the edge reports an incident.
    """

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    """Authorities of clients' certificates. If set, clients must present a certificate."""
    client_crl_file: str = ""
    """Revocation list, PEM or DER; the edge refuses certificates with a listed serial number."""
    allowed_names: tuple[str, ...] = ()
    """Common names of clients; empty: any."""
    allowed_hostnames: tuple[str, ...] = ()
    """Host names, one of which a client's certificate must match. Empty: any."""
    version_min: str = "TLS1.2"
    version_max: str = ""
    """`TLS1.2` or `TLS1.3`; empty: the highest."""
    cipher_suites: tuple[str, ...] = ()
    """Suites of TLS 1.2, by the names of RFC 5289; empty: all of `CIPHER_SUITES`."""
    plain_too: bool = False
    """Serve clients without TLS at the same address; the first byte distinguishes them."""


CIPHER_SUITES = (
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
)
"""Suites of TLS 1.2 that both edges support. The suites of TLS 1.3 are always allowed."""


class Incident(NamedTuple):
    """A reason why the edge refused or delayed clients: its latest occurrence, and the count."""

    name: str
    """One of `INCIDENTS`."""
    listener: int
    peer: str
    """The latest client's address; empty if the incident concerns no particular client."""
    text: str
    times: int
    """Number of occurrences since the last `Edge.incidents`."""


class Edge(Protocol):
    """The network side of a server. One thread at a time uses it, and no method blocks.

    After `stop`, and in a forked child, calls raise ValueError.
    """

    def check_tls(self, tls: TlsSettings) -> None:
        """Raise OSError, naming the file, if `listen` could not use these settings."""

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

        With `http1_only`, for peers and metrics, the edge answers HTTP/2 with 400 and closes the
        connection, so there is no gRPC. It soon disconnects clients that stop in the middle of a
        request or send none, and it may join pieces that the loop sends together into one chunk.

        With `reuse_port`, other sockets with that option may listen at the same port, and the
        system divides connections among them.

        Replaces an existing socket file. Returns the listener's number and the address, with the
        port that the system chose for 0. Raises OSError with the address in its message, and with
        the file if the TLS settings are unusable.
        """

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to poll."""

    def announce_sleep(self) -> bool:
        """Request a wake-up through `fileno`; False if data has arrived and the loop must poll."""

    def awake(self) -> None:
        """End the sleep; the edge writes to `fileno` only after the next `announce_sleep`."""

    def poll(self, calls_max: int, bytes_max: int) -> tuple[list[Request], list[Event]]:
        """Take at most `calls_max` requests and events, of about `bytes_max` bytes in all.

        The edge takes from connections in turn. While both requests and events wait, each kind
        gets at least half of `calls_max`. The rest stays queued; a client that sends faster than
        the loop polls gets back-pressure from its socket.
        """

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls: with a message, or with an error status."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streaming RPCs, and pieces of HTTP bodies.

        Over HTTP/1.1 each piece is one chunk, unless the answer has a Content-Length.
        """

    def start(self, call: int, metadata: Headers) -> None:
        """Send a gRPC call's initial metadata now instead of with its first message."""

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a streaming RPC or an HTTP body after all queued data.

        With an error status, the edge aborts an HTTP body, so that the client does not consider
        it complete. The loop may serve a unary call with `start`, `send` and `finish` in place of
        `reply`.
        """

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request; with body None, `send` and `finish` follow.

        The edge sends no body with an answer to HEAD or with status 204 or 304. If the request's
        own body has not ended, the edge reads and discards a little more of it to keep the
        connection.

        Status 101 hands an HTTP/1.1 connection over to the loop: from then on MESSAGE and `send`
        carry raw bytes. The edge reports ENDED when the client closes; `finish` closes the
        connection after all queued data has left.
        """

    def has_room(self, call: int, is_long: bool = False) -> bool:
        """Return whether the loop may answer a call, given what its client has left unread.

        If not, `fileno` becomes readable, or `announce_sleep` returns False, as soon as there is
        more room. `poll` returns only calls with room; before many answers or long ones, check
        again.
        """

    def pending_bytes(self, call: int) -> int:
        """Return the number of bytes queued on a call that have not left yet."""

    def pause(self, call: int) -> None:
        """Stop reading a plain HTTP request's body until `resume`; `poll` returns what has arrived.

        Over HTTP/1.1 the edge stops reading the connection. Over HTTP/2 the connection's other
        calls continue, and the stream's window bounds what still arrives. gRPC calls cannot be
        paused.
        """

    def resume(self, call: int) -> None:
        """Resume reading a request's body."""

    def mark_waiting(self, call: int) -> None:
        """Request ENDED if this unary call ends before its reply, or has ended already."""

    def peer(self, call: int) -> str:
        """Return the client's address, or "" if the connection is gone."""

    def peer_certificate(self, call: int) -> bytes | None:
        """Return the client's verified certificate in DER; see `kvorum.network.edge.subject`.

        None without TLS, if the listener requests no certificates, or if the connection is gone.
        """

    def counters(self) -> dict[str, int]:
        """Return the edge's counters; see `COUNTERS`, `LEVELS` and `INCIDENTS`."""

    def incidents(self) -> list[tuple[str, int, str, str, int]]:
        """Take the incidents since the previous call: at most one `Incident` of each name."""

    def write_log(self, descriptor: int, offset: int, data: bytes, sync: bool) -> int:
        """Write to a file outside the loop's thread, in order; return the write's number.

        With `sync`, the write is finished only after fdatasync.
        """

    def written(self) -> list[tuple[int, int, float, float]]:
        """Return finished writes as (number, errno, write seconds, sync seconds), in order.

        Errno 0 is success. After a failure the edge writes nothing more: later writes report
        ECANCELED.
        """

    def drain(self) -> None:
        """Accept no more connections, and ask clients to open no more calls.

        The edge still serves calls that a client sent before the request reached it. A connection
        closes when its client has confirmed and its last call is finished.
        """

    def is_quiet(self) -> bool:
        """Return whether, after `drain`, no new gRPC call can arrive and all calls are polled.

        Every client has then confirmed or is gone; calls may still be unanswered.
        """

    def is_drained(self) -> bool:
        """Return whether, after `drain`, every listener and connection is closed."""

    def stop(self) -> None:
        """Close everything now, and return when no thread of the edge runs any more.

        The edge completes a log write in progress and drops those queued behind it.
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
"""Names in `Edge.counters`: totals, except that names ending in `_open` are current numbers.

Only gRPC messages count. The edge itself answered or reset the refused requests."""

LEVELS = ("queued_bytes", "unread_bytes")
"""Further names in `Edge.counters`, as current numbers: bytes received but not polled, and bytes
sent but not read by clients."""

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
"""Names of incidents; `Edge.counters` has their totals."""
