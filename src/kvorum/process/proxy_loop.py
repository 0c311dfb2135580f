"""The loop of the gRPC proxy: it gives the proxy the time, and input from clients and members.

One thread sleeps on three descriptors: the edge's, the upstream's, and one for signals and other
threads. `kvorum.proxy.proxy.Proxy` decides everything else.
"""

import gc
import time

from kvorum.network.edge import Edge
from kvorum.network.edge.upstream import Upstream
from kvorum.process.thread_executor import ThreadExecutor
from kvorum.process.waking import Waking
from kvorum.proxy.proxy import Proxy
from kvorum.proxy.settings import BYTES_PER_TURN, CALLS_PER_TURN
from kvorum.server.telemetry.incidents import READ_SECONDS, IncidentLog
from kvorum.server.telemetry.logs import Logger
from kvorum.storage.platform.readiness import READABLE, Poller

clock = time.monotonic


class ProxyLoop:
    """Runs one proxy until a signal has ended it; enter `waking` around `run`."""

    def __init__(self, edge: Edge, upstream: Upstream, logger: Logger) -> None:
        self._edge = edge
        self._upstream = upstream
        self._logger = logger
        self.waking = Waking()
        self.thread_executor = ThreadExecutor(self.waking.wake)
        self.proxy: Proxy
        self._incidents = IncidentLog(edge, logger, ())
        self._read_at = 0.0
        self._is_draining = False

    def run(self) -> int:
        """Serve until a signal, shut down, and return the signal's number."""
        gc.collect()
        gc.freeze()
        with Poller() as poller:
            for descriptor in (
                self._edge.fileno(),
                self._upstream.fileno(),
                self.waking.descriptor,
            ):
                poller.register(descriptor, READABLE)
            while not self.proxy.is_ended and not self.waking.is_urgent:
                self._turn()
                if self._may_sleep():
                    now = clock()
                    until = min(self.proxy.wake_at(now), self._read_at)
                    woken = poller.poll(max(0.0, until - now))
                    if any(descriptor == self.waking.descriptor for descriptor, _ in woken):
                        self.waking.clear()
        return self.waking.signal

    def _turn(self) -> None:
        edge, upstream, proxy = self._edge, self._upstream, self.proxy
        self.thread_executor.take_results()
        now = clock()
        if self.waking.signal and not self._is_draining:
            self._is_draining = True
            self._logger.info("received signal; shutting down", signal=self.waking.signal_name)
            proxy.drain(now)
        edge.awake()
        upstream.awake()
        requests, events = edge.poll(CALLS_PER_TURN, BYTES_PER_TURN)
        proxy.turn(now, requests, events, upstream.poll(CALLS_PER_TURN, BYTES_PER_TURN))
        if now >= self._read_at:
            self._read_at = now + READ_SECONDS
            self._incidents.log(edge.incidents(), now)

    def _may_sleep(self) -> bool:
        return (
            not self.proxy.is_busy
            and self._edge.announce_sleep()
            and self._upstream.announce_sleep()
        )
