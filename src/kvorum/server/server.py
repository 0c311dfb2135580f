"""The server as a plain object: a member, its services, its peers, its HTTP front, its life.

It is given the time and what arrived, takes a turn, and says which jobs are to be run and when it
wants to be woken; its answers and messages go to the edge and the dialer that it was made with. It
has no clock but the member's, which only decides where long work is interrupted.

A turn takes what arrived, lets the member work for `turn_seconds`, and sends the answers. Messages
of other members and the ticks come first, so that long work never silences a leader. Clients are
served for as long as the member works; what a turn has no time for waits for the next ones in its
order, and nothing more is taken from the edge meanwhile. Long bodies of the JSON gateway come last,
in slices: they wait for everything else that arrived, and nothing else waits for them.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from kvorum.edge.interface import Event, EventKind, Request
from kvorum.gateway.calls import Gateway
from kvorum.gateway.http import HttpFront
from kvorum.member.errors import StartRefused
from kvorum.member.jobs import Job
from kvorum.member.member import Member
from kvorum.membership.bootstrap import BootstrapError, mismatch_text
from kvorum.net.interface import DialEvent
from kvorum.raft.entries import Entry
from kvorum.rpc.interface import Clients
from kvorum.rpc.services import Services
from kvorum.rpc.table import METHODS
from kvorum.server.ending import Ending, Phase
from kvorum.server.inflight import CallsInFlight
from kvorum.server.interface import Logger, Peers, ServerEdge
from kvorum.server.jobs import Ended
from kvorum.server.settings import ServerSettings
from kvorum.telemetry.access import AccessLog
from kvorum.telemetry.counting import CallCounts
from kvorum.telemetry.figures import ServerFigures
from kvorum.telemetry.milestones import Milestones
from kvorum.telemetry.slow import SlowRequests

TURN_SECONDS: Final = 0.005
CALLS_PER_TURN: Final = 1000
BYTES_PER_TURN: Final = 4 * 1024 * 1024
NOTHING: Final = (0, 0)
_HTTP_OPENED: Final = int(EventKind.HTTP_OPENED)

INLINE_CALLS_MAX = 4
"""With more requests at once, the log is written off the loop, which gathers the next batch."""
INLINE_BYTES_MAX_ALONE = 64 * 1024
INLINE_BYTES_MAX = 4 * 1024
"""How much the loop writes itself, which saves two wake-ups; less where other members wait."""

REMOVED_SECONDS: Final = 1.0
"""How long a removed member goes on, so that others still hear from it that it is removed."""
ADVANCE_SECONDS_MAX: Final = 5.0
"""How long after a start reaching other members still skips most of the election timeout."""
STRANGERS_SECONDS: Final = 5.0
"""How long a member that never joined is among strangers before it ends; they may be replaced."""


class Server:
    """Serves one member until it is told to drain, was removed, or raises what stopped it."""

    def __init__(
        self,
        member: Member,
        edge: ServerEdge,
        peers: Peers,
        logger: Logger,
        settings: ServerSettings,
        on_tick: Callable[[bool], None] | None = None,
    ) -> None:
        """Make a server of an opened member; `on_tick` is told whether clients were idle."""
        self.member = member
        self.peers = peers
        clients = Clients(edge)
        self.front = HttpFront(edge, settings.cors, settings.host_whitelist, member.boundary)
        self.gateway = Gateway(
            member,
            edge,
            self.front,
            clients,
            message_bytes_max=settings.message_bytes_max,
            certificates_count=settings.certificates_count,
        )
        if settings.serves_json:
            self.gateway.serve()
        slow_seconds = settings.slow_request_seconds
        self.calls = CallsInFlight(self.gateway, CallCounts(len(METHODS)), slow_seconds)
        self.milestones = Milestones()
        self.slow_requests = SlowRequests(member, self.milestones, edge.peer, logger, slow_seconds)
        self.calls.on_slow = self.slow_requests.ended
        self.services = Services(
            member,
            self.calls,
            operations_max=settings.operations_max,
            origin=clients,
            certificates_count=settings.certificates_count,
            stops_for_defragmentation=settings.stops_for_defragmentation,
        )
        self.gateway.is_undecided = self.services.is_undecided
        self.figures = ServerFigures()
        self.phase = Phase.SERVING
        """How far it is on its way to its end; `ending` leads it there."""
        self.ending = Ending(self, edge, logger)
        self.keeps_nothing = settings.keeps_nothing
        """Whether its end needs no last flush."""
        self.peer_listeners: set[int] = set()
        """Numbers of the listeners for other members."""
        self.turn_seconds = TURN_SECONDS
        self.is_busy = True
        """Whether there is more to do at once, even if nothing arrives."""
        self.is_published = False
        """Whether the cluster knows this member, so that clients may be let in."""
        self.inline_bytes_max = 0
        """How large an append to the log may be to be written on the loop."""
        self.jobs_under_way = 0
        # What arrived and is not served yet, in its order.
        self._requests: Sequence[Request] = ()
        self._events: list[Event] = []
        # Whether events of other members may be among them.
        self._has_unseen = False
        self._edge = edge
        self._logger = logger
        self._on_tick = on_tick
        self._clock = member.clock
        self._leader = 0
        # The entry that takes several turns to apply, and since when.
        self._long_entry: Entry | None = None
        self._long_since = 0.0
        self._slow_apply_seconds = settings.slow_apply_seconds
        self._tick_seconds = member.config.heartbeat_seconds
        self.calls.look_seconds = min(slow_seconds, self._tick_seconds)
        self._next_tick = member.now
        self._peers_at = 0.0
        self._advance_until = member.now + ADVANCE_SECONDS_MAX if settings.advance_ticks else 0.0
        self._removed_at = 0.0
        self._strangers_since = inf
        self._is_idle = True
        member.long_reads.has_room = edge.has_room
        if member.cluster.is_removed(member.id):
            member.removed()

    # What it wants of the loop that runs it.

    @property
    def room(self) -> tuple[int, int]:
        """How many calls, and how many bytes of them, may be handed to the next turn.

        If either is 0 or less, none may be.
        """
        if self._requests or self._events or self.phase in (Phase.CLOSING, Phase.ENDED):
            return NOTHING
        calls_max, bytes_max = self.services.room
        return min(calls_max, CALLS_PER_TURN), min(bytes_max, BYTES_PER_TURN)

    @property
    def waiting(self) -> int:
        """How many requests and events arrived and are not served yet."""
        return len(self._requests) + len(self._events) + self.gateway.waiting

    def forget_waiting(self) -> None:
        """Forget what arrived and is not served yet: nobody is answered any more."""
        self._requests, self._events = (), []

    def take_jobs(self) -> list[Job]:
        """Return the jobs that are to be run, in order for each place.

        The end of each is handed to `turn` or `resume_turn`, in the same order.
        """
        jobs = self.member.out.take_jobs()
        self.jobs_under_way += len(jobs)
        return jobs

    def wake_at(self, now: float) -> float:
        """Return when a turn has something to do even if nothing arrives before."""
        if self.phase is Phase.CLOSING:
            return self.ending.look_at
        moment = min(self._next_tick, self._peers_at, self.gateway.wake_at)
        if self.calls.access is not None:
            moment = min(moment, self.calls.access.wake_at)
        return min(moment, self.member.wake_at(now))

    def log_access(self, access: AccessLog) -> None:
        """Write a line about each call from now on."""
        self.calls.access = access
        self.services.identified = access.identify

    def drain(self, now: float) -> None:
        """Take no new calls, finish those in flight, then end."""
        self.ending.begin(now)

    # Turns.

    def turn(
        self,
        now: float,
        requests: Sequence[Request],
        events: list[Event],
        dialed: Sequence[DialEvent],
        ended: Sequence[Ended],
    ) -> None:
        """Take what arrived, do what there is to do, and send the answers.

        Requests and events are at most as many as `room` allowed. Raises the error that stopped the
        member.
        """
        member, peers = self.member, self.peers
        if self.phase is Phase.CLOSING:
            self._take_ended(ended)
            self.ending.advance(now)
            return
        member.note_time(now)
        if dialed:
            peers.take_dialed(dialed, now)
        if requests:
            self.calls.receive(requests, now, member.started)
            self._requests = requests
        deadline = now + self.turn_seconds
        seen = 0 if self._has_unseen else len(self._events)
        self._events += events
        if self.phase is Phase.FLUSHING:
            # These come from clients that did not learn of the end in time, or from other members.
            self.forget_waiting()
        if len(self._events) > seen:
            self._serve_peers(now, deadline, seen)
        if now >= self._next_tick:
            self._tick(now)
        self._peers_at = peers.pass_time(now)
        self._take_ended(ended)
        if self.services.has_decided:
            self.services.serve_decided()
        if now >= self.gateway.wake_at:
            self.gateway.pass_time(now)
            self._serve_gateway(deadline)
        if self._requests or self._events or self.gateway.has_work:
            self._is_idle = False
            if self._requests:
                served = self.services.serve(self._requests, deadline)
                self._requests = self._requests[served:]
            if self._events and not self._requests:
                self._serve_events(deadline)
            if self.gateway.has_work:
                self._work_for_gateway(deadline)
            if self._requests or self._events or self.gateway.has_work:
                # Clients used up their time; the member has its own.
                deadline = self._clock() + self.turn_seconds
        is_busy = member.turn(now, deadline)
        if member.out.jobs:
            # Other members then write entries at the same time as this one, and no client waits
            # for a write that its answer does not depend on.
            peers.deliver(now)
            self._answer(now)
            self.inline_bytes_max = INLINE_BYTES_MAX_ALONE if member.is_alone else INLINE_BYTES_MAX
            if len(requests) > INLINE_CALLS_MAX:
                self.inline_bytes_max = 0
        else:
            # Clients first: messages wake other members, which may take the processor.
            self._answer(now)
            peers.deliver(now)
        self._end_turn(now, is_busy)

    def resume_turn(self, now: float, ended: Sequence[Ended]) -> None:
        """Go on with the turn after jobs that ended as soon as they were begun."""
        self._take_ended(ended)
        if self.phase is Phase.CLOSING:
            return
        is_busy = self.member.turn(now, self._clock() + self.turn_seconds)
        self.peers.deliver(now)
        self._answer(now)
        self._end_turn(now, is_busy)

    def _end_turn(self, now: float, is_busy: bool) -> None:
        member = self.member
        if member.is_published and not self.is_published:
            self._logger.info(
                "published local member to cluster through raft",
                local_member_id=f"{member.id:x}",
                cluster_id=f"{member.cluster.cluster_id:x}",
            )
            self.is_published = True
        if member.apply_queue.entry is not self._long_entry:
            self._watch_long_entry(now)
        if self.calls.access is not None and now >= self.calls.access.wake_at:
            self.calls.access.flush()
        is_waiting = bool(self._requests or self._events) or self.services.has_decided
        is_waiting = is_waiting or self.gateway.has_work
        self.is_busy = is_busy or is_waiting
        if self.phase is not Phase.SERVING:
            self.ending.advance(now)

    def _answer(self, now: float) -> None:
        """Send clients their answers, unless serving has ended."""
        if self.phase in (Phase.SERVING, Phase.DRAINING):
            calls, moment = self.calls, self._clock()
            self.milestones.note(self.member, len(self._requests), moment)
            if moment >= calls.look_at and calls.look(moment):
                self.slow_requests.remember(calls.slow)
            calls.is_delivering = True
            self.services.deliver(now)
            calls.is_delivering = False
            if self.gateway.events:
                # A line that cannot be written ends its call.
                self._serve_gateway(now)

    def _take_ended(self, ended: Sequence[Ended]) -> None:
        member = self.member
        self.jobs_under_way -= len(ended)
        for job, result, error in ended:
            if error is None:
                member.completed(job, result)
            else:
                member.failed(job, error)

    def _serve_peers(self, now: float, deadline: float, seen: int) -> None:
        """Serve events of other members, until the deadline; the rest stays in its order.

        The first `seen` events are of clients. They may be many, and wait for many turns.
        """
        peers, listeners, clock = self.peers, self.peer_listeners, self._clock
        open_calls = peers.open
        rest: list[Event] = []
        self._has_unseen = False
        for position in range(seen, len(self._events)):
            event = self._events[position]
            kind, call, detail = event
            if call in open_calls:
                peers.handle(kind, call, detail, now)
            elif kind == _HTTP_OPENED and detail[0] in listeners:
                _, method, target, headers = detail
                peers.open_request(call, method, target, headers, now)
            else:
                rest.append(event)
                continue
            if clock() >= deadline:
                rest += self._events[position + 1 :]
                self._has_unseen = True
                break
        self._events[seen:] = rest

    def _serve_events(self, deadline: float) -> None:
        """Serve events of clients, until the deadline; the rest stays in its order."""
        services, front, clock = self.services, self.front, self._clock
        gateway, note = self.gateway, self.calls.note
        peers_open, gateway_open = self.peers.open, gateway.open
        served = 0
        for kind, call, detail in self._events:
            if call in peers_open or (kind == _HTTP_OPENED and detail[0] in self.peer_listeners):
                # `_serve_peers` had no time for it: it comes first in the next turn.
                break
            served += 1
            if kind == _HTTP_OPENED or call in front.open:
                front.handle(kind, call, detail)
            elif call in gateway_open:
                gateway.handle(kind, call, detail)
            else:
                note(kind, call, detail, self.member.now, self.member.started)
                services.take_event(kind, call, detail)
            if gateway.requests or gateway.events:
                self._serve_gateway(deadline)
            if clock() >= deadline:
                break
        self._events = self._events[served:]
        services.end_batch()

    def _serve_gateway(self, deadline: float) -> None:
        """Serve what the gateway made of what it was sent."""
        gateway, services = self.gateway, self.services
        requests, gateway.requests = gateway.requests, []
        events, gateway.events = gateway.events, []
        if requests:
            self.calls.receive(requests, self.member.now, self.member.started)
            # One event makes one request at most, so that none is left over.
            services.serve(requests, deadline)
        for kind, call, detail in events:
            self.calls.note(kind, call, detail, self.member.now, self.member.started)
            services.take_event(kind, call, detail)
        services.end_batch()

    def _work_for_gateway(self, deadline: float) -> None:
        """Read bodies that are too long to be read as they arrive, at least one slice."""
        while self.gateway.has_work:
            self.gateway.work()
            self._serve_gateway(deadline)
            if self._clock() >= deadline:
                return

    # Ticks.

    def _tick(self, now: float) -> None:
        late = now - self._next_tick
        if late > self._tick_seconds:
            self.figures.heartbeats_late += 1
            # Missed ticks are not made up for: the clocks of other members went on.
            self._next_tick = now
        self._next_tick += self._tick_seconds
        member = self.member
        member.tick(now)
        member.campaign_if_alone()
        if member.leader != self._leader:
            self._log_leader()
        if self._advance_until:
            self._advance_ticks(now)
        if member.was_removed:
            self._leave(now)
        if not self.is_published:
            self._refuse_strangers(now)
        self.slow_requests.tick(now, self.calls.overdue(now))
        if self._on_tick is not None:
            self._on_tick(self._is_idle)
        self._is_idle = True

    def _log_leader(self) -> None:
        """Log who leads; several changes between two ticks count as one."""
        member, before = self.member, self._leader
        self._leader = member.leader
        self.figures.leader_changes += bool(member.leader)
        fields = {"local_member_id": f"{member.id:x}", "term": member.term}
        if not member.leader:
            self._logger.warning("lost leader", leader=f"{before:x}", **fields)
        else:
            self._logger.info("elected leader", leader=f"{member.leader:x}", **fields)

    def _advance_ticks(self, now: float) -> None:
        """Skip most of the first election timeout as soon as other members are reached.

        Without them no election can be won; a leader, if there is one, is heard within two ticks.
        """
        member = self.member
        if member.leader or member.is_alone or now > self._advance_until:
            self._advance_until = 0.0
        elif len(member.connections) > 1:
            self._advance_until = 0.0
            for _ in range(member.config.election_ticks - 2):
                member.tick(now)

    def _leave(self, now: float) -> None:
        """End soon, because this member was removed; raises StartRefused if it never served.

        The last of the others may not know that yet, and need this one's vote to learn it; so a
        start lasts as long as a member that goes on.
        """
        reason = (
            f"the member has been permanently removed from the cluster: {self.member.id:x} is no "
            "part of it any more, and its data directory is of no use to another member"
        )
        if not self._removed_at:
            self._removed_at = now
            self._logger.warning(reason)
        elif now - self._removed_at >= REMOVED_SECONDS:
            if not self.is_published:
                raise StartRefused(f"{reason}. Remove the directory, and add the member anew")
            self.drain(now)

    def _refuse_strangers(self, now: float) -> None:
        """Raise BootstrapError if this member never joined, and all others are of another cluster.

        A member that has applied more than the first entries of its cluster goes on, and so does
        one that was restored from a snapshot: they have data, and who answers at their peers'
        addresses may be strangers.
        """
        member = self.member
        foreign = self.peers.foreign_cluster
        has_data = member.applied > len(member.cluster.members) or member.store.revision > 1
        if not foreign or member.leader or has_data:
            self._strangers_since = inf
            return
        self._strangers_since = min(self._strangers_since, now)
        if now - self._strangers_since >= STRANGERS_SECONDS:
            raise BootstrapError(mismatch_text(member.cluster.cluster_id, foreign))

    def _watch_long_entry(self, now: float) -> None:
        """Warn of entries that took long to apply; such entries take several turns."""
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
        self._long_entry, self._long_since = self.member.apply_queue.entry, now
