"""A RawNode behind queues, for those who want a loop of their own.

Anyone puts things into the queues: ticks, proposals, messages, requests. One loop takes them out:
it calls `poll`, does what the Ready asks for, and calls `advance`. There is no thread, lock or
event here. `wake` is called whenever something was put in; the embedder may set an event, write to
a pipe, or do nothing. Putting in is safe from any thread, because it only appends to a deque;
everything the loop calls belongs to the loop.

Proposals wait while no leader is known, and after this node was removed. Every queue has a limit;
above it things are refused, and ticks are lost.
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
    """A proposal that waits, or is settled."""

    __slots__ = ("_done", "message")

    def __init__(self, message: Message, done: Done | None) -> None:
        self.message: Message | None = message
        self._done = done

    def cancel(self) -> bool:
        """Withdraw the proposal; False if it was settled before."""
        withdrawn, self.message = self.message is not None, None
        return withdrawn

    def finish(self, error: RaftError | None) -> None:
        """Tell the proposer the outcome."""
        self.message = None
        if self._done is not None:
            self._done(error)


class Node:
    """One node, its queues, and at most one Ready that was handed out and not advanced."""

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

    # Put in, from anywhere.

    def tick(self) -> None:
        """Let one tick pass."""
        if len(self._ticks) >= TICKS_MAX:
            node = self._node.raft.id
            self._node.raft.logger.warning(f"{node:x} A tick missed to fire. Node blocks too long!")
            return
        self._ticks.append(None)
        self._wake()

    def propose(self, data: bytes, done: Done | None = None) -> Proposal:
        """Propose an entry; `done` is called with None, or with the reason for its refusal."""
        entries = [Entry(EntryType.NORMAL, 0, 0, data)]
        return self._propose(Message(MessageType.PROP, entries=entries), done)

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> Proposal:
        """Propose a change of the membership."""
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
        """Take a message from a peer or a local thread.

        Types that only a node itself may send are ignored, and so is a response of an unknown peer.
        """
        if message.type == MessageType.PROP:
            self._propose(message, None)
        elif not IS_LOCAL[message.type] or message.sender in (APPEND_THREAD, APPLY_THREAD):
            self._call(lambda: self._node.step(message))

    def campaign(self) -> None:
        """Stand for election."""
        self._call(self._node.campaign)

    def transfer_leader(self, node: int) -> None:
        """Ask the leader to hand over to a peer."""
        self._call(lambda: self._node.transfer_leader(node))

    def forget_leader(self) -> None:
        """Stop following the leader."""
        self._call(self._node.forget_leader)

    def read_index(self, context: bytes) -> None:
        """Ask which index a read must wait for; the answer comes as a read state, or never."""
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

    # Take out, in the loop.

    def poll(self) -> Ready | None:
        """Serve what was put in; return work if there is any and the last one was advanced."""
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
        """Serve one of each kind, so that none waits for all of another; False if none was."""
        served = False
        self._note_leader()
        if self._ticks:
            self._ticks.popleft()
            self._node.tick()
            served = True
        if self._calls:
            with suppress(PeerNotFoundError):  # removed meanwhile, or not yet known
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
        """Apply a committed change; return the members, to be kept with snapshots."""
        progress = self._node.raft.tracker.progress
        was_member = self._node.raft.id in progress
        state = self._node.apply_conf_change(change)
        is_member = self._node.raft.id in self._node.raft.tracker.progress
        self._removed = not is_member and (was_member or self._removed)
        return state

    def status(self) -> Status:
        """Return a copy of everything worth showing; empty after a stop."""
        return Status() if self._stopped else self._node.status()

    def stop(self) -> None:
        """Accept nothing more, and fail whatever still waits. May be called again."""
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
    """Make a node of a new group; the peers are its first members, with their contexts."""
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
    """Make a node whose group its storage knows."""
    return Node(RawNode(config), wake)
