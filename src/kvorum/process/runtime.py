"""The loop that runs a member: the edge, the jobs and the clock take turns with it.

One thread runs Python while the member serves. It sleeps until the edge's wake-up descriptor is
readable, another member has answered, a job has ended, or the next moment comes at which the
member has something to do. A turn takes what arrived, lets the member work for `TURN_SECONDS_MAX`,
and gives out what it has to say. What other members say and the ticks come first in every turn, so
that long work never silences a leader; what is for them goes out before anything waits for a disk.
A batch of clients that takes longer than that is gone on with in the next turn, and nothing more
is taken from the edge meanwhile.
"""

import asyncio
import gc
import time
from collections.abc import Mapping
from enum import Enum
from math import ceil

from kvorum.api.errors import STOPPED
from kvorum.edge import Edge, Event, EventKind, Request
from kvorum.gateway.http import HttpFront
from kvorum.member.errors import StartRefused
from kvorum.member.handover import hand_over
from kvorum.member.member import Member
from kvorum.net.interface import Dialer
from kvorum.peer.cluster.peering import Peering
from kvorum.process.doorman import Doorman
from kvorum.process.jobs import JobRunner
from kvorum.raft.entries import Entry
from kvorum.rpc.services import Services
from kvorum.telemetry.counting import CallCounts
from kvorum.telemetry.figures import ServerFigures
from kvorum.telemetry.logs import Logger
from kvorum.telemetry.peer_metrics import PeerMetrics

TURN_SECONDS_MAX = 0.005
CALLS_PER_TURN = 1000
BYTES_PER_TURN = 4 * 1024 * 1024
INLINE_CALLS_MAX = 4
"""With more requests at once, the log is written beside the loop, which gathers the next batch."""
INLINE_BYTES_MAX_ALONE = 64 * 1024
INLINE_BYTES_MAX = 4 * 1024
"""So much the loop writes itself, which saves two wake-ups; less where others wait for it."""
CLOSE_SECONDS_MAX = 10.0

DRAIN_SECONDS_MAX = 1.0
"""How long clients are waited for to hear of the end, and then to take their last answers."""
CLOSE_LOOK_SECONDS = 0.01
REMOVED_SECONDS = 1.0
"""How long a removed member stays, so that others still hear from it that it is."""
ADVANCE_SECONDS_MAX = 5.0
"""How long a start waits for other members to be reached, to be ready for an election at once."""
WAITING_CALLS = frozenset({"/v3lockpb.Lock/Lock", "/v3electionpb.Election/Campaign"})
"""Calls that wait for others by their nature."""

clock = time.monotonic


class Phase(Enum):
    """How far a runtime is on its way to its end."""

    SERVING = "takes calls"
    DRAINING = "finishes the calls in flight"
    FLUSHING = "brings to the disk what is applied"
    CLOSING = "closes the files; the member takes no turn any more"


