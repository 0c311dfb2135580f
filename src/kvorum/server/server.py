"""The server as a plain object: a member with its services, its peers and its HTTP front.

The loop gives the server the time and a batch of input. The server takes a turn, returns the jobs
to run and its next wake-up time, and sends answers and messages through the edge and the dialer. It
has no clock but the member's, which only decides where to interrupt long work.

A turn takes the batch, lets the member work for `turn_seconds`, and sends the answers. Messages of
other members and the ticks come first, so that long work never silences a leader. Clients get
another `turn_seconds`; the rest of the batch waits for the next turns in order, and meanwhile the
server takes no more from the edge. Long bodies of the JSON gateway come last, in slices: they wait
for all other input, and nothing waits for them.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from kvorum.member.errors import StartRefused
from kvorum.member.jobs import Job
from kvorum.member.member import Member
from kvorum.network.dialer.interface import DialEvent
from kvorum.network.edge.interface import EdgeEventKind, Event, Request
from kvorum.raft.entries import Entry
from kvorum.server.http.calls import Gateway
from kvorum.server.http.http import HttpFront
from kvorum.server.inflight import CallsInFlight
from kvorum.server.interface import Logger, Peers, ServerEdge
from kvorum.server.jobs import Ended
from kvorum.server.rpc.interface import Clients
from kvorum.server.rpc.services import Services
from kvorum.server.rpc.table import METHODS
from kvorum.server.settings import ServerSettings
from kvorum.server.shutdown import ServerPhase, Shutdown
from kvorum.server.telemetry.access import AccessLog
from kvorum.server.telemetry.counters import ServerCounters
from kvorum.server.telemetry.counting import CallCounts
from kvorum.server.telemetry.milestones import Milestones
from kvorum.server.telemetry.slow import SlowRequests
from kvorum.state.membership.bootstrap import ClusterSettingsError, mismatch_text

TURN_SECONDS: Final = 0.005
CALLS_PER_TURN: Final = 1000
BYTES_PER_TURN: Final = 4 * 1024 * 1024
NOTHING: Final = (0, 0)
_HTTP_OPENED: Final = int(EdgeEventKind.HTTP_OPENED)

REMOVED_SECONDS: Final = 1.0
"""How long a removed member goes on: other members may need its messages to learn of it."""
ADVANCE_SECONDS_MAX: Final = 5.0
"""How long after a start a connection to another member skips most of the election timeout."""
STRANGERS_SECONDS: Final = 5.0
"""How long a member that never joined stays while all others belong to another cluster.

