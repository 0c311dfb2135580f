"""The replica: this member's part in the consensus, and what it replicates.

A replica combines Raft with its log, the proposals and reads that wait for it, and the state that
applies its entries. Its parts are modules that take a `Replica`: `apply`, `changes`, `flushing`,
`snapshots`, `installing`, `succession` and others. It starts no work of its own; the turn of
`kvorum.member.member.Member` drives it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from kvorum.api.boundary import Boundary
from kvorum.api.codec import alarm_request
from kvorum.api.errors import (
    NO_SPACE,
    PROPOSAL_DROPPED,
    REQUEST_TOO_LARGE,
    REQUEST_TOO_MANY_REQUESTS,
    Status,
)
from kvorum.member import log_lines, snapshots
from kvorum.member.apply import ApplyQueue, apply_entries
from kvorum.member.counters import READ_TXN, MemberCounters
from kvorum.member.installing import Installation
from kvorum.member.lifecycle import Lifecycle, MemberPhase
from kvorum.member.logwriter import LogWriter
from kvorum.member.longreads import LongReads
from kvorum.member.message_checks import is_acceptable
from kvorum.member.outbox import Outbox
from kvorum.member.procedures import Procedure, Procedures, Waiter
from kvorum.member.proposals import Proposals
from kvorum.member.reads import Execute, Read, Reads
from kvorum.member.serving import begin_reads
from kvorum.member.snapshots import SnapshotState
from kvorum.member.succession import Succession
from kvorum.member.waits import Answer, Signal
from kvorum.raft.errors import ProposalDroppedError, RaftError
from kvorum.raft.messages import APPEND_THREAD, APPLY_THREAD, NONE, Message, MessageType
from kvorum.raft.states import Role, SoftState
from kvorum.state.apply import requests
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.apply.callers import MEMBER, Caller, Front, current
from kvorum.state.apply.execution import ALARM_ACTIVATE, DECODERS
from kvorum.state.apply.ranges import range_response
from kvorum.state.apply.requests import RequestIds
from kvorum.state.apply.transactions import read_txn
from kvorum.state.auth.store import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.member.config import MemberConfig, Seams
    from kvorum.raft.changes import ConfChange
    from kvorum.raft.messages import ConfState
    from kvorum.raft.rawnode import RawNode
    from kvorum.raft.storage import MemoryStorage
    from kvorum.state.apply.state import State
    from kvorum.state.mvcc.watch.hub import WatchHub
    from kvorum.storage.wal import Log


class Replica:
    """Raft, its log, the state, and everything that waits for them."""

    def __init__(
        self,
        config: MemberConfig,
        seams: Seams,
        node: RawNode,
        storage: MemoryStorage,
        log: Log,
        state: State,
        snapshot_index: int,
    ) -> None:
        self.config = config
        self.limits = config.limits
        self.logger = seams.logger
        self.clock = seams.clock
        self.seams = seams
        self.id = node.raft.id
        self.node = node
        self.storage = storage
        self.out = Outbox()
        self.boundary = Boundary(seams.logger, seams.clock)
        self.counters = MemberCounters(seams.stopwatch)
        self.counters.kinds = {range_response: requests.RANGE, read_txn: READ_TXN}
        # The stopwatch at the start of the turn: one float that all requests of the turn share.
        self.started: object = seams.stopwatch()
        self.now = seams.clock()
        """The time that applies to everything handed in from here on."""
        self.lifecycle = Lifecycle()
        self.state = state
        """The replicated state; installing a snapshot replaces it as a whole."""
        self.hub: WatchHub = state.hub
        self.snap_directory = f"{config.directory}/snap"
        self.wal_directory = config.wal_directory or f"{config.directory}/wal"
        self.backend_directory = f"{config.directory}/backend"

        self.ids = RequestIds(self.id, seams.random_below(requests.START_MAX))
        self.proposals = Proposals()
        self.reads = Reads(self.ids.next_id, seams.boot_clock)
        self.procedures = Procedures()
        self.snapshots = SnapshotState(snapshot_index, config.snapshot_entries)
        self.apply_queue = ApplyQueue()
        self.writer = LogWriter(log, storage, node, self.out, config.limits)
        self.installation: Installation | None = None
        self.succession = Succession()
        # Reads that may run now; `long_reads` continues the long ones.
        self.ready_reads: deque[Read] = deque()
        self.long_reads = LongReads(config.limits.long_reads_running_max)
        # Procedures that wait for membership changes, by change id; changes raft does not have yet.
        self.changes: dict[int, Procedure] = {}
        self._changes_waiting: deque[ConfChange] = deque()

        self.is_flush_wanted = False
        self._alarm_proposed_at = -inf
        self._request_bytes_max = config.request_bytes_max
        self._has_campaigned = False
        self._may_propose = True
        self._takes_revokes = False
        self.is_behind = False
        """Whether this member refuses proposals, because it has too many entries to apply."""
        self.is_installing = False
        """Whether a received snapshot is replacing the state; nothing may read the old one."""
        self.leader = NONE
        self.leader_since = -inf
        self.is_leader = False
        self.was_removed = False
        self.conf_state: ConfState = node.raft.tracker.config.conf_state()
        self.connections: dict[int, float] = {}
        """Since when each peer can be reached."""

    @property
    def term(self) -> int:
        """Raft's current term; response headers carry the last applied entry's term instead."""
        return self.node.raft.term

    @property
    def committed(self) -> int:
        """The commit index, as far as this member knows."""
        return self.node.raft.log.committed

    @property
    def is_learner(self) -> bool:
        """Whether this member does not vote yet."""
        return self.node.raft.is_learner

    @property
    def is_alone(self) -> bool:
        """Whether this member is the only voter."""
        return self.conf_state.voters == (self.id,)

    @property
    def is_closing(self) -> bool:
        """Whether the member flushes for the last time, or has done so."""
        return self.lifecycle.phase in (MemberPhase.CLOSING, MemberPhase.CLOSED)

    # Peers.

    def is_connected_since(self, peer: int, moment: float) -> bool:
        """Return whether a peer has been reachable without a break since a moment."""
        return peer == self.id or self.connections.get(peer, inf) <= moment

    def receive(self, message: Message) -> None:
        """Pass a peer's message to raft; ignore a misaddressed or unacceptable one."""
        sender = message.sender
        if sender in (APPEND_THREAD, APPLY_THREAD) or message.to != self.id:
            return
        if self.state.cluster.is_removed(sender):
            return  # the sender may not know yet that it was removed
        if (
            self.storage.memory_bytes > self.config.log_bytes_max
            and message.type == MessageType.APP
            and message.entries
        ):
            return  # treated as lost: the leader sends the entries again
        if not is_acceptable(self, message):
            return
        try:
            self.node.step(message)
        except RaftError as error:
            self.logger.debug(f"{self.id:x} {error}")

    def note_absent(self, peer: int) -> None:
        """Note that no process listens at a peer's address any more: the peer has ended."""
        if peer == self.leader and self.config.pre_vote and not self.is_closing:
            self.succession.schedule_election(self, "finds no process at the address of")

    def note_removed(self) -> None:
        """Note this member's removal from the cluster; its runtime then ends it."""
        if not self.was_removed:
            self.was_removed = True
            # This member may lead a moment longer, but the next leader times the leases.
            self.state.lessor.demote()
            self.logger.warning("this member was removed from the cluster")

    # Requests.

    def propose(
        self, waiter: Waiter, caller: Caller, kind: int, body: bytes, decoded: object = None
    ) -> None:
        """Propose a caller's request; the waiter gets the encoded response or a Status.

        `kind` is the request's field number in InternalRaftRequest and `body` its canonical bytes,
        already checked. `decoded` is the request if it is already parsed: an object of
        `kvorum.api.requests`, or the message.
        """
        if self.is_behind and not (self._takes_revokes and kind == requests.LEASE_REVOKE):
            self.answer(waiter, REQUEST_TOO_MANY_REQUESTS)
            return
        if self.state.auth.is_enabled and caller.identifying is not None:
            caller = current(self.state, caller)
            if caller.refusal is not None:
                self.answer(waiter, caller.refusal)
                return
        payload, encoded_id = self.ids.encode(kind, body, caller)
        if len(payload) > self._request_bytes_max:
            self.counters.count_request(kind, True, 0.0)  # etcd counts it as a success
            self.answer(waiter, REQUEST_TOO_LARGE)
            return
        if decoded is None:
            decoded = DECODERS[kind](body)
        proposals = self.proposals
        proposals.pending[encoded_id] = (waiter, caller, kind, decoded, payload, self.started)
        proposals.payloads.append(payload)
        proposals.ids.append(encoded_id)

    def propose_change(self, procedure: Procedure, change: ConfChange) -> None:
        """Propose a membership change; the procedure gets None or a Status."""
        change = change._replace(id=self.ids.next_id())
        self.changes[change.id] = procedure
        self._changes_waiting.append(change)

    def propose_as_leader(self, term: int, requests: Sequence[tuple[int, bytes]]) -> bool:
        """Propose (kind, body) requests that only the leader of this term may make, with no waiter.

        Raft gets them at once, so it never forwards them to a later leader, which has newer
        knowledge. Returns whether raft accepted them: then this member applies them or steps down.
        """
        raft = self.node.raft
        if requests and raft.role == Role.LEADER and raft.term == term:
            # As `root`, so that members of any version permit revoking users' expired leases.
            auth = self.state.auth
            caller = Caller(Front.MEMBER, ROOT, auth.revision) if auth.is_enabled else MEMBER
            payloads = [self.ids.encode(kind, body, caller)[0] for kind, body in requests]
            with suppress(ProposalDroppedError):
                raft.propose(payloads)
                return True
        return False

    def read(
        self, waiter: Waiter, caller: Caller, execute: Execute, request: Any, *, linearizable: bool
    ) -> None:
        """Answer a read from the next turn's state, or after a ReadIndex round if linearizable.

        `execute(state, caller, request)` returns the encoded response, a Status, or slices.
        """
        if linearizable:
            self.reads.waiting.append((waiter, caller, execute, request, self.started))
        else:
            self.ready_reads.append((waiter, caller, execute, request, self.started))

    def answer(self, waiter: Waiter, result: Answer) -> None:
        """Deliver a result to its waiter: a client's call, a procedure, or none."""
        if waiter.__class__ is int:
            self.out.replies.append((waiter, result))  # type: ignore[arg-type]
        elif waiter is not None:
            self.procedures.resume(waiter, result)  # type: ignore[arg-type]

    # Quota.

    def check_quota(self, cost: int) -> Status | None:
        """Return NO_SPACE and raise the alarm if a write of this cost exceeds the quota."""
        if self.state.fits_quota(cost):
            return None
        self.raise_no_space()
        return NO_SPACE

    def raise_no_space(self) -> None:
        """Propose this member's NOSPACE alarm, at most once per request timeout."""
        if self.now - self._alarm_proposed_at >= self.config.request_seconds_max:
            self._alarm_proposed_at = self.now
            log_lines.log_exceeded_quota(self, self.config.quota_bytes)
            body = alarm_request(ALARM_ACTIVATE, self.id, AlarmType.NO_SPACE)
            self.propose(None, MEMBER, requests.ALARM, body)

    # Steps of the turn.

    def begin_turn(self) -> None:
        """Decide whether this turn may propose."""
        # One check per turn is enough: the limits may be exceeded a little.
        self._may_propose = (
            not self.state.backend.is_full
            and self.node.raft.uncommitted_size < self.config.uncommitted_bytes_max
        )

    def replicate(self, now: float) -> None:
        """Exchange what waits with raft and the log: proposals, questions, messages, writes."""
        self._submit(now)
        self.reads.request_round(self.node, now)
        self._take_ready()
        self.writer.submit_writes()

    def install(self, deadline: float) -> bool:
        """Continue the installation of a received snapshot; return whether work is left."""
        if self.installation is None:
            received = self.writer.received
            assert received is not None, "no snapshot was received"
            self.installation = Installation(self, received)
        return self.installation.advance(deadline)

    def apply_and_read(self, now: float, deadline: float) -> None:
        """Apply entries, then serve the reads that may run."""
        # Applying long entries leaves half of the turn to reads.
        has_reads = bool(self.ready_reads or self.long_reads.is_busy or self.reads.confirmed)
        apply_entries(self, (now + deadline) / 2 if has_reads else deadline)
        self.procedures.wake_applied(self.state.applied)
        if self.reads.confirmed:
            self.ready_reads.extend(self.reads.take_ready(self.state.applied))
        if self.ready_reads:
            begin_reads(self, deadline)
        self.long_reads.run(self, deadline)

    def end_turn(self) -> bool:
        """Measure the lag; return whether a lone voter campaigns, which is work for a turn."""
        log = self.node.raft.log
        unapplied, limit = log.committed - log.applied, self.config.unapplied_entries_max
        is_full = self.storage.memory_bytes > self.config.log_bytes_max
        self.is_behind = unapplied > limit or is_full
        has_room = unapplied <= 2 * limit and not is_full
        self._takes_revokes = has_room and self.config.prioritizes_revokes
        if self._has_campaigned or log.applied != log.committed:
            return False
        self._has_campaigned = True
        self.campaign_if_alone()
        return True

    @property
    def has_work(self) -> bool:
        """Whether another pass of this turn would find something to do."""
        return bool(
            self.node.has_ready()
            or (self.apply_queue.messages and self.may_apply and not self.must_wait_for_flush)
            or self.procedures.runnable
            or self.ready_reads
            or self.long_reads.is_busy
            or self.reads.is_waiting
            or (
                (self.proposals.is_waiting or self._changes_waiting)
                and self._may_propose
                and self.leader != NONE
            )
        )

    def _submit(self, now: float) -> None:
        """Hand raft the membership changes, and the proposals if this turn may propose."""
        if self._may_propose and self.proposals.is_waiting:
            for pending in self.proposals.submit(self.node, now):
                self.counters.count_failed_proposal(pending[2], pending[5])
                self.answer(pending[0], PROPOSAL_DROPPED)
        while self._changes_waiting and self.node.raft.lead != NONE:
            change = self._changes_waiting.popleft()
            if change.id not in self.changes:
                continue
            try:
                self.node.propose_conf_change(change)
            except ProposalDroppedError:
                self.answer(self.changes.pop(change.id), PROPOSAL_DROPPED)

    def forget_changes(self) -> None:
        """Forget membership changes whose clients are gone; drop those not yet proposed."""
        self.changes = {
            number: waiting for number, waiting in self.changes.items() if waiting.steps is not None
        }
        if not self.changes:
            self._changes_waiting.clear()

    def _take_ready(self) -> None:
        node, out = self.node, self.out.messages
        while node.has_ready():
            ready = node.ready()
            if ready.soft_state is not None:
                self._take_role(ready.soft_state)
            if ready.read_states:
                for waiter in self.reads.take_answers(ready.read_states):
                    self.answer(waiter, None)
            for message in ready.messages:
                to = message.to
                if to == APPEND_THREAD:
                    self.writer.add_write(message)
                elif to == APPLY_THREAD:
                    self.apply_queue.messages.append(message)
                elif message.type == MessageType.SNAP:
                    snapshots.send(self, message)
                else:
                    out.append(message)

    def _take_role(self, state: SoftState) -> None:
        lead, role = state
        was_leader, self.is_leader = self.is_leader, role == Role.LEADER
        if was_leader and not self.is_leader:
            self.state.lessor.demote()
            self.reads.forget_confirmation()
        if lead != NONE and lead != self.leader:
            self.leader_since = self.now
            self.reads.retry_soon()
            self.procedures.wake_for_leader(lead)
        self.leader = lead
        self.procedures.signal(Signal.LEADER)

    @property
    def may_apply(self) -> bool:
        """Whether waiting entries may be applied: not those that a received snapshot covers.

        Raft uses a snapshot's configuration from its receipt on. And a membership change waits
        until the commit index that covers it is durable.
        """
        return (
            not self.is_installing
            and not self.writer.is_keeping_commit
            and self.node.raft.log.unstable.snapshot is None
        )

    @property
    def must_wait_for_flush(self) -> bool:
        """Whether applying has to pause: a flush is running and the next batch is full."""
        return self.state.backend.is_full and self.state.backend.is_flushing

    def campaign_if_alone(self) -> None:
        """Campaign at once as the only voter, unless an election is already under way."""
        raft, log = self.node.raft, self.node.raft.log
        may_stand = raft.role == Role.FOLLOWER and log.applied == log.committed
        if may_stand and self.leader == NONE and self.is_alone:
            self.node.campaign()

    def restart_reads(self) -> None:
        """Stop the long reads and queue them to restart when reads are served next."""
        self.ready_reads.extend(self.long_reads.stop())

    def flush_soon(self) -> None:
        """Request a flush of what is applied so far, before the next one is due."""
        self.is_flush_wanted = True
