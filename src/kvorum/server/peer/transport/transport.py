"""The transport of a node: sends its messages to peers, and serves their requests.

The host drives the transport in turns: first the events of calls and requests, then the node's
messages, then `pass_time`. So input that arrived during a pause counts before its deadline does.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from kvorum.network.dialer.interface import Dialer, DialEvent, DialEventKind
from kvorum.network.edge.interface import EdgeEventKind, Headers
from kvorum.raft.logger import Logger
from kvorum.raft.messages import Message, MessageType
from kvorum.server.peer.interface import Host, PeerOutput
from kvorum.server.peer.transport.arrivals import SnapshotArrival
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.frames import EntriesEncoder
from kvorum.server.peer.transport.headers import (
    APPEND_STREAM,
    BUSY,
    CLUSTER_MISMATCH,
    COPY,
    INVALID_PATH,
    INVALID_SENDER,
    MESSAGE_STREAM,
    NOT_FOUND,
    PIPELINE,
    PROBING,
    SENDER_REMOVED,
    SENDER_UNKNOWN,
    SNAPSHOT,
    WRONG_RECEIVER,
    Identity,
    Refusal,
    check_sender,
    joined,
    mismatch_hint,
    parse_id,
    parse_urls,
    wrong_method,
)
from kvorum.server.peer.transport.peer import Peer, Remote
from kvorum.server.peer.transport.pipeline import Arrival
from kvorum.server.peer.transport.probing import answer_probe
from kvorum.server.peer.transport.settings import TransportSettings
from kvorum.server.peer.transport.shared import TransportState
from kvorum.server.peer.transport.snapshots import SnapshotTransfer
from kvorum.server.peer.transport.streams import StreamWriter

_PIECE: Final = int(DialEventKind.PIECE)
_NEVER: Final = float("inf")


class Transport:
    """Carries the messages and snapshots of one node."""

    __slots__ = ("_arrival", "_entries", "_peers", "_remotes", "_shared", "_wake_at")

    def __init__(
        self,
        node: Host,
        output: PeerOutput,
        dialer: Dialer,
        identity: Identity,
        settings: TransportSettings,
        logger: Logger,
    ) -> None:
        self._shared = TransportState(node, output, dialer, identity, settings, logger)
        self._entries = EntriesEncoder()
        self._peers: dict[int, Peer] = {}
        self._remotes: dict[int, Remote] = {}
        self._arrival: SnapshotArrival | None = None
        self._wake_at = 0.0

    # The nodes of the group.

    @property
    def peers(self) -> Mapping[int, Peer]:
        """The other nodes of the group, by id."""
        return self._peers

    def add_peer(self, peer: int, urls: Sequence[str], now: float) -> None:
        """Keep streams with a node from now on; if it is a peer already, update its addresses."""
        assert peer != self._shared.identity.local_id, "a node is no peer of its own"
        if peer in self._peers:
            self._peers[peer].update(urls)
            return
        remote = self._remotes.pop(peer, None)
        if remote is not None:
            remote.pipeline.stop()
        self._peers[peer] = Peer(self._shared, peer, urls, self._entries, now)
        self._wake_at = now
        self._shared.logger.info(f"added peer {peer:x} at {','.join(urls)}")

    def update_peer(self, peer: int, urls: Sequence[str]) -> None:
        """Use other addresses of a peer from the next request on."""
        self._peers[peer].update(urls)
        self._shared.logger.info(f"peer {peer:x} is at {','.join(urls)} now")

    def remove_peer(self, peer: int) -> None:
        """End everything with a node that no longer belongs to the group."""
        if peer in self._peers:
            self._peers.pop(peer).stop()
            self._shared.logger.info(f"removed peer {peer:x}")

    def add_remote(self, peer: int, urls: Sequence[str]) -> None:
        """Post messages to a node that is not a peer yet, while this node catches up."""
        if peer in self._peers or peer in self._remotes or peer == self._shared.identity.local_id:
            return
        if len(self._remotes) < self._shared.settings.remotes_max:
            self._remotes[peer] = Remote(self._shared, peer, urls)
            self._shared.logger.info(f"{peer:x} gave its address, {','.join(urls)}")

    # Requests from peers.

    @property
    def open(self) -> Container[int]:
        """The open calls that the transport serves."""
        return self._shared.calls

    def serves(self, method: str, target: str) -> bool:
        """Return whether the transport serves a request."""
        del method
        path, _, _ = target.partition("?")
        return path == PIPELINE or path.startswith("/raft/")

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """Take the head of a request that `serves` accepts."""
        path, _, _ = target.partition("?")
        if path == PROBING:
            body = answer_probe(self._shared.settings.unix_seconds())
            content = [("Content-Type", "text/plain; charset=utf-8")]
            self._shared.output.respond(call, 200, content, body)
        elif path in (PIPELINE, SNAPSHOT) or (path == COPY and self._shared.identity.copy_format):
            self._post_opened(call, method, path, joined(headers), now)
        elif path.startswith("/raft/stream/"):
            self._stream_opened(call, method, path, joined(headers), now)
        else:
            self._shared.refuse(call, NOT_FOUND)

    def _post_opened(
        self, call: int, method: str, path: str, headers: dict[str, str], now: float
    ) -> None:
        shared = self._shared
        answer_headers = [("X-Etcd-Cluster-ID", f"{shared.identity.cluster_id:x}")]
        if method != "POST":
            shared.refuse(call, wrong_method("POST"))
            return
        refusal = check_sender(shared.identity, headers)
        if refusal is not None:
            self._refuse(call, refusal, answer_headers, headers)
            return
        sender = parse_id(headers.get("x-server-from", ""))
        if sender is not None:
            self._take_address(sender, headers)
        if path == PIPELINE:
            shared.calls[call] = Arrival(shared, call, answer_headers)
        elif shared.settings.snap_directory is None:
            shared.refuse(call, NOT_FOUND, answer_headers)
        elif self._arrival is not None and not self._arrival.is_idle:
            self._refuse(call, BUSY, answer_headers, headers)
        else:
            self._arrival = SnapshotArrival(
                shared, call, answer_headers, self._counters_of, now, is_copy=path == COPY
            )
            shared.calls[call] = self._arrival
            self._wake_at = now

    def _counters_of(self, peer: int) -> PeerCounters:
        known = self._peers.get(peer) or self._remotes.get(peer)
        return PeerCounters() if known is None else known.counters

    def _stream_opened(
        self, call: int, method: str, path: str, headers: dict[str, str], now: float
    ) -> None:
        shared = self._shared
        if method != "GET":
            shared.refuse(call, wrong_method("GET"))
            return
        answer_headers = [
            ("X-Server-Version", shared.identity.server_version),
            ("X-Etcd-Cluster-ID", f"{shared.identity.cluster_id:x}"),
        ]
        kind, _, name = path.rpartition("/")
        sender = parse_id(name)
        refusal = check_sender(shared.identity, headers)
        if refusal is None:
            refusal = self._check_stream(kind, sender, headers)
        if refusal is not None:
            self._refuse(call, refusal, answer_headers, headers)
            return
        assert sender is not None
        source = f"{shared.output.peer(call)} ({headers.get('x-peerurls', '')[:200]})"
        peer = self._peers[sender]
        copies = headers.get("x-kvorum-copies", "")
        peer.takes_copies = bool(copies) and copies == shared.identity.copy_format
        peer.attach(call, source, now, is_append=kind == APPEND_STREAM)
        shared.output.respond(call, 200, answer_headers, None)
        self._wake_at = now

    def _check_stream(
        self, kind: str, sender: int | None, headers: dict[str, str]
    ) -> Refusal | None:
        if kind not in (APPEND_STREAM, MESSAGE_STREAM):
            return INVALID_PATH
        if sender is None:
            return INVALID_SENDER
        if self._shared.node.is_removed(sender):
            return SENDER_REMOVED
        if sender not in self._peers:
            self._take_address(sender, headers)
            return SENDER_UNKNOWN
        if headers.get("x-raft-to", "") != f"{self._shared.identity.local_id:x}":
            return WRONG_RECEIVER
        return None

    def _take_address(self, sender: int, headers: dict[str, str]) -> None:
        if sender not in self._peers and not self._shared.node.is_removed(sender):
            urls = parse_urls(headers.get("x-peerurls", ""))
            if urls is not None:
                self.add_remote(sender, urls)

    def _refuse(
        self, call: int, refusal: Refusal, answer_headers: Headers, headers: dict[str, str]
    ) -> None:
        """Refuse a request, and log that once for each sender and reason."""
        sender = headers.get("x-server-from", "")[:16]
        own, cluster = self._shared.identity.cluster_id, headers.get("x-etcd-cluster-id", "")
        hint = f"; {mismatch_hint(own, cluster)}" if refusal is CLUSTER_MISMATCH else ""
        self._shared.warn_once(
            f"refused a request of {sender or 'an unnamed sender'}: {refusal.text} "
            f"(version {headers.get('x-server-version', '')[:32]!r}, "
            f"cluster {cluster[:32]!r}; here {own:x}){hint}"
        )
        self._shared.refuse(call, refusal, answer_headers)

    def handle(self, kind: int, call: int, detail: Any, now: float) -> None:
        """Take an event of a call, and ignore it if the call is answered already."""
        served = self._shared.calls.get(call)
        if served is not None:
            served.handle(kind, detail, now)

    def abandon(self, call: int, now: float) -> bool:
        """Forget a call whose event raised an error; return whether its answer has started."""
        served = self._shared.calls.get(call)
        if served is None:
            return False
        if isinstance(served, SnapshotArrival):
            served.stop()
        else:
            served.handle(EdgeEventKind.ENDED, None, now)
        return isinstance(served, StreamWriter)

    # Requests to peers.

    def handle_answer(self, event: DialEvent, now: float) -> bool:
        """Take an event of a request; return False if the transport did not send it."""
        kind, number, detail = event
        requester = self._shared.requests.get(number)
        if requester is None:
            return False
        requester.handle_answer(kind, detail, now)
        if kind != _PIECE or number not in self._shared.requests:
            # An answer started or ended: connections may have changed, and timers may be due.
            self._wake_at = now
        return True

    def fail_request(self, number: int, problem: str, now: float) -> None:
        """Fail a request whose answer raised an error."""
        requester = self._shared.requests.get(number)
        if requester is not None:
            self._shared.dialer.cancel(number)
            requester.handle_answer(DialEventKind.FAILED, problem, now)
            self._wake_at = now

    # Messages of the node.

    def send(self, messages: Sequence[Message], now: float) -> None:
        """Send messages; drop those that cannot be sent, and report that to the host.

        Of consecutive acknowledgements to one node, send only the last, which covers the others.
        """
        held: Message | None = None
        for message in messages:
            if message.type == MessageType.APP_RESP:
                if held is not None and not _includes(message, held):
                    self._send(held, now)
                held = message
            else:
                self._send(message, now)
        if held is not None:
            self._send(held, now)
        batch: list[tuple[int, bytes]] = []
        for peer in self._peers.values():
            peer.flush(batch)
        self._entries.forget()
        if batch:
            self._shared.output.send(batch)

    def _send(self, message: Message, now: float) -> None:
        peer = self._peers.get(message.to)
        if peer is not None:
            peer.send(message, now)
            return
        remote = self._remotes.get(message.to)
        if remote is not None:
            self._wake_at = min(self._wake_at, now + self._shared.settings.answer_seconds_max)
            if not remote.pipeline.send(message, now):
                self._shared.node.report_unreachable(message.to)

    def send_snapshot(self, transfer: SnapshotTransfer, now: float) -> None:
        """Send a snapshot with its database; `Host.report_snapshot` reports the outcome."""
        peer = self._peers.get(transfer.message.to)
        if peer is None:
            self._shared.node.report_snapshot(transfer, failed=True)
        else:
            peer.send_snapshot(transfer, now)
            self._wake_at = now

    def takes_copies(self, peer: int) -> bool:
        """Return whether a peer accepts a snapshot with a copy of the database file."""
        known = self._peers.get(peer)
        return known is not None and known.takes_copies

    def probe_host(self, peer: int) -> bool:
        """Probe a peer's host if a stream from the peer is open; return whether a probe was sent.

        `Host.note_present` reports any outcome; a silent host gives none.
        """
        known = self._peers.get(peer)
        return known is not None and known.probe_host()

    # Time.

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when to call this next, at the latest."""
        if now < self._wake_at:
            return self._wake_at
        batch: list[tuple[int, bytes]] = []
        wake_at = _NEVER
        for peer in self._peers.values():
            wake_at = min(wake_at, peer.pass_time(now, batch))
            peer.note_connection(now)
        for remote in self._remotes.values():
            wake_at = min(wake_at, remote.pipeline.pass_time(now))
        if self._arrival is not None:
            wake_at = min(wake_at, self._arrival.pass_time(now))
        if batch:
            self._shared.output.send(batch)
        self._wake_at = wake_at
        return wake_at

    def stop(self) -> None:
        """End every stream and request."""
        for peer in self._peers.values():
            peer.stop()
        for remote in self._remotes.values():
            remote.pipeline.stop()
        if self._arrival is not None:
            self._arrival.stop()
        self._peers = {}
        self._remotes = {}
        self._wake_at = _NEVER


def _includes(later: Message, earlier: Message) -> bool:
    """Return whether an acknowledgement covers an earlier one."""
    return (
        later.to == earlier.to
        and later.term == earlier.term
        and not later.reject
        and not earlier.reject
        and later.index >= earlier.index
    )
