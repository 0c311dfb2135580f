"""The state of one node, the checks of a message's term, and the dispatch to four roles.

A message either concerns every role (elections, this node's storage) or goes to the table of the
node's current role; a type that is not in the table is ignored. The rules of the roles are in
`follower`, `candidate` and `leader`, their common parts in `election`, `replication`, `reads` and
`membership`.

This module neither sends nor writes. It queues messages in two lists. `messages` may be sent at
once. `messages_after_append` depend on writes, and must wait until everything appended so far is
durable.
"""

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from kvorum.raft import candidate, election, follower, leader, membership, replication
from kvorum.raft.config import Config
from kvorum.raft.entries import Entry, EntryType, encoded_size, payload_size
from kvorum.raft.errors import RaftError
from kvorum.raft.log import RaftLog
from kvorum.raft.logger import stop
from kvorum.raft.messages import (
    MESSAGE_TYPES,
    NO_HARD_STATE,
    NONE,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.names import MESSAGE_TYPE_NAMES
from kvorum.raft.read_only import ReadOnly
from kvorum.raft.states import ReadState, Role, SoftState
from kvorum.raft.tracker import Tracker

_ELECTION_TYPES: Final = (
    MessageType.VOTE,
    MessageType.VOTE_RESP,
    MessageType.PRE_VOTE,
    MessageType.PRE_VOTE_RESP,
)
_OF_A_LEADER: Final = (MessageType.APP, MessageType.HEARTBEAT, MessageType.SNAP)
# Indexed by message type.
_IS_OF_ELECTION: Final = tuple(kind in _ELECTION_TYPES for kind in MESSAGE_TYPES)
# These travel without a term, because they are for the leader at the time of their arrival.
_IS_FORWARDED: Final = tuple(
    kind in (MessageType.PROP, MessageType.READ_INDEX) for kind in MESSAGE_TYPES
)
# These promise that something was written, so they wait until it is durable.
_IS_PROMISE: Final = tuple(
    kind in (MessageType.APP_RESP, MessageType.VOTE_RESP, MessageType.PRE_VOTE_RESP)
    for kind in MESSAGE_TYPES
)


class Raft:
    """One node of a group."""

    __slots__ = (
        "config",
        "election_elapsed",
        "heartbeat_elapsed",
        "id",
        "is_learner",
        "lead",
        "lead_transferee",
        "log",
        "logger",
        "messages",
        "messages_after_append",
        "pending_conf_index",
        "pending_read_index_messages",
        "randomized_election_timeout",
        "read_only",
        "read_states",
        "role",
        "term",
        "tracker",
        "unannounced_changes",
        "uncommitted_size",
        "vote",
    )

    def __init__(self, config: Config) -> None:
        config.validate()
        self.config = config
        self.id = config.id
        self.logger = config.logger
        self.log = RaftLog(config.storage, config.logger, config.committed_size_max)
        self.tracker = Tracker(config.inflight_messages_max, config.inflight_bytes_max)
        self.role = Role.FOLLOWER
        self.term = 0
        self.vote = NONE
        self.lead = NONE
        self.is_learner = False
        self.lead_transferee = NONE
        # Refuse another membership change until the log is applied up to this index.
        self.pending_conf_index = 0
        # An estimate of the payload above the commit index that this leader accepted.
        self.uncommitted_size = 0
        # Indexes of membership changes whose commit this leader may not announce yet.
        self.unannounced_changes: list[int] = []
        self.read_only = ReadOnly()
        self.read_states: list[ReadState] = []
        # Reads that arrived before this leader committed an entry of its own term.
        self.pending_read_index_messages: list[Message] = []
        self.messages: list[Message] = []
        self.messages_after_append: list[Message] = []
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.randomized_election_timeout = config.election_ticks

        hard_state, conf_state = config.storage.initial_state()
        membership.restore_config(self, conf_state)
        if hard_state != NO_HARD_STATE:
            self._load(hard_state)
        if config.applied > 0:
            self.log.applied_to(config.applied, 0)
        self.become_follower(self.term, NONE)
        peers = ",".join(f"{node:x}" for node in self.tracker.config.voters())
        last_term, last_index = self.log.last_entry_id()
        self.logger.info(
            f"newRaft {self.id:x} [peers: [{peers}], term: {self.term}, "
            f"commit: {self.log.committed}, applied: {self.log.applied}, "
            f"lastindex: {last_index}, lastterm: {last_term}]"
        )

    def _load(self, state: HardState) -> None:
        last = self.log.last_index()
        if not self.log.committed <= state.commit <= last:
            self.stop(
                f"{self.id:x} state.commit {state.commit} is out of range "
                f"[{self.log.committed}, {last}]"
            )
        self.log.committed = state.commit
        self.term = state.term
        self.vote = state.vote

    def stop(self, text: str) -> NoReturn:
        """Log a last line and raise FatalError."""
        stop(self.logger, text)

    def soft_state(self) -> SoftState:
        """Return the state that need not be written."""
        return SoftState(self.lead, self.role)

    def hard_state(self) -> HardState:
        """Return the state that must survive a restart."""
        return HardState(self.term, self.vote, self.log.committed)

    def promotable(self) -> bool:
        """Return whether this node may campaign."""
        own = self.tracker.progress.get(self.id)
        return own is not None and not own.is_learner and self.log.unstable.snapshot is None

    # Change the role.

    def reset(self, term: int) -> None:
        """Reset the state of the role and, if the term changes, the state of the term."""
        if self.term != term:
            self.term = term
            self.vote = NONE
        self.lead = NONE
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        ticks = self.config.election_ticks
        self.randomized_election_timeout = ticks + self.config.random_below(ticks)
        self.lead_transferee = NONE
        self.tracker.reset_votes()
        last = self.log.last_index()
        progress = self.tracker.progress
        for node, peer in progress.items():
            fresh = self.tracker.new_progress(0, last + 1)
            fresh.is_learner = peer.is_learner
            progress[node] = fresh
        if self.id in progress:
            progress[self.id].match = last
        self.pending_conf_index = 0
        self.uncommitted_size = 0
        self.unannounced_changes = []
        self.read_only = ReadOnly()

    def become_follower(self, term: int, lead: int) -> None:
        """Follow `lead`, or wait for a leader if it is NONE."""
        self.reset(term)
        self.lead = lead
        self.role = Role.FOLLOWER
        self.logger.info(f"{self.id:x} became follower at term {self.term}")

    def become_candidate(self) -> None:
        """Start a new term and vote for this node in it."""
        if self.role == Role.LEADER:
            self.stop("invalid transition [leader -> candidate]")
        self.reset(self.term + 1)
        self.vote = self.id
        self.role = Role.CANDIDATE
        self.logger.info(f"{self.id:x} became candidate at term {self.term}")

    def become_pre_candidate(self) -> None:
        """Ask whether an election could be won, keeping term, vote and timers."""
        if self.role == Role.LEADER:
            self.stop("invalid transition [leader -> pre-candidate]")
        self.tracker.reset_votes()
        self.lead = NONE
        self.role = Role.PRE_CANDIDATE
        self.logger.info(f"{self.id:x} became pre-candidate at term {self.term}")

    def become_leader(self) -> None:
        """Become the leader of the term, and append an empty entry."""
        if self.role == Role.FOLLOWER:
            self.stop("invalid transition [follower -> leader]")
        self.reset(self.term)
        self.lead = self.id
        self.role = Role.LEADER
        own = self.tracker.progress.get(self.id)
        if own is not None:
            own.become_replicate()
            own.recent_active = True
        # Some entry of the log may be a membership change that is not applied yet.
        self.pending_conf_index = self.log.last_index()
        if self.config.tell_changes_when_applied:
            self.unannounced_changes = membership.uncommitted_changes(self)
        if not replication.append(self, [(EntryType.NORMAL, b"")]):
            self.stop("empty entry was dropped")
        self.logger.info(f"{self.id:x} became leader at term {self.term}")

    # The clock.

    def tick(self) -> None:
        """Advance the clock by one tick."""
        self.election_elapsed += 1
        if self.role != Role.LEADER:
            if self.promotable() and self.election_elapsed >= self.randomized_election_timeout:
                self.election_elapsed = 0
                self._step_own(MessageType.HUP, "error occurred during election")
            return
        self.heartbeat_elapsed += 1
        if self.election_elapsed >= self.config.election_ticks:
            self.election_elapsed = 0
            if self.config.check_quorum:
                self._step_own(
                    MessageType.CHECK_QUORUM, "error occurred during checking sending heartbeat"
                )
            # A leadership transfer that takes an election timeout has failed.
            if self.role == Role.LEADER:
                self.lead_transferee = NONE
        if self.role == Role.LEADER and self.heartbeat_elapsed >= self.config.heartbeat_ticks:
            self.heartbeat_elapsed = 0
            self._step_own(MessageType.BEAT, "error occurred during checking sending heartbeat")

    def _step_own(self, kind: int, complaint: str) -> None:
        try:
            self.step(Message(kind, sender=self.id))
        except RaftError as error:
            self.logger.debug(f"{complaint}: {error}")

    # Messages.

    def send(self, message: Message) -> None:
        """Queue a message that this node made; fill in the sender and the term."""
        if message.sender == NONE:
            message.sender = self.id
        kind = message.type
        if _IS_OF_ELECTION[kind]:
            # These name the term being voted on, which need not be this node's term.
            if message.term == 0:
                self.stop(f"term should be set when sending {MESSAGE_TYPE_NAMES[kind]}")
        elif message.term != 0:
            self.stop(
                f"term should not be set when sending {MESSAGE_TYPE_NAMES[kind]} "
                f"(was {message.term})"
            )
        elif not _IS_FORWARDED[kind]:
            message.term = self.term
        if _IS_PROMISE[kind]:
            self.messages_after_append.append(message)
            return
        if message.to == self.id:
            self.stop(
                f"message should not be self-addressed when sending {MESSAGE_TYPE_NAMES[kind]}"
            )
        self.messages.append(message)

    def step(self, message: Message) -> None:
        """Process one message. Raise ProposalDroppedError for a refused proposal."""
        term = message.term
        # Term 0 means a message from this node itself, or one that is not subject to terms.
        if term and term != self.term:
            if term < self.term:
                self._answer_lower_term(message)
                return
            if not self._admit_higher_term(message):
                return
        handler = _ANY_ROLE[message.type] or _ROLES[self.role][message.type]
        if handler is not None:
            handler(self, message)

    def propose(self, payloads: Sequence[bytes]) -> None:
        """Propose entries with these data: all of them or none."""
        if self.role == Role.LEADER and payloads:
            # The same as stepping the message, but it creates each entry once instead of twice.
            leader.check_may_propose(self)
            leader.propose(self, [(EntryType.NORMAL, data) for data in payloads])
            return
        entries = [Entry(EntryType.NORMAL, 0, 0, data) for data in payloads]
        self.step(Message(MessageType.PROP, sender=self.id, entries=entries))

    def _admit_higher_term(self, message: Message) -> bool:
        """Move to the term of a message; return False if the message must be dropped instead."""
        kind = message.type
        if kind in (MessageType.VOTE, MessageType.PRE_VOTE):
            forced = message.context == election.CAMPAIGN_TRANSFER
            in_lease = (
                self.config.check_quorum
                and self.lead != NONE
                and self.election_elapsed < self.config.election_ticks
            )
            if in_lease and not forced:
                # This node had recent contact with a leader, so the sender was merely cut off from
                # it.
                remaining = self.config.election_ticks - self.election_elapsed
                self.logger.info(
                    f"{election.vote_log_line(self, message, 'ignored')}: "
                    f"lease is not expired (remaining ticks: {remaining})"
                )
                return False
        # A pre-vote names a term that no node has entered yet.
        if kind == MessageType.PRE_VOTE:
            return True
        if kind == MessageType.PRE_VOTE_RESP and not message.reject:
            return True
        self.logger.info(
            f"{self.id:x} [term: {self.term}] received a {MESSAGE_TYPE_NAMES[kind]} message "
            f"with higher term from {message.sender:x} [term: {message.term}]"
        )
        self.become_follower(message.term, message.sender if kind in _OF_A_LEADER else NONE)
        return True

    def _answer_lower_term(self, message: Message) -> None:
        """Answer or drop a message of an earlier term, without acting on it."""
        kind = message.type
        check_or_pre_vote = self.config.check_quorum or self.config.pre_vote
        if check_or_pre_vote and kind in (MessageType.HEARTBEAT, MessageType.APP):
            # Answer a leader of an earlier term. With these options nothing else would inform it of
            # the new term, because this node's vote requests do not raise the term of their
            # receivers.
            self.send(Message(MessageType.APP_RESP, to=message.sender))
        elif kind == MessageType.PRE_VOTE:
            # A candidate that is behind must learn the term, or it would campaign for ever.
            self.logger.info(election.vote_log_line(self, message, "rejected"))
            self.send(
                Message(MessageType.PRE_VOTE_RESP, to=message.sender, term=self.term, reject=True)
            )
        elif kind == MessageType.PRE_VOTE_RESP and message.reject:
            # The vote is useless, but a committed entry is committed in every term.
            election.learn_commit(self, message)
        elif kind == MessageType.STORAGE_APPEND_RESP:
            if message.index:
                # Later entries may have replaced the written ones at the same indexes.
                self.logger.info(
                    f"{self.id:x} [term: {self.term}] ignored entry appends from a "
                    f"MsgStorageAppendResp message with lower term [term: {message.term}]"
                )
            if message.snapshot is not None:
                # A snapshot holds only committed entries, so its term does not matter.
                self.applied_snapshot(message.snapshot)
        else:
            self.logger.info(
                f"{self.id:x} [term: {self.term}] ignored a {MESSAGE_TYPE_NAMES[kind]} message "
                f"with lower term from {message.sender:x} [term: {message.term}]"
            )

    # Reports from this node's storage and from the application.

    def applied_to(self, index: int, size: int) -> None:
        """Record the applied index, and leave a joint configuration once that is possible."""
        self.log.applied_to(max(index, self.log.applied), size)
        config = self.tracker.config
        if (
            config.auto_leave
            and self.log.applied >= self.pending_conf_index
            and self.role == Role.LEADER
        ):
            # The entry has no data, so that no limit on sizes can refuse it.
            leave = Entry(EntryType.CONF_CHANGE_V2, 0, 0)
            try:
                self.step(Message(MessageType.PROP, sender=self.id, entries=[leave]))
            except RaftError as error:
                self.logger.debug(
                    "not initiating automatic transition out of joint configuration "
                    f"{config}: {error}"
                )
            else:
                self.logger.info(
                    f"initiating automatic transition out of joint configuration {config}"
                )

    def applied_snapshot(self, snapshot: Snapshot) -> None:
        """Record that a snapshot was written and handed to the application."""
        self.log.unstable.stable_snapshot_to(snapshot.index)
        self.applied_to(snapshot.index, 0)


def _on_hup(raft: Raft, _message: Message) -> None:
    kind = election.Campaign.PRE_ELECTION if raft.config.pre_vote else election.Campaign.ELECTION
    election.hup(raft, kind)


def _on_storage_append_response(raft: Raft, message: Message) -> None:
    if message.index:
        raft.log.unstable.stable_to(message.log_term, message.index)
    if message.snapshot is not None:
        raft.applied_snapshot(message.snapshot)


def _on_storage_apply_response(raft: Raft, message: Message) -> None:
    entries = message.entries
    if entries:
        raft.applied_to(entries[-1].index, encoded_size(entries))
        if raft.uncommitted_size:
            raft.uncommitted_size = max(0, raft.uncommitted_size - payload_size(entries))


Handler = Callable[[Raft, Message], None]
Handlers = dict[int, Handler]


def _table(handlers: Handlers) -> tuple[Handler | None, ...]:
    return tuple(handlers.get(kind) for kind in MESSAGE_TYPES)


_ANY_ROLE: Final = _table(
    {
        MessageType.HUP: _on_hup,
        MessageType.STORAGE_APPEND_RESP: _on_storage_append_response,
        MessageType.STORAGE_APPLY_RESP: _on_storage_apply_response,
        MessageType.VOTE: election.on_vote_request,
        MessageType.PRE_VOTE: election.on_vote_request,
    }
)
# Indexed by role, then by message type; a type with None is ignored.
_ROLES: Final = (
    _table(follower.HANDLERS),
    _table(candidate.HANDLERS),
    _table(leader.HANDLERS),
    _table(candidate.HANDLERS),
)