class Runtime:
    """Runs one member until it is told to end, or stops because of an error."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        edge: Edge,
        member: Member,
        logger: Logger,
        *,
        slow_apply_seconds: float,
        slow_request_seconds: float,
        advance_ticks: bool = True,
    ) -> None:
        self._loop = loop
        self._edge = edge
        self._member = member
        self._logger = logger
        self.counts: CallCounts
        self.services: Services
        self.front: HttpFront
        self.jobs: JobRunner
        self.dialer: Dialer
        self.peering: Peering
        self.peer_metrics: PeerMetrics
        self.doorman: Doorman | None = None
        """Who checks where members come from, if somebody has to."""
        self.peer_listeners: set[int] = set()
        """Numbers of the listeners at which other members ask."""
        self.published: asyncio.Future[None] = loop.create_future()
        """Done when the cluster knows this member, and clients may be let in."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the server has ended; with the error that ended it."""
        self.figures = ServerFigures()
        self._leader = 0
        self._is_alone = False
        # What arrived and is not served yet, in its order.
        self._events: list[Event] = []
        # The entry that is being applied in several turns, and since when.
        self._long_entry: Entry | None = None
        self._long_since = 0.0
        self._slow_apply_seconds = slow_apply_seconds
        self._slow_request_ticks = ceil(slow_request_seconds / member.config.heartbeat_seconds)
        self._tick_seconds = member.config.heartbeat_seconds
        self._next_tick = clock()
        self._peers_at = 0.0
        self._advance_until = clock() + ADVANCE_SECONDS_MAX if advance_ticks else 0.0
        self._removed_at = 0.0
        self._has_handed_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._is_scheduled = False
        self._is_idle = True
        self._phase = Phase.SERVING
        self._phase_until = 0.0
        self._quiet_by = self._drained_by = 0.0

    # Life.

    def start(self) -> None:
        """Begin to take turns."""
        self._loop.add_reader(self._edge.fileno(), self._rung)
        self.wake()

    def drain(self) -> None:
        """Take no new calls, finish those in flight, then end."""
        if self._phase is Phase.SERVING:
            now, config = clock(), self._member.config
            self._quiet_by = now + max(DRAIN_SECONDS_MAX, config.election_seconds)
            self._enter(Phase.DRAINING, now + config.request_seconds_max)
            self._edge.drain()
            self.wake()

    def wake(self) -> None:
        """Take a turn soon."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _rung(self) -> None:
        """Take a turn here and now, which saves the loop a round; the edge has something."""
        if not self._is_scheduled:
            self._turn()

    def on_loop_error(self, _loop: object, context: Mapping[str, object]) -> None:
        """Take an error of a callback that is not a turn's; it ends the server as any other.

        But one of a connection to another member ends that connection alone.
        """
        error = context.get("exception")
        message = str(context.get("message"))
        if not isinstance(error, Exception):
            error = RuntimeError(message)
        elif "protocol" in context:
            try:
                self._member.boundary.take(error, "dial", "a connection to a member", message)
                return
            except Exception as again:
                error = again
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._edge.fileno())
            self.ended.set_exception(error)

    # Turns.

    def _turn(self) -> None:
        self._is_scheduled = False
        if self.ended.done():
            return
        try:
            now = clock()
            if self._phase is Phase.CLOSING:
                if not self._close(now):
                    self._sleep_until(now + CLOSE_LOOK_SECONDS)
                return
            is_busy = self._take_turn(now)
            if self._phase is not Phase.SERVING:
                self._advance_end(now)
            if is_busy or self.jobs.has_ended or not self._edge.announce_sleep():
                self.wake()
            else:
                moment = min(self._next_tick, self._peers_at, self._member.wake_at(clock()))
                self._sleep_until(moment)
        except Exception as error:
            # Nothing goes on after an error that nobody foresaw.
            self._fail(error)

    def _take_turn(self, now: float) -> bool:
        edge, member, peering = self._edge, self._member, self.peering
        member.note_time(now)
        edge.awake()
        told = self.dialer.poll()
        if told:
            peering.happened(told, now)
        deadline = now + TURN_SECONDS_MAX
        requests: list[Request] = []
        calls_max, bytes_max = self.services.room
        if calls_max > 0 and bytes_max > 0 and not self._events:
            requests, self._events = edge.poll(
                min(calls_max, CALLS_PER_TURN), min(bytes_max, BYTES_PER_TURN)
            )
            if self.doorman is not None:
                self._events = self.doorman.admit(self._events)
            if requests:
                self.counts.received(requests)
            if self._events:
                self.counts.happened(self._events)
        events = self._serve_http(now, deadline) if self._events else []
        if now >= self._next_tick:
            self._tick(now)
        self._peers_at = peering.pass_time(now)
        self._take_ended()
        if requests or events or self.services.is_behind:
            self._is_idle = False
            self.services.serve(requests, events, deadline)
            if self._events or self.services.is_behind:
                # It had all the time there was; the member has its own.
                deadline = clock() + TURN_SECONDS_MAX
        is_busy = member.turn(now, deadline)
        if member.out.jobs:
            # Others write what they are sent while this member writes it, too.
            peering.deliver(now)
            # And no client waits for a disk that has nothing to do with its answer.
            self.services.deliver(now)
            inline_bytes_max = INLINE_BYTES_MAX_ALONE if self._is_alone else INLINE_BYTES_MAX
            if len(requests) > INLINE_CALLS_MAX:
                inline_bytes_max = 0
            is_busy = self._run_jobs(now, inline_bytes_max)
            self.services.deliver(now)
        else:
            # Clients first: others wake up at what they are sent, and take the processor.
            self.services.deliver(now)
            peering.deliver(now)
        if member.is_published and not self.published.done():
            self._logger.info(
                "published local member to cluster through raft",
                local_member_id=f"{member.id:x}",
                cluster_id=f"{member.cluster.cluster_id:x}",
            )
            self.published.set_result(None)
        if member.apply_queue.entry is not self._long_entry:
            self._watch_long_entry(now)
        return is_busy or bool(self._events) or self.services.is_behind

    def _run_jobs(self, now: float, inline_bytes_max: int) -> bool:
        """Start jobs; those that end at once are taken at once."""
        member, runner = self._member, self.jobs
        is_busy = False
        while True:
            runner.submit(member.out.take_jobs(), inline_bytes_max)
            if not self._take_ended():
                return is_busy
            is_busy = member.turn(now, clock() + TURN_SECONDS_MAX)
            self.peering.deliver(now)
            if not member.out.jobs:
                return is_busy

    def _take_ended(self) -> bool:
        """Give the member the jobs that have ended; return whether there were any."""
        member, ended = self._member, self.jobs.take_ended()
        for job, result, error in ended:
            if error is None:
                member.completed(job, result)
            else:
                member.failed(job, error)
        return bool(ended)

    def _serve_http(self, now: float, deadline: float) -> list[Event]:
        """Serve what concerns other members and plain HTTP, and return the rest.

        Near to the deadline it stops; what is behind that stays for the next turn.
        """
        front, peering, listeners = self.front, self.peering, self.peer_listeners
        rest = []
        for place, event in enumerate(self._events):
            kind, call, detail = event
            if call in peering.open:
                peering.handle(kind, call, detail, now)
            elif kind == EventKind.HTTP_OPENED and detail[0] in listeners:
                _, method, target, headers = detail
                peering.opened(call, method, target, headers, now)
            elif kind == EventKind.HTTP_OPENED or call in front.open:
                front.handle(kind, call, detail)
            else:
                rest.append(event)
                continue
            if clock() >= deadline:
                self._events = self._events[place + 1 :]
                return rest
        self._events = []
        return rest

    def _tick(self, now: float) -> None:
        late = now - self._next_tick
        if late > self._tick_seconds:
            self.figures.heartbeats_late += 1
            # Ticks that were missed are not made up for: the peers' clocks did not stand still.
            self._next_tick = now
        self._next_tick += self._tick_seconds
        self.peer_metrics.observe()
        member = self._member
        member.tick(now)
        self._is_alone = list(member.conf_state.voters) == [member.id]
        if not member.leader and self._is_alone:
            # Nobody else could lead, so there is nothing to wait for.
            member.node.campaign()
        if member.leader != self._leader:
            self._tell_leader()
        if self._advance_until:
            self._advance_ticks(now)
        if member.was_removed:
            self._leave(now)
        for call, method in self.counts.slow_calls(self._slow_request_ticks):
            path, _ = self.services.METHODS[method]
            if path not in WAITING_CALLS:
                self._logger.warning(
                    "slow request is still in flight", method=path, remote=self._edge.peer(call)
                )
        if self._is_idle:
            # What survives is not looked at again.
            gc.collect(0)
            gc.freeze()
        self._is_idle = True

    def _tell_leader(self) -> None:
        """Log who leads now; more changes between two ticks are one."""
        member, before = self._member, self._leader
        self._leader = member.leader
        self.figures.leader_changes += bool(member.leader)
        fields = {"local_member_id": f"{member.id:x}", "term": member.term}
        if not member.leader:
            self._logger.warning("lost leader", leader=f"{before:x}", **fields)
        else:
            self._logger.info("elected leader", leader=f"{member.leader:x}", **fields)

    def _advance_ticks(self, now: float) -> None:
        """Let most of the first election timeout pass as soon as other members are reached.

        Without them no election can be won; one that leads already is heard within two ticks.
        """
        member = self._member
        if member.leader or self._is_alone or now > self._advance_until:
            self._advance_until = 0.0
        elif len(member.connections) > 1:
            self._advance_until = 0.0
            for _ in range(member.config.election_ticks - 2):
                member.tick(now)

    def _leave(self, now: float) -> None:
        """End after a while: this member was removed. One that never served is refused."""
        reason = (
            f"the member has been permanently removed from the cluster: {self._member.id:x} is no "
            "part of it any more, and its data directory is of no use to another member"
        )
        if not self.published.done():
            raise StartRefused(f"{reason}. Remove the directory, and add the member anew")
        if not self._removed_at:
            self._removed_at = now
            self._logger.warning(reason)
        elif now - self._removed_at >= REMOVED_SECONDS:
            self.drain()

    def _watch_long_entry(self, now: float) -> None:
        """Warn of entries that took long to apply; only those go on over several turns."""
        entry, took = self._long_entry, now - self._long_since
        if entry is not None and took > self._slow_apply_seconds:
            self.figures.slow_applies += 1
            self._logger.warning(
                "apply request took too long",
                took=f"{took * 1000:.3f}ms",
                expected_duration=f"{self._slow_apply_seconds * 1000:g}ms",
                index=entry.index,
                size=len(entry.data),
            )
        self._long_entry, self._long_since = self._member.apply_queue.entry, now

    def _sleep_until(self, moment: float) -> None:
        """Be woken by then, if nothing happens before."""
        if self._timer is not None:
            if moment >= self._timer_at:
                return
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_at(moment, self._alarm)

    def _alarm(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.wake()

    # The end.

    def _advance_end(self, now: float) -> None:
        """Go on with a clean end: finish calls, flush the database, close the files."""
        if self._phase is Phase.DRAINING:
            in_flight = len(self.counts.unary) + len(self.front.open) + len(self._events)
            # Whoever has not heard yet that this member ends may still call it, and it serves
            # only while it follows or leads: both come first, if they are a matter of a moment.
            if (in_flight or not self._edge.is_quiet()) and now < self._quiet_by:
                return
            if not self._hand_over() or (in_flight and now < self._phase_until):
                return
            if in_flight:
                self._logger.warning("calls in flight are cut off", calls=in_flight)
            for call in list(self.counts.streams):
                self.counts.finish(call, STOPPED)
            self.peering.stop()
            self._enter(Phase.FLUSHING, now + CLOSE_SECONDS_MAX)
            self._drained_by = now + DRAIN_SECONDS_MAX
            self._member.flush_soon()
            self.wake()
        elif self._phase is Phase.FLUSHING:
            is_flushing = self._member.backend.is_flushing or self.jobs.under_way
            # Clients take their last answers meanwhile; one that does not is not waited for long.
            is_draining = not self._edge.is_drained() and now < self._drained_by
            if (is_flushing or is_draining) and now < self._phase_until:
                return
            self._enter(Phase.CLOSING, now + CLOSE_SECONDS_MAX)
            self._member.close()
            self.jobs.submit(self._member.out.take_jobs())
            self.wake()

    def _hand_over(self) -> bool:
        """Let another member lead before this one ends; return whether that is settled.

        A leader on its way out takes no proposals.
        """
        member = self._member
        if not self._has_handed_over:
            if not member.is_leader or self._is_alone:
                return True
            self._has_handed_over = True
            hand_over(member)
        return not member.is_handing_over

    def _close(self, now: float) -> bool:
        """Wait for the last jobs; the member takes no turn any more."""
        self._take_ended()
        # The end of one may be the beginning of the next.
        self.jobs.submit(self._member.out.take_jobs())
        if self.jobs.under_way and now < self._phase_until:
            return False
        self._loop.remove_reader(self._edge.fileno())
        self.ended.set_result(None)
        return True

    def _enter(self, phase: Phase, until: float) -> None:
        self._phase, self._phase_until = phase, until
