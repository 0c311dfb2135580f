"""A RawNode behind queues, for embedders that run a loop of their own.

Any thread may add to the queues: ticks, proposals, messages, requests. One loop empties them: it
calls `poll`, does the work of the Ready, and calls `advance`. This module has no thread, lock or
event. A Node calls `wake` after each addition; the embedder may set an event, write to a pipe, or
do nothing. Additions are safe from any thread, because they only append to a deque; the other
methods belong to the loop.

Proposals wait while no leader is known, and after this node was removed. Every queue has a limit;
above it the Node refuses requests and drops ticks.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from kvorum.raft.changes import ConfChange, ConfChangeV2
from kvorum.raft.config import Config
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.errors import (
    BootstrapError,
    BusyError,
    FatalError,
    PeerNotFoundError,
    RaftError,
    StoppedError,
)
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    IS_LOCAL,
    NONE,
    ConfState,
    Message,
    MessageType,
)
from kvorum.raft.rawnode import RawNode
from kvorum.raft.ready import Ready
from kvorum.raft.status import Status
from kvorum.raft.wire import encode_conf_change

TICKS_MAX = 128
PROPOSALS_MAX = 4096
MESSAGES_MAX = 4096

Done = Callable[[RaftError | None], None]


class Proposal:
    """A proposal that waits or has an outcome."""

    __slots__ = ("_done", "message")

    def __init__(self, message: Message, done: Done | None) -> None:
        self.message: Message | None = message
        self._done = done

    def cancel(self) -> bool:
        """Withdraw the proposal; return False if it already has an outcome."""
        withdrawn, self.message = self.message is not None, None
        return withdrawn

    def finish(self, error: RaftError | None) -> None:
        """Pass the outcome to the proposer's callback."""
        self.message = None
        if self._done is not None:
            self._done(error)


