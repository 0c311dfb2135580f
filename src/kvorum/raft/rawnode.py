"""The node as an embedder drives it: plain method calls in, one Ready at a time out.

In the synchronous mode the embedder does the work of every `ready()` and then calls `advance()`.
With asynchronous storage writes there is no `advance`: the work is in messages to two local
threads, append and apply. The embedder steps their responses in when the work is done.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvorum.raft import membership
from kvorum.raft.changes import ChangeType, ConfChange, ConfChangeV2
from kvorum.raft.config import Config
from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry, EntryType, encoded_size
from kvorum.raft.errors import (
    BootstrapError,
    FatalError,
    LocalMessageError,
    PeerNotFoundError,
    RaftError,
)
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    IS_LOCAL,
    IS_RESPONSE,
    NO_HARD_STATE,
    NONE,
    ConfState,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.names import MESSAGE_TYPE_NAMES
from kvorum.raft.ready import Ready
from kvorum.raft.states import SoftState
from kvorum.raft.status import BasicStatus, Status, basic_status, status
from kvorum.raft.wire import encode_conf_change

_LOCAL_THREADS: Final = (APPEND_THREAD, APPLY_THREAD)
# A node never sends these types to itself, nor without a term.
_OF_OTHERS: Final = (
    MessageType.APP,
    MessageType.HEARTBEAT,
    MessageType.SNAP,
    MessageType.VOTE,
    MessageType.PRE_VOTE,
    MessageType.TIMEOUT_NOW,
)


class RawNode:
    """One node. It must not be called from several threads at once."""

    __slots__ = ("_async", "_hard_state", "_soft_state", "_steps_on_advance", "raft")

    def __init__(self, config: Config) -> None:
        self.raft = Raft(config)
        self._async = config.async_storage_writes
        # The values in the last accepted Ready, or in the storage at the start.
        self._soft_state = self.raft.soft_state()
        self._hard_state = self.raft.hard_state()
        self._steps_on_advance: list[Message] = []

    def bootstrap(self, peers: Iterable[tuple[int, bytes]]) -> None:
        """Start a new group. Every member must start with the same ids and contexts.

        The log begins with one committed change per peer, in the order given.
        """
        members = list(peers)
        if not members:
            raise BootstrapError("must provide at least one peer to Bootstrap")
        raft = self.raft
        if raft.log.storage.last_index() != 0:
            raise BootstrapError("can't bootstrap a nonempty Storage")
        self._hard_state = NO_HARD_STATE
        raft.become_follower(1, NONE)
        changes = [ConfChange(ChangeType.ADD_NODE, node, context) for node, context in members]
        raft.log.append(
            [
                Entry(EntryType.CONF_CHANGE, 1, index, encode_conf_change(change)[1])
                for index, change in enumerate(changes, 1)
            ]
        )
        raft.log.committed = len(changes)
        # Apply the changes now, because a node that does not know its group cannot campaign. The
        # first Ready hands them out again, when they no longer change anything.
        for change in changes:
            membership.apply_conf_change(raft, change)

    # Input.

    def tick(self) -> None:
        """Advance the node's clock by one tick."""
        self.raft.tick()

    def campaign(self) -> None:
        """Start an election now."""
        self.raft.step(Message(MessageType.HUP))

    def propose(self, data: bytes) -> None:
        """Propose one entry. Raise ProposalDroppedError if the node refuses it."""
        self.raft.propose((data,))

    def propose_batch(self, payloads: Sequence[bytes]) -> None:
        """Propose entries that follow each other in the log: all of them or none."""
        self.raft.propose(payloads)

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> None:
        """Propose a change. A leader that cannot make it now appends an empty entry instead."""
        kind, data = encode_conf_change(change)
        self.raft.step(Message(MessageType.PROP, entries=[Entry(kind, 0, 0, data)]))

    def apply_conf_change(self, change: ConfChange | ConfChangeV2) -> ConfState:
        """Apply a committed change; return the members, to be stored with snapshots.

        To cancel a change, apply it with node 0 in its place.
        """
        return membership.apply_conf_change(self.raft, change)

    def step(self, message: Message) -> None:
        """Process a message from a peer or a local thread.

        Raise LocalMessageError, PeerNotFoundError or ProposalDroppedError; the node goes on.
        """
        kind, sender = message.type, message.sender
        if IS_LOCAL[kind]:
            if sender not in _LOCAL_THREADS:
                raise LocalMessageError
        elif IS_RESPONSE[kind]:
            if sender not in self.raft.tracker.progress:
                raise PeerNotFoundError
        elif kind in _OF_OTHERS and (sender == self.raft.id or not message.term):
            self.raft.logger.error(
                f"{self.raft.id:x} ignored {MESSAGE_TYPE_NAMES[kind]} from {sender:x} at term "
                f"{message.term}; expected another node, and a term"
            )
            return
        self.raft.step(message)

    def report_unreachable(self, node: int) -> None:
        """Report that the last message to a peer may not have arrived."""
        self._step_quietly(Message(MessageType.UNREACHABLE, sender=node))

    def report_snapshot(self, node: int, *, failed: bool) -> None:
        """Report whether a snapshot message arrived; the leader pauses the peer until then."""
        self._step_quietly(Message(MessageType.SNAP_STATUS, sender=node, reject=failed))

    def transfer_leader(self, node: int) -> None:
        """Ask the leader to transfer leadership to a peer."""
        self._step_quietly(Message(MessageType.TRANSFER_LEADER, sender=node))

    def forget_leader(self) -> None:
        """Forget the leader, so that another node can be elected before the election timeout."""
        self.raft.step(Message(MessageType.FORGET_LEADER))

    def read_index(self, context: bytes) -> None:
        """Request the index that a read must wait for. A read state answers, or nothing does."""
        request = Entry(EntryType.NORMAL, 0, 0, context)
        self._step_quietly(Message(MessageType.READ_INDEX, entries=[request]))

    def _step_quietly(self, message: Message) -> None:
        try:
            self.raft.step(message)
        except RaftError as error:
            self.raft.logger.debug(f"{self.raft.id:x} {error}")

    # Output.

    def status(self) -> Status:
        """Return a copy of the whole status."""
        return status(self.raft)

    def basic_status(self) -> BasicStatus:
        """Return the status without the parts that must be copied."""
        return basic_status(self.raft)

    def has_ready(self) -> bool:
        """Return whether `ready` would return any work."""
        raft = self.raft
        if raft.messages or raft.messages_after_append or raft.read_states:
            return True
        log = raft.log
        return (
            log.unstable.has_next_entries()
            or log.has_next_committed(not self._async)
            or log.unstable.next_snapshot() is not None
            or self._changed_hard_state() is not None
            or (raft.lead, raft.role) != self._soft_state
        )

    def _changed_hard_state(self) -> HardState | None:
        raft = self.raft
        term, vote, commit = self._hard_state
        if raft.log.committed == commit and raft.term == term and raft.vote == vote:
            return None
        state = raft.hard_state()
        return None if state == NO_HARD_STATE else state

    def ready(self) -> Ready:
        """Return the work to do now, and assume that the embedder will do it."""
        ready = self.peek_ready()
        self._accept(ready)
        return ready

    def peek_ready(self) -> Ready:
        """Return the work that `ready` would return, without accepting it."""
        raft = self.raft
        log = raft.log
        soft_state = (raft.lead, raft.role)
        hard_state = self._changed_hard_state()
        entries = log.unstable.next_entries()
        ready = Ready(
            None if soft_state == self._soft_state else SoftState(*soft_state),
            hard_state,
            raft.read_states,
            entries,
            log.unstable.next_snapshot(),
            log.next_committed(not self._async),
            raft.messages,
            bool(entries) or (hard_state is not None and hard_state[:2] != self._hard_state[:2]),
        )
        if self._async:
            ready.messages = raft.messages + self._storage_messages(ready)
        elif raft.messages_after_append:
            ready.messages = raft.messages + [
                message for message in raft.messages_after_append if message.to != raft.id
            ]
        return ready

    def _storage_messages(self, ready: Ready) -> list[Message]:
        """Return the messages that carry the work to the append and apply threads."""
        raft = self.raft
        messages = []
        hard_state = ready.hard_state
        if ready.entries or hard_state or ready.snapshot or raft.messages_after_append:
            written = self._append_response(ready.snapshot)
            responses = raft.messages_after_append + ([written] if written else [])
            term, vote, commit = hard_state or NO_HARD_STATE
            messages.append(
                Message(
                    MessageType.STORAGE_APPEND,
                    to=APPEND_THREAD,
                    sender=raft.id,
                    term=term,
                    vote=vote,
                    commit=commit,
                    entries=ready.entries,
                    snapshot=ready.snapshot,
                    responses=responses,
                )
            )
        if ready.committed_entries:
            messages.append(
                Message(
                    MessageType.STORAGE_APPLY,
                    to=APPLY_THREAD,
                    sender=raft.id,
                    entries=ready.committed_entries,
                    responses=[self._apply_response(ready.committed_entries)],
                )
            )
        return messages

    def _append_response(self, snapshot: Snapshot | None) -> Message | None:
        """Return the message to step in once everything appended so far is durable.

        The message names the end of the log, not of this batch, and accompanies every write while
        any entry is unstable. A node whose term has changed meanwhile ignores the message, but the
        change of term causes another write, which brings a new message.
        """
        raft = self.raft
        unstable = raft.log.unstable.entries
        if not unstable and snapshot is None:
            return None
        response = Message(
            MessageType.STORAGE_APPEND_RESP,
            to=raft.id,
            sender=APPEND_THREAD,
            term=raft.term,
            snapshot=snapshot,
        )
        if unstable:
            response.log_term, response.index = unstable[-1].term, unstable[-1].index
        return response

    def _apply_response(self, entries: Sequence[Entry]) -> Message:
        return Message(
            MessageType.STORAGE_APPLY_RESP, to=self.raft.id, sender=APPLY_THREAD, entries=entries
        )

    def _accept(self, ready: Ready) -> None:
        raft = self.raft
        if not self._async:
            if self._steps_on_advance:
                raise FatalError("two accepted Ready structs without call to Advance")
            if raft.messages_after_append:
                self._steps_on_advance = [
                    message for message in raft.messages_after_append if message.to == raft.id
                ]
            written = self._append_response(ready.snapshot)
            if written is not None:
                self._steps_on_advance.append(written)
            if ready.committed_entries:
                self._steps_on_advance.append(self._apply_response(ready.committed_entries))
        if ready.soft_state is not None:
            self._soft_state = ready.soft_state
        if ready.hard_state is not None:
            self._hard_state = ready.hard_state
        # Make new lists, because the embedder keeps those in the Ready.
        if raft.read_states:
            raft.read_states = []
        raft.messages = []
        raft.messages_after_append = []
        raft.log.unstable.accept_in_progress()
        committed = ready.committed_entries
        if committed:
            raft.log.accept_applying(
                committed[-1].index, encoded_size(committed), allow_unstable=not self._async
            )

    def advance(self) -> None:
        """Report that the work of the last Ready is done."""
        if self._async:
            raise FatalError("Advance must not be called when using AsyncStorageWrites")
        steps, self._steps_on_advance = self._steps_on_advance, []
        step = self.raft.step
        for message in steps:
            try:
                step(message)
            except RaftError as error:
                self.raft.logger.debug(f"{self.raft.id:x} {error}")