The operator may replace those others meanwhile.
"""


class Server:
    """Serves one member until `drain`, until the member is removed, or until an error stops it."""

    def __init__(
        self,
        member: Member,
        edge: ServerEdge,
        peers: Peers,
        logger: Logger,
        settings: ServerSettings,
        on_tick: Callable[[bool], None] | None = None,
    ) -> None:
        """Make a server of an opened member; `on_tick` takes whether clients were idle."""
        self.member = member
        self.peers = peers
        clients = Clients(edge)
        self.front = HttpFront(edge, settings.cors, settings.host_whitelist, member.boundary)
        slow_seconds = settings.slow_request_seconds
        self.calls = CallsInFlight(edge, CallCounts(len(METHODS)), slow_seconds)
        self.milestones = Milestones()
        self.slow_requests = SlowRequests(member, self.milestones, edge.peer, logger, slow_seconds)
        self.calls.on_slow = self.slow_requests.log_if_slow
        self.services = Services(
            member,
            self.calls,
            operations_max=settings.operations_max,
            origin=clients,
            client_cert_identifies_user=settings.client_cert_identifies_user,
            stops_for_defragmentation=settings.stops_for_defragmentation,
        )
        self.gateway = Gateway(
            member,
            edge,
            self.front,
            clients,
            self.services.undecided,
            message_bytes_max=settings.message_bytes_max,
            client_cert_identifies_user=settings.client_cert_identifies_user,
        )
        if settings.serves_json:
            self.gateway.serve()
        self.counters = ServerCounters()
        self.phase = ServerPhase.SERVING
        """The phase of this server's life; `shutdown` advances it."""
        self.shutdown = Shutdown(self, edge, logger)
        self.keeps_nothing = settings.keeps_nothing
        """Whether a shutdown skips the last flush."""
        self.peer_listeners: set[int] = set()
        """Numbers of the listeners for other members."""
        self.turn_seconds = TURN_SECONDS
        self.is_busy = True
        """Whether the next turn has work even if nothing arrives."""
        self.is_published = False
        """Whether the cluster knows this member's name and URLs, so that it may serve clients."""
        self.inline_bytes_max = 0
        """The largest append to the log that the loop may write itself."""
        self.jobs_under_way = 0
        # Requests and events not served yet, in the order of their arrival.
        self._requests: Sequence[Request] = ()
        self._events: list[Event] = []
        # Whether `_events` may hold events of other members.
        self._has_unseen = False
        self._edge = edge
        self._logger = logger
        self._on_tick = on_tick
        self._clock = member.clock
        self._leader = 0
        # The entry that takes several turns to apply, and the time of the first.
        self._long_entry: Entry | None = None
        self._long_since = 0.0
        self._slow_apply_seconds = settings.slow_apply_seconds
        self._tick_seconds = member.config.heartbeat_seconds
        self._limits = member.config.limits
        self.calls.check_seconds = min(slow_seconds, self._tick_seconds)
        self._next_tick = member.now
        self._peers_at = 0.0
        self._advance_until = member.now + ADVANCE_SECONDS_MAX if settings.advance_ticks else 0.0
        self._removed_at = 0.0
        self._strangers_since = inf
        self._is_idle = True
        member.replica.long_reads.has_room = edge.has_room
        if member.state.cluster.is_removed(member.id):
            member.note_removed()

    # The loop's questions and commands.

    @property
    def room(self) -> tuple[int, int]:
        """How many calls, and how many bytes of them, the next turn takes at most.

        If either is 0 or less, it takes none.
        """
        if self._requests or self._events or self.phase in (ServerPhase.CLOSING, ServerPhase.ENDED):
            return NOTHING
        calls_max, bytes_max = self.services.room
        return min(calls_max, CALLS_PER_TURN), min(bytes_max, BYTES_PER_TURN)

    @property
    def waiting(self) -> int:
        """How many requests and events have arrived and are not served yet."""
        return len(self._requests) + len(self._events) + self.gateway.waiting

    def forget_waiting(self) -> None:
        """Discard the requests and events not served yet, because no client gets an answer now."""
        self._requests, self._events = (), []

    def take_jobs(self) -> list[Job]:
        """Return the jobs to run, in order for each place.

        The loop hands the end of each job to `turn` or `resume_turn`, in the same order.
        """
        jobs = self.member.out.take_jobs()
        self.jobs_under_way += len(jobs)
        return jobs

    def wake_at(self, now: float) -> float:
        """Return when to take the next turn if nothing arrives before."""
        if self.phase is ServerPhase.CLOSING:
            return self.shutdown.check_at
        moment = min(self._next_tick, self._peers_at, self.gateway.wake_at)
        if self.calls.access is not None:
            moment = min(moment, self.calls.access.wake_at)
        return min(moment, self.member.wake_at(now))

    def log_access(self, access: AccessLog) -> None:
        """Log each call from now on."""
        self.calls.access = access
        self.services.identified = access.identify

    def drain(self, now: float) -> None:
        """Ask clients to open no more calls, finish those in flight, then shut down."""
        self.shutdown.begin(now)

    # Turns.

    def turn(
        self,
        now: float,
        requests: Sequence[Request],
        events: list[Event],
        dialed: Sequence[DialEvent],
        ended: Sequence[Ended],
    ) -> None:
        """Take a batch, let the member work, and send the answers.

        The batch has at most as many requests and events as `room` allowed. Raises the error that
        stopped the member.
        """
        member, peers = self.member, self.peers
        if self.phase is ServerPhase.CLOSING:
            self._take_ended(ended)
            self.shutdown.advance(now)
            return
        member.note_time(now)
        if dialed:
            peers.take_dialed(dialed, now)
        if requests:
            self.calls.receive(requests, now, member.replica.started)
            self._requests = requests
        deadline = now + self.turn_seconds
        seen = 0 if self._has_unseen else len(self._events)
        self._events += events
        if self.phase is ServerPhase.FLUSHING:
            # Clients that did not confirm the shutdown in time and other members may still send.
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
                # Clients used up their time; the member gets its own.
                deadline = self._clock() + self.turn_seconds
        is_busy = member.turn(now, deadline)
        if member.out.jobs:
            # Send first: other members then write entries at the same time as this one, and no
            # client waits for a write that its answer does not depend on.
            peers.deliver(now)
            self._answer(now)
            limits = self._limits
            if len(requests) > limits.inline_calls_max:
                self.inline_bytes_max = 0
            elif member.is_alone:
                self.inline_bytes_max = limits.inline_alone_bytes_max
            else:
                self.inline_bytes_max = limits.inline_shared_bytes_max
        else:
            # Answer clients first: messages wake other members, which may take the processor.
            self._answer(now)
            peers.deliver(now)
        self._end_turn(now, is_busy)

    def resume_turn(self, now: float, ended: Sequence[Ended]) -> None:
        """Continue the turn after jobs that ended as soon as they started."""
        self._take_ended(ended)
        if self.phase is ServerPhase.CLOSING:
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
                cluster_id=f"{member.state.cluster.cluster_id:x}",
            )
            self.is_published = True
        if member.replica.apply_queue.entry is not self._long_entry:
            self._watch_long_entry(now)
        if self.calls.access is not None and now >= self.calls.access.wake_at:
            self.calls.access.flush()
        is_waiting = bool(self._requests or self._events) or self.services.has_decided
        is_waiting = is_waiting or self.gateway.has_work
        self.is_busy = is_busy or is_waiting
        if self.phase is not ServerPhase.SERVING:
            self.shutdown.advance(now)

    def _answer(self, now: float) -> None:
        """Send the answers to clients, unless the phase is past draining."""
        if self.phase in (ServerPhase.SERVING, ServerPhase.DRAINING):
            calls, moment = self.calls, self._clock()
            self.milestones.note(self.member.replica, len(self._requests), moment)
            if moment >= calls.check_at and calls.find_slow(moment):
                self.slow_requests.remember(calls.slow)
            calls.is_delivering = True
            self.services.deliver(now)
            calls.is_delivering = False
            if self.gateway.events:
                # The gateway ends a call whose answer it cannot write as JSON.
                self._serve_gateway(now)

    def _take_ended(self, ended: Sequence[Ended]) -> None:
        member = self.member
        self.jobs_under_way -= len(ended)
        for job, result, error in ended:
            if error is None:
                member.complete_job(job, result)
            else:
                member.fail_job(job, error)

    def _serve_peers(self, now: float, deadline: float, seen: int) -> None:
        """Serve events of other members, until the deadline; the rest keeps its order.

        The first `seen` events belong to clients: skip them, because they may be many and wait for
        many turns.
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
        """Serve events of clients, until the deadline; the rest keeps its order."""
        services, front, clock = self.services, self.front, self._clock
        gateway, note = self.gateway, self.calls.note
        peers_open, gateway_open = self.peers.open, gateway.open
        served = 0
        for kind, call, detail in self._events:
            if call in peers_open or (kind == _HTTP_OPENED and detail[0] in self.peer_listeners):
                # `_serve_peers` had no time for this event: it comes first in the next turn.
                break
            served += 1
            if kind == _HTTP_OPENED or call in front.open:
                front.handle(kind, call, detail)
            elif call in gateway_open:
                gateway.handle(kind, call, detail)
            else:
                note(kind, call, detail, self.member.now, self.member.replica.started)
                services.take_event(kind, call, detail)
            if gateway.requests or gateway.events:
                self._serve_gateway(deadline)
            if clock() >= deadline:
                break
        self._events = self._events[served:]
        services.end_batch()

    def _serve_gateway(self, deadline: float) -> None:
        """Serve the calls and events that the JSON gateway made of HTTP requests."""
        gateway, services = self.gateway, self.services
        now, started = self.member.now, self.member.replica.started
        requests, gateway.requests = gateway.requests, []
        events, gateway.events = gateway.events, []
        if requests:
            self.calls.receive(requests, now, started, gateway)
            # One event makes one request at most, so that `serve` leaves none over.
            services.serve(requests, deadline)
        for kind, call, detail in events:
            self.calls.note(kind, call, detail, now, started, gateway)
            services.take_event(kind, call, detail)
        services.end_batch()

    def _work_for_gateway(self, deadline: float) -> None:
        """Parse bodies that are too long to parse as they arrive, at least one slice."""
        while self.gateway.has_work:
            self.gateway.work()
            self._serve_gateway(deadline)
            if self._clock() >= deadline:
                return

    # Ticks.

    def _tick(self, now: float) -> None:
        late = now - self._next_tick
        if late > self._tick_seconds:
            self.counters.heartbeats_late += 1
            # Do not make up for missed ticks: the clocks of other members went on.
            self._next_tick = now
        self._next_tick += self._tick_seconds
        member = self.member
        member.tick(now)
        member.replica.campaign_if_alone()
        if member.leader != self._leader:
            self._log_leader()
        if self._advance_until:
            self._advance_ticks(now)
        if member.was_removed:
            self._leave(now)
        if not self.is_published:
            self._refuse_strangers(now)
        self.slow_requests.tick(now, self.calls.take_overdue(now))
        if self._on_tick is not None:
            self._on_tick(self._is_idle)
        self._is_idle = True

    def _log_leader(self) -> None:
        """Log and count a change of leader; several changes between two ticks count as one."""
        member, before = self.member, self._leader
        self._leader = member.leader
        self.counters.leader_changes += bool(member.leader)
        fields = {"local_member_id": f"{member.id:x}", "term": member.term}
        if not member.leader:
            self._logger.warning("lost leader", leader=f"{before:x}", **fields)
        else:
            self._logger.info("elected leader", leader=f"{member.leader:x}", **fields)

    def _advance_ticks(self, now: float) -> None:
        """Skip most of the first election timeout once this member has reached another.

        No member wins an election without the others, and a leader, if there is one, sends a
        heartbeat within the two ticks that remain.
        """
        member = self.member
        if member.leader or member.is_alone or now > self._advance_until:
            self._advance_until = 0.0
        elif len(member.replica.connections) > 1:
            self._advance_until = 0.0
            for _ in range(member.config.election_ticks - 2):
                member.tick(now)

    def _leave(self, now: float) -> None:
        """Shut down after `REMOVED_SECONDS`, because this member was removed.

        Raises StartRefused instead if the member never served. The delay applies to a start, too:
        the last of the other members may not know of the removal, and need this member's vote to
        learn of it.
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

        A member that has applied more than the first entries of its cluster goes on, and so does a
        member restored from a snapshot: they have data, and other clusters may answer at their
        peers' addresses.
        """
        member = self.member
        foreign = self.peers.foreign_cluster
        has_data = (
            member.state.applied > len(member.state.cluster.members)
            or member.state.store.revision > 1
        )
        if not foreign or member.leader or has_data:
            self._strangers_since = inf
            return
        self._strangers_since = min(self._strangers_since, now)
        if now - self._strangers_since >= STRANGERS_SECONDS:
            raise ClusterSettingsError(mismatch_text(member.state.cluster.cluster_id, foreign))

    def _watch_long_entry(self, now: float) -> None:
        """Warn of an entry that took long to apply, which takes several turns."""
        entry, took = self._long_entry, now - self._long_since
        if entry is not None and took > self._slow_apply_seconds:
            self.counters.slow_applies += 1
            self._logger.warning(
                "apply request took too long",
                took=f"{took * 1000:.3f}ms",
                expected_duration=f"{self._slow_apply_seconds * 1000:g}ms",
                index=entry.index,
                size=len(entry.data),
            )
        self._long_entry, self._long_since = self.member.replica.apply_queue.entry, now
