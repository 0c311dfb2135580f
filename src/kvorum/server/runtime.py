"""The loop that runs a member: the edge, the jobs and the clock take turns with it.

One thread runs Python while the member serves. It sleeps until the edge's wake-up descriptor is
readable, a job has ended, or the next moment comes at which the member has something to do. A
turn takes what arrived, lets the member work for `TURN_SECONDS_MAX`, and gives out what it has to
say; ticks come first in every turn, so that long work never silences a leader.
"""

import asyncio
import gc
import time

from kvorum.edge import Edge, Event, EventKind
from kvorum.gateway.http import HttpFront
from kvorum.member.member import Member
from kvorum.rpc.services import Services
from kvorum.server.calls import CallCounts
from kvorum.server.jobs import JobRunner
from kvorum.server.logs import Logger

TURN_SECONDS_MAX = 0.005
CALLS_PER_TURN = 1000
BYTES_PER_TURN = 4 * 1024 * 1024
INLINE_CALLS_MAX = 4
"""With more requests at once, the log is written beside the loop, which gathers the next batch."""
CLOSE_SECONDS_MAX = 10.0

clock = time.monotonic


class Runtime:
    """Runs one member until it is told to end, or stops because of an error."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        edge: Edge,
        member: Member,
        logger: Logger,
    ) -> None:
        self._loop = loop
        self._edge = edge
        self._member = member
        self._logger = logger
        self.counts: CallCounts
        self.services: Services
        self.front: HttpFront
        self.jobs: JobRunner
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the server has ended; with the error that ended it."""
        self.heartbeats_late = 0
        self._tick_seconds = member.config.heartbeat_seconds
        self._next_tick = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._is_scheduled = False
        self._is_idle = True
        self._drain_until: float | None = None
        self._is_closing = False

    # Life.

    def start(self) -> None:
        """Begin to take turns."""
        self._loop.add_reader(self._edge.fileno(), self.wake)
        self.wake()

    def drain(self) -> None:
        """Take no new calls, finish those in flight, then end."""
        if self._drain_until is None:
            self._drain_until = clock() + self._member.config.request_seconds_max
            self._edge.drain()
            self.wake()

    def wake(self) -> None:
        """Take a turn soon."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

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
            is_busy = self._take_turn(now)
            if self._drain_until is not None:
                self._end_when_drained(now)
            if is_busy or self.jobs.has_ended or not self._edge.announce_sleep():
                self.wake()
            else:
                self._sleep()
        except Exception as error:
            # Nothing goes on after an error that nobody foresaw.
            self._fail(error)

    def _take_turn(self, now: float) -> bool:
        edge, member = self._edge, self._member
        edge.awake()
        if now >= self._next_tick:
            self._tick(now)
        for job, result, error in self.jobs.take_ended():
            if error is None:
                member.completed(job, result)
            else:
                member.failed(job, error)
        requests, events = edge.poll(CALLS_PER_TURN, BYTES_PER_TURN)
        if events:
            events = self._serve_http(events)
            self.counts.happened(events)
        if requests:
            self.counts.received(requests)
        if requests or events:
            self._is_idle = False
            self.services.serve(requests, events)
        is_busy = member.turn(now, now + TURN_SECONDS_MAX)
        if member.out.jobs:
            is_busy = self._run_jobs(now, len(requests) <= INLINE_CALLS_MAX)
        self.services.deliver(now)
        return is_busy

    def _run_jobs(self, now: float, may_write: bool) -> bool:
        """Start jobs; those that end at once are taken at once."""
        member, runner = self._member, self.jobs
        is_busy = False
        while True:
            runner.submit(member.out.take_jobs(), may_write=may_write)
            ended = runner.take_ended()
            if not ended:
                return is_busy
            for job, result, error in ended:
                if error is None:
                    member.completed(job, result)
                else:
                    member.failed(job, error)
            is_busy = member.turn(now, clock() + TURN_SECONDS_MAX)
            if not member.out.jobs:
                return is_busy

    def _serve_http(self, events: list[Event]) -> list[Event]:
        """Take out what concerns plain HTTP."""
        front = self.front
        rest = []
        for event in events:
            kind, call, detail = event
            if kind == EventKind.HTTP_OPENED or call in front.open:
                front.handle(kind, call, detail)
            else:
                rest.append(event)
        return rest

    def _tick(self, now: float) -> None:
        late = now - self._next_tick
        if late > self._tick_seconds:
            self.heartbeats_late += 1
            # Ticks that were missed are not made up for: the peers' clocks did not stand still.
            self._next_tick = now
        self._next_tick += self._tick_seconds
        member = self._member
        member.tick(now)
        if not member.leader and list(member.conf_state.voters) == [member.id]:
            # Nobody else could lead, so there is nothing to wait for.
            member.node.campaign()
        if self._is_idle:
            # What survives is not looked at again.
            gc.collect(0)
            gc.freeze()
        self._is_idle = True

    def _sleep(self) -> None:
        """Be woken at the next tick, or before if the member has something to do by itself."""
        moment = min(self._next_tick, self._member.wake_at(clock()))
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

    def _end_when_drained(self, now: float) -> None:
        assert self._drain_until is not None
        if self._is_closing:
            if not self.jobs.under_way or now > self._drain_until:
                self._loop.remove_reader(self._edge.fileno())
                self.ended.set_result(None)
            return
        in_flight = len(self.counts.unary) + len(self.front.open)
        if not in_flight or now > self._drain_until:
            if in_flight:
                self._logger.warning("calls in flight are cut off", calls=in_flight)
            self._is_closing = True
            self._drain_until = now + CLOSE_SECONDS_MAX
            self._member.close()
            self.wake()
