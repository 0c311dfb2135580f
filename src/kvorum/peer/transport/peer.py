"""A peer: its channels, and which message takes which of them.

Appends take the append stream, everything else the message stream; without a stream a message is
posted. A snapshot without a database is always posted. A message that finds its channel full is
dropped, never tried on another one, and the host is told.
"""

from collections.abc import Sequence

from kvorum.peer.transport.addresses import Addresses
from kvorum.peer.transport.figures import Figures
from kvorum.peer.transport.frames import EntriesEncoder
from kvorum.peer.transport.pipeline import Pipeline, Transfer
from kvorum.peer.transport.probing import Probe
from kvorum.peer.transport.shared import Shared
from kvorum.peer.transport.snapshots import SnapshotSending, SnapshotTransfer
from kvorum.peer.transport.streams import StreamReader, StreamWriter
from kvorum.raft.messages import Message, MessageType


class Peer:
    """A node of the group. It can be reached as long as one of its streams is read."""

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
        "figures",
        "id",
        "takes_copies",
    )

    def __init__(
        self, shared: Shared, peer: int, urls: Sequence[str], entries: EntriesEncoder, now: float
    ) -> None:
        self._shared = shared
        self.id = peer
        self.figures = figures = Figures()
        self._addresses = addresses = Addresses(urls)
        self._messages_out = StreamWriter(shared, peer, figures, entries, is_append=False)
        self._appends_out = StreamWriter(shared, peer, figures, entries, is_append=True)
        self._messages_in = StreamReader(shared, peer, figures, addresses, is_append=False)
        self._appends_in = StreamReader(shared, peer, figures, addresses, is_append=True)
        self._pipeline = Pipeline(shared, peer, figures, addresses)
        self._probe = Probe(shared, peer, figures, addresses, now)
        self._snapshot: SnapshotSending | None = None
        self._is_connected = False
        self._is_dropping = False
        # Whether a database may be sent as it is, by what the peer said when it opened a stream.
        self.takes_copies = False

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the peer."""
        return self._addresses.all

    @property
    def is_connected(self) -> bool:
        """Whether a stream of the peer is read."""
        return self._is_connected

    @property
    def foreign_cluster(self) -> int:
        """The other cluster that the peer says it belongs to; 0 if it does not say so."""
        return self._messages_in.foreign_cluster

    def update(self, urls: Sequence[str]) -> None:
        """Use other addresses from the next request on."""
        if tuple(urls) != self._addresses.all:
            self._addresses.use(urls)

    def attach(self, call: int, source: str, now: float, *, is_append: bool) -> None:
        """Let the peer read a stream by a call, which comes from that source."""
        (self._appends_out if is_append else self._messages_out).attach(call, source, now)

    def send(self, message: Message, now: float) -> None:
        """Send a message by the channel that is there for it."""
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
            # Not for every successful post: a peer that is away would fill the log.
            self._is_dropping = False
            self._shared.logger.info(f"messages to {self.id:x} are sent again")

    def _dropped(self, message: Message) -> None:
        self.figures.dropped_messages += 1
        if not self._is_dropping:
            self._is_dropping = True
            self._shared.logger.warning(
                f"drops messages to {self.id:x}: it takes them slower than they are made"
            )
        self._shared.node.unreachable(self.id)
        if message.type == MessageType.SNAP:
            self._shared.node.snapshot_sent(Transfer(message), failed=True)

    def send_snapshot(self, transfer: SnapshotTransfer, now: float) -> None:
        """Send a snapshot and its database; one at a time."""
        if self._snapshot is not None and not self._snapshot.is_over:
            self._shared.logger.warning(
                f"a snapshot for {self.id:x} is on its way; dropped another"
            )
            self._shared.node.snapshot_sent(transfer, failed=True)
            return
        shared = self._shared
        self._snapshot = SnapshotSending(
            shared, self.figures, self._addresses, transfer, now, self._copy_refused
        )

    def _copy_refused(self) -> None:
        self.takes_copies = False

    def flush(self, batch: list[tuple[int, bytes]]) -> None:
        """Put what was written to the streams into a batch for the edge."""
        self._messages_out.flush(batch)
        self._appends_out.flush(batch)

    def pass_time(self, now: float, batch: list[tuple[int, bytes]]) -> float:
        """Do what is due on each channel; return when to be called next."""
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

    def knock(self) -> bool:
        """Ask the peer's host whether it is there; False if no stream of it is read."""
        return self._messages_in.knock() or self._appends_in.knock()

    def note_connection(self, now: float) -> None:
        """Tell the host if the peer can be reached now and could not before, or the reverse."""
        is_connected = self._messages_in.is_open or self._appends_in.is_open
        if is_connected == self._is_connected:
            return
        self._is_connected = is_connected
        if is_connected:
            self._shared.node.connected(self.id, now)
        else:
            self.figures.disconnections += 1
            self._shared.node.disconnected(self.id)

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
            self._shared.node.disconnected(self.id)


class Remote:
    """A node that is known only by the address it gave: messages to it are posted."""

    __slots__ = ("_addresses", "figures", "id", "pipeline")

    def __init__(self, shared: Shared, peer: int, urls: Sequence[str]) -> None:
        self.id = peer
        self.figures = Figures()
        self._addresses = Addresses(urls)
        self.pipeline = Pipeline(shared, peer, self.figures, self._addresses)
