"""The calling side of the network: makes gRPC calls to other servers, in batches.

`interface.Edge` serves clients; `Upstream` calls servers. It knows nothing of keys, tokens or
retries. Two implementations, in Rust and in pure Python, fulfil this contract, and one set of tests
checks both.

Endpoints and calls are numbers that the loop chooses and never uses twice. Every call ends with
one ANSWERED or one ENDED, except that a cancelled call reports no further events. The upstream
ignores messages sent on a call that has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

from kvorum.network.edge.relay import Relay, RelayRules

Metadata: TypeAlias = Sequence[tuple[str, bytes]]
"""Keys in lower case. Values of keys that end in `-bin` are raw here and base64 on the wire."""
Unary: TypeAlias = tuple[int, int, str, bytes, Metadata]
"""A call of one message each way: (call, endpoint, path, message, metadata)."""


class UpstreamEventKind(IntEnum):
    """Kinds of events of an endpoint or a call."""

    CONNECTED = 1
    """The endpoint accepts calls. Detail: None."""
    DISCONNECTED = 2
    """The connection is lost or failed to open. The endpoint's calls report their ends before this
    event, except that a paused call reports its end after `resume`. Detail: the reason, as text.
    The upstream does not reconnect unless the loop requests it."""
    ANSWERED = 3
    """A unary call was answered with status OK. Detail: the message."""
    MESSAGE = 4
    """One message of a stream. Detail: its bytes."""
    ENDED = 5
    """A stream ended, or a unary call failed. Detail: an `End`."""
    WRITABLE = 6
    """A stream's pending bytes fell below `UpstreamSettings.writable_bytes` after having reached
    it. Detail: None."""
    LEAVING = 7
    """The endpoint asked for no more calls (GOAWAY). It still answers those that it has, and
    DISCONNECTED follows the last of these. Detail: None."""


UpstreamEvent: TypeAlias = tuple[int, int, Any]
"""(`UpstreamEventKind`, endpoint or call, detail)."""
End: TypeAlias = tuple[int, str, bool]
"""(gRPC code, text, whether the server certainly did not process the call).

The calls of a lost connection end with UNAVAILABLE. The upstream maps an HTTP answer without a
gRPC status to a code as gRPC's rules say."""


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """TLS towards an endpoint. The upstream reads the PEM files for every new connection."""

    server_name: str
    """The name that the server's certificate must be for."""
    ca_file: str = ""
    """Authorities of servers' certificates; empty: the system's."""
    cert_file: str = ""
    key_file: str = ""
    """Certificate and key to present to the server; empty: none."""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Every limit of the calling side."""

    message_bytes_max: int = 2**31 - 1
    """Largest message received; a larger one ends its call with RESOURCE_EXHAUSTED."""
    connect_seconds_max: float = 5.0
    """Time for the TCP connection, the TLS handshake and the server's HTTP/2 settings together."""
    ping_seconds: float = 0.0
    """Time without data from the server, while calls are open, before a ping; 0: no pings."""
    pong_seconds_max: float = 20.0
    """Time in which the server must answer a ping or send other data."""
    pings_without_calls: bool = False
    stream_queued_bytes_max: int = 1024 * 1024
    """Bytes that the server may send on one call ahead of `poll`."""
    connection_queued_bytes_max: int = 16 * 1024 * 1024
    """Bytes that the server may send on all calls of a connection ahead of `poll`. Paused calls do
    not count: each has its own limit and does not delay the others."""
    writable_bytes: int = 64 * 1024


class Upstream(Protocol):
    """Connections to servers. One thread calls all methods, and no method blocks.

    After `stop`, calls raise ValueError.
    """

    def connect(
        self, endpoint: int, address: str, authority: str, tls: UpstreamTls | None = None
    ) -> None:
        """Start connecting to `host:port`, `[v6 host]:port` or `unix:path`.

        The upstream resolves names and tries all their addresses, then reports CONNECTED or
        DISCONNECTED. Unusable TLS files lead to DISCONNECTED, too.
        """

    def disconnect(self, endpoint: int) -> None:
        """Close a connection: its calls end with CANCELLED, and DISCONNECTED follows."""

    def call(self, batch: Sequence[Unary]) -> None:
        """Make unary calls.

        Calls to an endpoint that is not connected end with UNAVAILABLE, marked as unprocessed.
        Calls whose path or metadata HTTP cannot carry end with INTERNAL.
        """

    def open(self, call: int, endpoint: int, path: str, metadata: Metadata) -> None:
        """Start a call with any number of messages each way."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streams."""

    def half_close(self, call: int) -> None:
        """End our side of a stream; no message may follow."""

    def cancel(self, call: int) -> None:
        """Cancel a call; no event of it follows."""

    def pause(self, call: int) -> None:
        """Report neither messages nor the end of a stream until `resume`.

        Flow control stops the server from sending more.
        """

    def resume(self, call: int) -> None:
        """Report a stream's messages and end again."""

    def pending_bytes(self, call: int) -> int:
        """Return the number of bytes queued on a stream that have not left yet."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to poll."""

    def announce_sleep(self) -> bool:
        """Request a wake-up through `fileno`; False if data has arrived and the loop must poll."""

    def awake(self) -> None:
        """End the sleep; nothing writes to `fileno` before the next `announce_sleep`."""

    def poll(self, events_max: int, bytes_max: int) -> list[UpstreamEvent]:
        """Take at most `events_max` events, of about `bytes_max` bytes in all.

        Events of one endpoint or call come in order. The rest stays queued and puts back-pressure
        on the server.
        """

    def relay(self, rules: RelayRules) -> Relay | None:
        """Start forwarding the edge's unary calls without the loop; None if unsupported.

        An upstream has at most one relay, for the edge it was made with.
        """

    def counters(self) -> dict[str, int]:
        """Return the counters of `UPSTREAM_COUNTERS`, which exclude relayed calls."""

    def stop(self) -> None:
        """Close everything now, and return when none of its threads runs any more.

        Waits for name lookups in progress.
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
"""Names in `Upstream.counters`: totals, except that `calls_open` is the current number."""
