"""The loop that runs a server: it connects the server with the edge, the executor and the clock.

One thread at a time runs Python while the server serves. It sleeps until the edge's wake-up
descriptor is readable, another member has answered, a job has ended, or the server's wake-up time
has come. `kvorum.server.server.Server` decides everything else.
"""

import asyncio
import gc
import time
from collections.abc import Mapping

from kvorum.network.dialer.interface import Dialer
from kvorum.network.edge import Edge
from kvorum.process.peer_address_check import PeerAddressCheck
from kvorum.server.jobs import JobOrder
from kvorum.server.server import Server
from kvorum.server.shutdown import ServerPhase

clock = time.monotonic


class ServerLoop:
    """Runs one server until it has ended or raised an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, edge: Edge) -> None:
        self._loop = loop
        self._edge = edge
        self.server: Server
        self.jobs: JobOrder
        self.dialer: Dialer
        self.peer_address_check: PeerAddressCheck | None = None
        """Checks peers' addresses against their certificates; None if no flag asks for that."""
        self.published: asyncio.Future[None] = loop.create_future()
        """Done once the cluster knows this member, so that client ports may open."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done once the server has ended, with the error that ended it, if any."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._is_scheduled = False
        self._may_wait = True

    def start(self) -> None:
        """Start to take turns."""
        self._loop.add_reader(self._edge.fileno(), self.ring)
        self.wake()

    def drain(self) -> None:
        """Start the server's graceful shutdown."""
        self.server.drain(clock())
        self.wake()

    def wake(self) -> None:
        """Take a turn soon."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def ring(self, may_wait: bool = True) -> None:
        """Take a turn in this call, because the edge has input; that saves a pass of the loop.

        Unless `may_wait`, this thread does not write the log itself.
        """
        if not self._is_scheduled:
            self._may_wait = may_wait
            self._turn()
            self._may_wait = True

    def on_loop_error(self, _loop: object, context: Mapping[str, object]) -> None:
        """End the server because a callback outside a turn raised an error.

        An error in a connection to another member ends only that connection.
        """
        error = context.get("exception")
        message = str(context.get("message"))
        if not isinstance(error, Exception):
            error = RuntimeError(message)
        elif "protocol" in context:
            try:
                boundary = self.server.member.boundary
                boundary.take(error, "dial", "a connection to a member", message)
                return
            except Exception as again:
                error = again
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._edge.fileno())
            self.ended.set_exception(error)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self.ended.done():
            return
        edge, server, jobs = self._edge, self.server, self.jobs
        try:
            now = clock()
            edge.awake()
            calls_max, bytes_max = server.room
            if calls_max > 0 and bytes_max > 0:
                requests, events = edge.poll(calls_max, bytes_max)
                if self.peer_address_check is not None:
                    events = self.peer_address_check.admit(events)
            else:
                requests, events = [], []
            server.turn(now, requests, events, self.dialer.poll(), jobs.take_ended())
            while started := server.take_jobs():
                jobs.submit(started, server.inline_bytes_max if self._may_wait else 0)
                ended = jobs.take_ended()
                if not ended:
                    break
                server.resume_turn(now, ended)
            server.counters.turns.observe(clock() - now)
            self._end_turn(server)
        except Exception as error:
            # An unforeseen error ends the server.
            self._fail(error)

    def _end_turn(self, server: Server) -> None:
        """Schedule the next turn, unless this was the last one."""
        if server.is_published and not self.published.done():
            self.published.set_result(None)
        if server.phase is ServerPhase.ENDED:
            self._loop.remove_reader(self._edge.fileno())
            self.ended.set_result(None)
        elif server.phase is ServerPhase.CLOSING:
            # The loop polls the edge no more, so the edge need not wake it.
            self._sleep_until(server.wake_at(clock()))
        elif server.is_busy or self.jobs.has_ended or not self._edge.announce_sleep():
            self.wake()
        else:
            self._sleep_until(server.wake_at(clock()))

    def _sleep_until(self, moment: float) -> None:
        """Take a turn at this moment, unless there is an earlier timer."""
        if self._timer is not None:
            if moment >= self._timer_at:
                return
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_at(moment, self._alarm)

    def _alarm(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.wake()


def collect_young(is_idle: bool) -> None:
    """Collect young objects while clients are idle; exclude survivors from later collections."""
    if is_idle:
        gc.collect(0)
        gc.freeze()
