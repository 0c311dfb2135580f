"""A node: raft, its disk, its store and its transport, driven by calls.

It has no socket, thread or clock of its own; `server` supplies them. The order of steps in `turn`
is the contract of `kvorum.raft`: write, send, apply, advance.
"""

from collections.abc import Callable
from typing import Any

from examples.raftexample.disk import Disk
from examples.raftexample.store import Put, Store, decode_put
from kvorum.raft import (
    ChangeType,
    ConfChange,
    Config,
    Entry,
    EntryType,
    Message,
    ProposalDroppedError,
    RaftError,
    RawNode,
    Snapshot,
)
from kvorum.raft.logger import Logger
from kvorum.raft.wire import decode_conf_change
from kvorum.server.peer.transport import Transport
from kvorum.storage.files import Files

SNAPSHOT_ENTRIES = 10_000
CATCH_UP_ENTRIES = 1_000
"""Entries kept before a snapshot, for nodes that are only a little behind."""
PROPOSAL_SECONDS_MAX = 5.0

Answer = Callable[[bool], None]
"""Called once: with True when the proposal is applied here, with False if it may be lost."""


class Node:
    """Serves a `Store`, and is the `Host` of `kvorum.server.peer.transport`."""

    transport: Transport

    def __init__(
        self,
        node_id: int,
        urls: list[str],
        files: Files,
        directory: str,
        logger: Logger,
        random_below: Callable[[int], int],
        *,
        joins: bool,
    ) -> None:
        self.id = node_id
        self.store = Store()
        self.is_running = True
        self._files = files
        self._logger = logger
        self._disk = Disk(files, directory)
        self._waiting: dict[int, tuple[Answer, float]] = {}
        # A random start keeps proposal numbers unique across restarts.
        self._numbers = random_below(1 << 53) << 10
        snapshot = self._disk.snapshot
        if snapshot is not None:
            self.store.restore(snapshot.data)
        self._applied = snapshot.index if snapshot is not None else 0
        self._raft = RawNode(
            Config(
                id=node_id,
                storage=self._disk.storage,
                logger=logger,
                random_below=random_below,
                election_ticks=10,
                heartbeat_ticks=1,
                message_size_max=1 << 20,
                inflight_messages_max=256,
                check_quorum=True,
                pre_vote=True,
                applied=self._applied,
            )
        )
        self._conf_state = self._disk.storage.initial_state()[1]
        if self._disk.is_new and not joins:
            self._raft.bootstrap([(place, url.encode()) for place, url in enumerate(urls, 1)])

    def connect(self, transport: Transport, urls: list[str], now: float) -> None:
        """Use a transport, with the nodes' addresses from the command line and the store."""
        self.transport = transport
        known = dict(enumerate(urls, 1)) | self.store.nodes
        for node, url in known.items():
            if node != self.id and node not in self.store.removed:
                transport.add_peer(node, [url], now)

    # Requests of clients.

    def put(self, key: str, value: str, answer: Answer, now: float) -> None:
        """Propose a key's new value."""
        number = self._next_number()
        data = Put(number, key, value).encode()
        self._propose(lambda: self._raft.propose(data), number, answer, now)

    def change(self, kind: int, node: int, url: str, answer: Answer, now: float) -> None:
        """Propose to add or remove a node."""
        number = self._next_number()
        change = ConfChange(kind, node, url.encode(), number)
        self._propose(lambda: self._raft.propose_conf_change(change), number, answer, now)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _propose(
        self, propose: Callable[[], None], number: int, answer: Answer, now: float
    ) -> None:
        try:
            propose()
        except ProposalDroppedError:
            answer(False)
        else:
            self._waiting[number] = (answer, now + PROPOSAL_SECONDS_MAX)

    def _answer(self, number: int, *, is_applied: bool) -> None:
        answer, _ = self._waiting.pop(number, (None, 0.0))
        if answer is not None:
            answer(is_applied)

    # Events.

    def tick(self, now: float) -> None:
        """Advance raft by one tick, and fail proposals that took too long."""
        self._raft.tick()
        for number in [number for number, (_, until) in self._waiting.items() if now >= until]:
            self._answer(number, is_applied=False)

    def turn(self, now: float) -> None:
        """Do all work that raft requests."""
        while self.is_running and self._raft.has_ready():
            ready = self._raft.ready()
            if ready.snapshot is not None:
                self._disk.write_snapshot(ready.snapshot)
            self._disk.write(ready.hard_state, ready.entries)
            if ready.snapshot is not None:
                self._take(ready.snapshot, now)
            self.transport.send(ready.messages, now)
            for entry in ready.committed_entries:
                self._apply(entry, now)
            self._snapshot_if_due()
            self._raft.advance()

    def _take(self, snapshot: Snapshot, now: float) -> None:
        self._disk.storage.apply_snapshot(snapshot)
        self.store.restore(snapshot.data)
        self._conf_state = snapshot.conf_state
        self._applied = snapshot.index
        self.connect(self.transport, [], now)
        self._logger.info(f"took a snapshot at index {snapshot.index} from the leader")

    def _apply(self, entry: Entry, now: float) -> None:
        self._applied = entry.index
        if entry.type == EntryType.CONF_CHANGE:
            change = decode_conf_change(entry)
            assert isinstance(change, ConfChange)
            self._conf_state = self._raft.apply_conf_change(change)
            self._note_change(change, now)
            self._answer(change.id, is_applied=True)
        elif entry.data:
            put = decode_put(entry.data)
            self.store.apply(put)
            self._answer(put.number, is_applied=True)

    def _note_change(self, change: ConfChange, now: float) -> None:
        if change.type == ChangeType.REMOVE_NODE:
            self.store.remove_node(change.node_id)
            if change.node_id == self.id:
                self.note_removed()
            else:
                self.transport.remove_peer(change.node_id)
        else:
            url = change.context.decode()
            self.store.add_node(change.node_id, url)
            if change.node_id != self.id:
                self.transport.add_peer(change.node_id, [url], now)

    def _snapshot_if_due(self) -> None:
        """After a number of entries, snapshot the store to replace the log before.

        Once there is a snapshot, also make one after every membership change: a new node does not
        accept a snapshot that does not name it.
        """
        storage = self._disk.storage
        last = storage.snapshot()
        is_outdated = bool(last.index) and last.conf_state != self._conf_state
        if self._applied - last.index <= SNAPSHOT_ENTRIES and not is_outdated:
            return
        data = self.store.snapshot()
        snapshot = storage.create_snapshot(self._applied, self._conf_state, data)
        self._disk.write_snapshot(snapshot)
        self._disk.release_to(snapshot.index)
        if self._applied - CATCH_UP_ENTRIES >= storage.first_index():
            storage.compact(self._applied - CATCH_UP_ENTRIES)
        self._logger.info(f"made a snapshot at index {self._applied}")

    def close(self) -> None:
        """Close the transport and the disk."""
        self.transport.stop()
        self._disk.close()

    # Reports of the transport.

    def receive(self, message: Message) -> None:
        """Pass another node's message to raft."""
        try:
            self._raft.step(message)
        except RaftError as error:
            self._logger.debug(f"{error}")

    def report_unreachable(self, peer: int) -> None:
        """Make raft probe the node."""
        self._raft.report_unreachable(peer)

    def report_snapshot(self, transfer: Any, *, failed: bool) -> None:
        """Let raft continue with a node that received a snapshot, or retry."""
        self._raft.report_snapshot(transfer.message.to, failed=failed)

    def note_connected(self, peer: int, now: float) -> None:
        """Do nothing: raft needs no such report."""

    def note_disconnected(self, peer: int) -> None:
        """Do nothing: raft needs no such report."""

    def note_absent(self, peer: int) -> None:
        """Do nothing: raft's election timer handles absent nodes."""

    def note_present(self, peer: int) -> None:
        """Do nothing: raft needs no such report."""

    def is_removed(self, peer: int) -> bool:
        """Return whether a node once belonged to the group and no longer does."""
        return peer in self.store.removed

    def note_removed(self) -> None:
        """Stop running; the other nodes go on."""
        self._logger.warning("this node was removed from the group, and ends")
        self.is_running = False

    def submit(
        self, work: Any, done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run the work now; no large snapshot arrives, because this store's fit into a message."""
        try:
            result = work.run(self._files)
        except OSError as error:
            failed(error)
        else:
            done(result)
