"""The member: its inputs, its turn and its outputs.

A member is a plain object. Callers hand in requests, peer messages, ticks and job completions by
calls that neither block nor touch a file; replies, messages and jobs gather in `out`. `turn` works
until about a deadline. Callers may take a turn at any time, and no result depends on how work is
divided into turns. Ticks and peer messages take effect in the call itself, before the turn.

Input that a member does not understand stops it, and so does a failed job of the log or the
backend: `stopped` holds the reason, and every later call raises it again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NoReturn

from kvorum.api.coverage import reach
from kvorum.member import flushing, snapshots
from kvorum.member.corruption import Checks
from kvorum.member.duties import Schedule
from kvorum.member.errors import MemberStopped
from kvorum.member.jobs import Done, ExecutorKind, Failed, Job, Work
from kvorum.member.lifecycle import MemberEvent, MemberPhase
from kvorum.member.procedure_driver import run_procedures
from kvorum.member.replica import Replica
from kvorum.member.waits import Answer, Steps
from kvorum.state.membership.versions import Version, parse_version

if TYPE_CHECKING:
    from kvorum.member.outbox import SnapshotTransfer
    from kvorum.raft.messages import ConfState, Message
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.state import State

_PAUSED_TICKS: Final = 3


class Member:
    """One member of a cluster. Made by `open_member`."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        # What the replica and its fronts share; none of it is ever replaced.
        config = replica.config
        self.config = config
        self.logger = replica.logger
        self.clock = replica.clock
        self.seams = replica.seams
        self.id = replica.id
        self.out = replica.out
        self.boundary = replica.boundary
        self.counters = replica.counters
        self.procedures = replica.procedures
        self.hub = replica.hub
        self._lifecycle = replica.lifecycle

        self._started_at = self._last_tick = replica.now
        self._schedule = Schedule(replica.now, config)
        self.corruption = Checks(
            replica.now, config.corrupt_check_seconds, config.compact_hash_check_seconds
        )
        self.compaction_resumes = -inf
        self.peer_versions: dict[int, str] = {}
        self.stopped: MemberStopped | None = None

    # State that fronts may read.

    @property
    def state(self) -> State:
        """The replicated state as of the last applied entry."""
        return self.replica.state

    @property
    def now(self) -> float:
        """The time that applies to everything handed in from here on."""
        return self.replica.now

    @property
    def leader(self) -> int:
        """The id of the known leader, or 0."""
        return self.replica.leader

    @property
    def is_leader(self) -> bool:
        """Whether this member leads."""
        return self.replica.is_leader

    @property
    def term(self) -> int:
        """Raft's current term; response headers carry the last applied entry's term instead."""
        return self.replica.term

    @property
    def committed(self) -> int:
        """The commit index, as far as this member knows."""
        return self.replica.committed

    @property
    def conf_state(self) -> ConfState:
        """The members of raft's configuration."""
        return self.replica.conf_state

    @property
    def is_learner(self) -> bool:
        """Whether this member does not vote yet."""
        return self.replica.is_learner

    @property
    def is_alone(self) -> bool:
        """Whether this member is the only voter."""
        return self.replica.is_alone

    @property
    def was_removed(self) -> bool:
        """Whether this member was removed from the cluster."""
        return self.replica.was_removed

    @property
    def is_installing(self) -> bool:
        """Whether a received snapshot is replacing the state; nothing may read the old one."""
        return self.replica.is_installing

    @property
    def is_published(self) -> bool:
        """Whether the cluster knows this member's name and client URLs."""
        return self._lifecycle.phase is MemberPhase.PUBLISHED

    @property
    def is_closed(self) -> bool:
        """Whether log and database are closed."""
        return self._lifecycle.phase is MemberPhase.CLOSED

    def unix_seconds(self) -> float:
        """Return the Unix time: the time of day at the start plus the monotonic time since."""
        return self.seams.unix_seconds + (self.replica.now - self._started_at)

    def version_of(self, member_id: int) -> Version | None:
        """Return the version a member runs; None if it is not known."""
        text = self.peer_versions.get(member_id, "")
        if member_id == self.id:
            text = self.config.server_version
        try:
            return parse_version(text)
        except ValueError:
            return None

    # Inputs: ticks, peers and jobs.

    def tick(self, now: float) -> None:
        """Advance raft's logical clock by one heartbeat interval."""
        self._check()
        replica = self.replica
        pause = _PAUSED_TICKS * self.config.heartbeat_seconds
        if now - self._last_tick > pause and replica.state.lessor.next_deadline <= now:
            reach("leader paused past lease")
        self._last_tick = replica.now = now
        self._schedule.has_ticked = True
        try:
            replica.node.tick()
            self.out.probe_target = replica.succession.choose_probe_target(replica)
        except Exception as error:
            self._stop(error)

    def receive(self, message: Message) -> None:
        """Pass a peer's message to raft; ignore a misaddressed or unacceptable one."""
        self._check()
        try:
            self.replica.receive(message)
        except Exception as error:
            self._stop(error)

    def complete_job(self, job: Job, result: object) -> None:
        """Pass a job's result to its `done` callback."""
        self._check()
        try:
            job.done(result)
        except Exception as error:
            self._stop(error)

    def fail_job(self, job: Job, error: Exception) -> None:
        """Pass a job's error to its `on_failure` callback; without one the member stops."""
        self._check()
        if job.on_failure is None:
            self._stop(error)
        job.on_failure(error)

    def note_connected(self, peer: int, now: float) -> None:
        """Note that a peer can be reached from now on."""
        self.replica.connections.setdefault(peer, now)

    def note_disconnected(self, peer: int) -> None:
        """Note that a peer cannot be reached."""
        self.replica.connections.pop(peer, None)

    def note_absent(self, peer: int) -> None:
        """Note that no process listens at a peer's address any more: the peer has ended."""
        self.replica.note_absent(peer)

    def note_present(self, peer: int) -> None:
        """Note that a peer's host reacted to a probe."""
        self.replica.succession.note_host_answer(self.replica, peer)

    def report_unreachable(self, peer: int) -> None:
        """Note that a message to a peer was probably lost."""
        self.replica.node.report_unreachable(peer)

    def report_snapshot(self, transfer: SnapshotTransfer, *, failed: bool) -> None:
        """Take the outcome of sending a snapshot to a peer."""
        snapshots.finish_transfer(self.replica, transfer, failed=failed)

    def take_answer(self, number: int, answer: Answer) -> None:
        """Pass a peer's answer, None without one, to the procedure that asked."""
        self.procedures.take_answer(number, answer)

    def is_removed(self, peer: int) -> bool:
        """Return whether a peer was removed from the cluster."""
        return self.replica.state.cluster.is_removed(peer)

    def note_removed(self) -> None:
        """Note this member's removal from the cluster; its runtime then ends it."""
        self.replica.note_removed()

    def submit(self, work: Work, done: Done, failed: Failed) -> None:
        """Submit the transport's work to the pool."""
        self.out.jobs.append(Job(ExecutorKind.POOL, work, done, failed))

    # Inputs: procedures. Requests without one go to the replica.

    def start(self, call: int | None, caller: Caller, steps: Steps) -> None:
        """Start a procedure for a caller; its result becomes the reply to the call."""
        self.procedures.start(call, caller, steps)

    def cancel(self, call: int) -> None:
        """Cancel the procedure of a call whose client is gone.

        Answers that the call gets without a procedure are still made, and then discarded.
        """
        self.procedures.cancel(call)

    def hold(self, call: int) -> None:
        """Pause a call's procedure after its next message, because the receiver is full."""
        self.procedures.hold(call)

    def release(self, call: int) -> None:
        """Let a paused procedure of a call send again."""
        self.procedures.release(call)

    def note_published(self) -> None:
        """Note that the entry with this member's name and client URLs is applied."""
        if self._lifecycle.phase is MemberPhase.STARTING:
            self._lifecycle.take(MemberEvent.ATTRIBUTES_APPLIED)

    # The turn.

    def note_time(self, now: float) -> None:
        """Set the time that applies to all requests handed in from here on.

        Callers set it before they hand in requests: a lease renewed at the last turn's time would
        expire too early, by the time since that turn.
        """
        replica = self.replica
        if now != replica.now:
            replica.started = self.counters.stopwatch()
        replica.now = self.hub.now = now

    def turn(self, now: float, deadline: float) -> bool:
        """Work until about the deadline; return whether work is left."""
        self._check()
        self.note_time(now)
        try:
            return self._turn(now, deadline)
        except Exception as error:
            self._stop(error)

    def _turn(self, now: float, deadline: float) -> bool:
        replica, procedures, clock = self.replica, self.procedures, self.clock
        procedures.wake_due(now)
        if not replica.is_installing:
            self._schedule.run(self, now)
        replica.begin_turn()
        while True:
            replica.replicate(now)
            if replica.writer.received is not None:
                has_more = replica.install(deadline)
                if replica.is_installing:
                    return has_more or replica.node.has_ready()
            replica.apply_and_read(now, deadline)
            run_procedures(replica, deadline)
            has_work = replica.has_work
            if not has_work or clock() >= deadline:
                break
        if replica.end_turn():
            has_work = True
        self._watch(deadline)
        flushing.flush(replica, now)
        replica.state.backend.end_turn()
        # `_watch` may have woken a procedure.
        return has_work or self.hub.has_work or bool(procedures.runnable)

    def wake_at(self, now: float) -> float:
        """Return when the next turn is due if no input arrives before."""
        replica = self.replica
        if replica.is_installing:
            return inf
        moments = (
            self._schedule.next_moment(self),
            self.procedures.next_moment,
            flushing.flush_due_at(replica),
            replica.reads.wake_at,
        )
        return max(now, min(moment for moment in moments if moment is not None))

    def _watch(self, deadline: float) -> None:
        """Catch watchers up while there is time, and collect the responses to send them."""
        hub, clock = self.hub, self.clock
        while hub.has_work and hub.step() and clock() < deadline:
            pass
        self.out.sends += hub.take_outgoing()
        if hub.inner:
            inner, hub.inner = hub.inner, []
            for call in inner:
                self.procedures.take_watch_response(call)

    # The end.

    def close(self) -> None:
        """Start a clean shutdown: flush what is applied, then close the log and the backend.

        The runtime has to run the jobs and return their results until `is_closed`.
        """
        self._lifecycle.take(MemberEvent.CLOSE_REQUESTED)
        flushing.close_when_flushed(self.replica)

    def _check(self) -> None:
        if self.stopped is not None:
            raise self.stopped

    def _stop(self, error: Exception) -> NoReturn:
        if not isinstance(error, MemberStopped):
            stopped = MemberStopped(f"{type(error).__name__}: {error}")
            stopped.__cause__ = error
        else:
            stopped = error
        if self.stopped is None:
            self._lifecycle.take(MemberEvent.ERROR_RAISED)
        self.stopped = stopped
        self.logger.critical(f"member {self.id:x} stops: {stopped}")
        raise stopped
