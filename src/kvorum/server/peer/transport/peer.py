"""A peer: its channels, and the choice of a channel for each message.

Appends take the append stream, all other messages the message stream; without a stream, the
transport posts a message. It always posts a snapshot without a database. If the channel of a
message is full, the transport drops the message, never tries another channel, and reports the peer
to the host as unreachable.
"""

from collections.abc import Sequence

from kvorum.raft.messages import Message, MessageType
from kvorum.server.peer.transport.addresses import Addresses
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.frames import EntriesEncoder
from kvorum.server.peer.transport.pipeline import Pipeline, Transfer
from kvorum.server.peer.transport.probing import Probe
from kvorum.server.peer.transport.shared import TransportState
from kvorum.server.peer.transport.snapshots import SnapshotSending, SnapshotTransfer
from kvorum.server.peer.transport.streams import StreamReader, StreamWriter


class Peer:
    """A node of the group; it counts as connected while this node reads one of its streams."""

    __slots__ = (
        "_addresses",
        "_appends_in",
        "_appends_out",
        "_is_connected",
        "_is_dropping",
        "_messages_in",
        "_messages_out",
        "_pipeline",
        "_probe",
        "_shared",
        "_snapshot",
        "counters",
        "id",
        "takes_copies",
    )

    def __init__(
        self,
        shared: TransportState,
        peer: int,
        urls: Sequence[str],
        entries: EntriesEncoder,
        now: float,
    ) -> None:
        self._shared = shared
        self.id = peer
        self.counters = counters = PeerCounters()
        self._addresses = addresses = Addresses(urls)
        self._messages_out = StreamWriter(shared, peer, counters, entries, is_append=False)
        self._appends_out = StreamWriter(shared, peer, counters, entries, is_append=True)
        self._messages_in = StreamReader(shared, peer, counters, addresses, is_append=False)
        self._appends_in = StreamReader(shared, peer, counters, addresses, is_append=True)
        self._pipeline = Pipeline(shared, peer, counters, addresses)
        self._probe = Probe(shared, peer, counters, addresses, now)
        self._snapshot: SnapshotSending | None = None
        self._is_connected = False
        self._is_dropping = False
        # Whether the peer accepts copies of the database file, by the headers of its streams.
        self.takes_copies = False

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the peer."""
        return self._addresses.all

    @property
    def is_connected(self) -> bool:
        """Whether this node reads a stream of the peer."""
        return self._is_connected

    @property
    def foreign_cluster(self) -> int:
        """The other cluster that the peer reports as its own; 0 if it reports ours or none."""
        return self._messages_in.foreign_cluster

    def update(self, urls: Sequence[str]) -> None:
        """Use other addresses from the next request on."""
        if tuple(urls) != self._addresses.all:
            self._addresses.use(urls)

    def attach(self, call: int, source: str, now: float, *, is_append: bool) -> None:
        """Send a stream to the peer in answer to a call from an address."""
        (self._appends_out if is_append else self._messages_out).attach(call, source, now)

    def send(self, message: Message, now: float) -> None:
        """Send a message on its channel."""
        kind = message.type
        if kind == MessageType.APP and self._appends_out.call is not None:
            is_sent = self._appends_out.write(message)
        elif kind != MessageType.SNAP and self._messages_out.call is not None:
            is_sent = self._messages_out.write(message)
        else:
            is_sent = self._pipeline.send(message, now)
        if not is_sent:
            self._dropped(message)
        elif self._is_dropping and self._messages_out.call is not None:
            # Not after a successful post: lines about an absent peer would fill the log.
            self._is_dropping = False
            self._shared.logger.info(f"messages to {self.id:x} are sent again")

    def _dropped(self, message: Message) -> None:
        self.counters.dropped_messages += 1
        if not self._is_dropping:
            self._is_dropping = True
            self._shared.logger.warning(
                f"drops messages to {self.id:x}: it takes them slower than they are made"
            )
        self._shared.node.report_unreachable(self.id)
        if message.type == MessageType.SNAP:
            self._shared.node.report_snapshot(Transfer(message), failed=True)

    def send_snapshot(self, transfer: SnapshotTransfer, now: float) -> None:
        """Send a snapshot and its database; fail if another is in transit."""
        if self._snapshot is not None and not self._snapshot.is_over:
            self._shared.logger.warning(
                f"a snapshot for {self.id:x} is on its way; dropped another"
            )
            self._shared.node.report_snapshot(transfer, failed=True)
            return
        shared = self._shared
        self._snapshot = SnapshotSending(
            shared, self.counters, self._addresses, transfer, now, self._copy_refused
        )

    def _copy_refused(self) -> None:
        self.takes_copies = False

    def flush(self, batch: list[tuple[int, bytes]]) -> None:
        """Add the queued messages of both streams to a batch for the edge."""
        self._messages_out.flush(batch)
        self._appends_out.flush(batch)

    def pass_time(self, now: float, batch: list[tuple[int, bytes]]) -> float:
        """Run the timers of each channel; return when to call this next."""
        wake_at = min(
            self._messages_out.pass_time(now, batch),
            self._appends_out.pass_time(now, batch),
            self._messages_in.pass_time(now),
            self._appends_in.pass_time(now),
            self._pipeline.pass_time(now),
            self._probe.pass_time(now),
        )
        if self._snapshot is not None:
            wake_at = min(wake_at, self._snapshot.pass_time(now))
        return wake_at

    def probe_host(self) -> bool:
        """Probe the peer's host; return False if this node reads no stream of the peer."""
        return self._messages_in.probe_host() or self._appends_in.probe_host()

    def note_connection(self, now: float) -> None:
        """Report to the host if the peer has become reachable or unreachable."""
        is_connected = self._messages_in.is_open or self._appends_in.is_open
        if is_connected == self._is_connected:
            return
        self._is_connected = is_connected
        if is_connected:
            self._shared.node.note_connected(self.id, now)
        else:
            self.counters.disconnections += 1
            self._shared.node.note_disconnected(self.id)

    def stop(self) -> None:
        """End every channel."""
        self._messages_out.close()
        self._appends_out.close()
        self._messages_in.stop()
        self._appends_in.stop()
        self._pipeline.stop()
        self._probe.stop()
        if self._snapshot is not None:
            self._snapshot.stop("the transport to this peer ends")
        if self._is_connected:
            self._is_connected = False
            self._shared.node.note_disconnected(self.id)


class Remote:
    """A node known only by the address in its requests; the transport posts messages to it."""

    __slots__ = ("_addresses", "counters", "id", "pipeline")

    def __init__(self, shared: TransportState, peer: int, urls: Sequence[str]) -> None:
        self.id = peer
        self.counters = PeerCounters()
        self._addresses = Addresses(urls)
        self.pipeline = Pipeline(shared, peer, self.counters, self._addresses)
