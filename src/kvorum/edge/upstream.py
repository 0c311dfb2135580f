"""The calling side of the network: gRPC calls to other servers, given and answered in batches.

What `interface.Edge` is for those who call us, `Upstream` is for those whom we call; it knows
nothing of keys, tokens or retries. Two implementations keep this contract, the native one and the
pure-Python one, and one set of tests holds both to it.

Endpoints and calls are numbers, chosen by the caller, and never used twice. Every call ends with
one ANSWERED or one ENDED, unless it is cancelled: after that nothing is told of it. Whatever is
sent on a call that has ended is ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

from kvorum.edge.relay import Relay, RelayRules

Metadata: TypeAlias = Sequence[tuple[str, bytes]]
"""Keys in lower case. Values of keys that end in `-bin` are raw here, and base64 on the wire."""
Unary: TypeAlias = tuple[int, int, str, bytes, Metadata]
"""A call of one message each way: (call, endpoint, path, message, metadata)."""


class UpstreamEventKind(IntEnum):
    """What happened to an endpoint or a call."""

    CONNECTED = 1
    """The endpoint can be called. Detail: None."""
    DISCONNECTED = 2
    """It cannot any more, or could not be reached; its calls have ended before, though of those
    that are paused this is told when they are resumed. Detail: why, in words. It is not connected
    to again unless the caller asks for it."""
    ANSWERED = 3
    """A unary call was answered, with status OK. Detail: the message."""
    MESSAGE = 4
    """One message of a stream. Detail: its bytes."""
    ENDED = 5
    """A stream ended, or a unary call without an answer. Detail: an `End`."""
    WRITABLE = 6
    """A stream's pending bytes fell below `UpstreamSettings.writable_bytes` after having reached
    it. Detail: None."""
    LEAVING = 7
    """The endpoint asked for no more calls (GOAWAY); those that it has are still answered, and
    DISCONNECTED follows the last of them. Detail: None."""


UpstreamEvent: TypeAlias = tuple[int, int, Any]
"""(`UpstreamEventKind`, endpoint or call, detail)."""
End: TypeAlias = tuple[int, str, bool]
"""(gRPC's code, text, whether the server never looked at the call).

A connection that is lost ends its calls with UNAVAILABLE; an answer without gRPC's status is
translated as gRPC's rules say."""


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """TLS towards an endpoint. Files are PEM, and are read again for every new connection."""

    server_name: str
    """What its certificate must be for."""
    ca_file: str = ""
    """Authorities of servers' certificates; empty: those of the system."""
    cert_file: str = ""
    key_file: str = ""
    """What we show of ourselves, if anything."""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Every limit of the calling side."""

    message_bytes_max: int = 2**31 - 1
    """Largest message that is received; a larger one ends its call with RESOURCE_EXHAUSTED."""
    connect_seconds_max: float = 5.0
    """Time for a connection, its TLS handshake and the server's settings."""
    ping_seconds: float = 0.0
    """Silence after which the server is sent a ping while calls are open; 0: none is sent."""
    pong_seconds_max: float = 20.0
    """Time for it to answer that, or to send anything else."""
    pings_without_calls: bool = False
    stream_queued_bytes_max: int = 1024 * 1024
    """How much of one call the server may send ahead of `poll`."""
    connection_queued_bytes_max: int = 16 * 1024 * 1024
    """The same for all calls of one connection, without those that are paused: each of them is held
    back by itself, and holds back no other."""
    writable_bytes: int = 64 * 1024


class Upstream(Protocol):
    """Connections to servers. Every method is called from one thread, and none blocks.

    After `stop`, calls raise ValueError.
    """

    def connect(
        self, endpoint: int, address: str, authority: str, tls: UpstreamTls | None = None
    ) -> None:
        """Begin to connect to `host:port`, `[v6 host]:port` or `unix:path`.

        Names are looked up, and all their addresses tried; CONNECTED or DISCONNECTED tells how
        that ended. Files that cannot be used are told the same way.
        """

    def disconnect(self, endpoint: int) -> None:
        """Give a connection up: its calls end with CANCELLED, and DISCONNECTED is told."""

    def call(self, batch: Sequence[Unary]) -> None:
        """Make unary calls.

        At an endpoint that is not connected they end with UNAVAILABLE, as calls that the server
        never looked at; those whose path or metadata HTTP cannot carry end with INTERNAL.
        """

    def open(self, call: int, endpoint: int, path: str, metadata: Metadata) -> None:
        """Begin a call with any number of messages each way."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streams."""

    def half_close(self, call: int) -> None:
        """Say that nothing more will be sent on a stream."""

    def cancel(self, call: int) -> None:
        """Break a call off, and forget it."""

    def pause(self, call: int) -> None:
        """Hand out no more messages of a stream until `resume`, nor its end.

        The server is held back.
        """

    def resume(self, call: int) -> None:
        """Hand out a stream's messages again."""

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes were sent on a stream and have not yet left."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to poll."""

    def announce_sleep(self) -> bool:
        """Ask to be woken through `fileno`. False: something has arrived already, do not sleep."""

    def awake(self) -> None:
        """Say that the sleep is over; until the next `announce_sleep` nobody writes to `fileno`."""

    def poll(self, events_max: int, bytes_max: int) -> list[UpstreamEvent]:
        """Take what happened, in order for each endpoint and call.

        At most so many events are taken, and about so many bytes. What is not taken stays where it
        is, and holds the server back.
        """

    def relay(self, rules: RelayRules) -> Relay | None:
        """Pass calls of the edge that it was made with on by itself; None if it cannot.

        There can be one.
        """

    def counters(self) -> dict[str, int]:
        """Return the totals of `UPSTREAM_COUNTERS`; calls that are relayed are not among them."""

    def stop(self) -> None:
        """Close everything now, and return when no thread of it runs any more.

        A name that is being looked up is waited for.
        """


UPSTREAM_COUNTERS = (
    "calls_started",
    "calls_open",
    "messages_sent",
    "messages_received",
    "bytes_read",
    "bytes_written",
    "connections_made",
    "connections_failed",
)
"""Names in `Upstream.counters`: totals, and for `calls_open` the number now."""