class Node:
    """One node, its queues, and at most one Ready that was handed out and not yet advanced."""

    __slots__ = (
        "_calls",
        "_lead",
        "_node",
        "_proposals",
        "_ready_outstanding",
        "_removed",
        "_stopped",
        "_synchronous",
        "_ticks",
        "_wake",
    )

    def __init__(self, node: RawNode, wake: Callable[[], None]) -> None:
        self._node = node
        self._wake = wake
        self._synchronous = not node.raft.config.async_storage_writes
        self._ticks: deque[None] = deque()
        self._proposals: deque[Proposal] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._lead = NONE
        self._removed = False
        self._stopped = False
        self._ready_outstanding = False

    # Called from any thread.

    def tick(self) -> None:
        """Queue one tick."""
        if len(self._ticks) >= TICKS_MAX:
            node = self._node.raft.id
            self._node.raft.logger.warning(f"{node:x} A tick missed to fire. Node blocks too long!")
            return
        self._ticks.append(None)
        self._wake()

    def propose(self, data: bytes, done: Done | None = None) -> Proposal:
        """Propose an entry; `done` receives None, or the reason for the refusal."""
        entries = [Entry(EntryType.NORMAL, 0, 0, data)]
        return self._propose(Message(MessageType.PROP, entries=entries), done)

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> Proposal:
        """Propose a membership change."""
        kind, data = encode_conf_change(change)
        return self._propose(Message(MessageType.PROP, entries=[Entry(kind, 0, 0, data)]), None)

    def _propose(self, message: Message, done: Done | None) -> Proposal:
        if self._stopped:
            raise StoppedError
        if len(self._proposals) >= PROPOSALS_MAX:
            raise BusyError
        proposal = Proposal(message, done)
        self._proposals.append(proposal)
        self._wake()
        return proposal

    def step(self, message: Message) -> None:
        """Queue a message from a peer or a local thread.

        The Node ignores types that only a node itself may send, and responses of unknown peers.
        """
        if message.type == MessageType.PROP:
            self._propose(message, None)
        elif not IS_LOCAL[message.type] or message.sender in (APPEND_THREAD, APPLY_THREAD):
            self._call(lambda: self._node.step(message))

    def campaign(self) -> None:
        """Start an election."""
        self._call(self._node.campaign)

    def transfer_leader(self, node: int) -> None:
        """Ask the leader to transfer leadership to a peer."""
        self._call(lambda: self._node.transfer_leader(node))

    def forget_leader(self) -> None:
        """Forget the leader."""
        self._call(self._node.forget_leader)

    def read_index(self, context: bytes) -> None:
        """Request the index that a read must wait for. A read state answers, or nothing does."""
        self._call(lambda: self._node.read_index(context))

    def report_unreachable(self, node: int) -> None:
        """Report that the last message to a peer may not have arrived."""
        self._call(lambda: self._node.report_unreachable(node))

    def report_snapshot(self, node: int, *, failed: bool) -> None:
        """Report whether a snapshot message arrived."""
        self._call(lambda: self._node.report_snapshot(node, failed=failed))

    def _call(self, call: Callable[[], None]) -> None:
        if self._stopped:
            raise StoppedError
        if len(self._calls) >= MESSAGES_MAX:
            raise BusyError
        self._calls.append(call)
        self._wake()

    # Called by the loop.

    def poll(self) -> Ready | None:
        """Serve the queues; return work if there is any and the last Ready was advanced."""
        if self._stopped:
            return None
        try:
            while self._serve():
                pass
            if self._ready_outstanding or not self._node.has_ready():
                return None
            self._ready_outstanding = self._synchronous
            return self._node.ready()
        except FatalError:
            self.stop()
            raise

    def _serve(self) -> bool:
        """Serve one item of each queue, so that none delays another; False if all were empty."""
        served = False
        self._note_leader()
        if self._ticks:
            self._ticks.popleft()
            self._node.tick()
            served = True
        if self._calls:
            with suppress(PeerNotFoundError):  # the peer was removed, or is not yet known
                self._calls.popleft()()
            served = True
        self._note_leader()
        if self._proposals and self._lead != NONE and not self._removed:
            proposal = self._proposals.popleft()
            if proposal.message is not None:
                self._serve_proposal(proposal, proposal.message)
            served = True
        return served

    def _serve_proposal(self, proposal: Proposal, message: Message) -> None:
        try:
            self._node.step(message)
        except RaftError as error:
            proposal.finish(error)
        else:
            proposal.finish(None)

    def _note_leader(self) -> None:
        raft = self._node.raft
        if raft.lead == self._lead:
            return
        if raft.lead == NONE:
            raft.logger.info(
                f"raft.node: {raft.id:x} lost leader {self._lead:x} at term {raft.term}"
            )
        elif self._lead == NONE:
            raft.logger.info(
                f"raft.node: {raft.id:x} elected leader {raft.lead:x} at term {raft.term}"
            )
        else:
            raft.logger.info(
                f"raft.node: {raft.id:x} changed leader from {self._lead:x} to {raft.lead:x} "
                f"at term {raft.term}"
            )
        self._lead = raft.lead

    def advance(self) -> None:
        """Report that the work of the last Ready is done."""
        if self._stopped:
            return
        self._node.advance()
        self._ready_outstanding = False
        self._wake()

    def apply_conf_change(self, change: ConfChange | ConfChangeV2) -> ConfState:
        """Apply a committed change; return the members, to be stored with snapshots."""
        progress = self._node.raft.tracker.progress
        was_member = self._node.raft.id in progress
        state = self._node.apply_conf_change(change)
        is_member = self._node.raft.id in self._node.raft.tracker.progress
        self._removed = not is_member and (was_member or self._removed)
        return state

    def status(self) -> Status:
        """Return a copy of the whole status; an empty status after a stop."""
        return Status() if self._stopped else self._node.status()

    def stop(self) -> None:
        """Refuse new requests and fail the waiting proposals. Repeated calls are harmless."""
        self._stopped = True
        while self._proposals:
            proposal = self._proposals.popleft()
            if proposal.message is not None:
                proposal.finish(StoppedError())
        self._calls.clear()
        self._ticks.clear()


def start_node(
    config: Config, peers: Iterable[tuple[int, bytes]], wake: Callable[[], None]
) -> Node:
    """Create a node of a new group; the peers are its first members, with their contexts."""
    members = list(peers)
    if not members:
        raise BootstrapError("no peers given; use RestartNode instead")
    node = RawNode(config)
    try:
        node.bootstrap(members)
    except BootstrapError as error:
        config.logger.warning(f"error occurred during starting a new node: {error}")
    return Node(node, wake)


def restart_node(config: Config, wake: Callable[[], None]) -> Node:
    """Create a node whose group is in its storage."""
    return Node(RawNode(config), wake)
