"""The process of a proxy: production's `Proxy`, with turns at moments drawn from the seed.

A crash discards all state of the process, and the next process starts empty. The process also
pauses, terminates cleanly, is partitioned from some members, and loses connections on both sides.
"""

from collections.abc import Callable
from math import inf
from random import Random

from kvorum.client.endpoints import parse_endpoint
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.proxy.proxy import Proxy
from kvorum.proxy.settings import BYTES_PER_TURN, ProxySettings
from kvorum.server.rpc.interface import STREAM_PENDING_BYTES_MAX
from kvorum.server.server import Server
from kvorum.sim.arrivals import Arrivals
from kvorum.sim.cluster import Cluster
from kvorum.sim.edge import CLIENT_DELAY, SimulatedEdge
from kvorum.sim.faults import Faults
from kvorum.sim.logs import CollectedLogs
from kvorum.sim.memory import GUARANTEE as BOUNDED
from kvorum.sim.memory import TURN_BYTES_MAX, WAITING_MAX
from kvorum.sim.moments import Kind
from kvorum.sim.proxies.tier import Tier
from kvorum.sim.proxies.upstream import SimulatedUpstream
from kvorum.sim.standstill import Standstill
from kvorum.sim.violation import Violation
from kvorum.sim.world import World

SERVES = "the proxy serves"
ANSWERED = "every call is answered or ended"
STALLED_FACTOR = 2048
"""Factor by which bytes that a client leaves unread are counted."""
_TURNS_AT_ONCE_MAX = 1000
"""More turns than this at one moment mean a loop without progress."""


class ProxyHost:
    """A proxy's machine, and the process that starts and ends there."""

    __slots__ = (
        "_alarm_at",
        "_cluster",
        "_incarnation",
        "_is_woken",
        "_last_turn",
        "_logs",
        "_random",
        "_standstill",
        "_streams",
        "_tier",
        "_turns_now",
        "_world",
        "advertised",
        "arrivals",
        "calls",
        "coalesced",
        "connections_lost",
        "edge",
        "ended",
        "faults",
        "hits",
        "is_dead",
        "is_ending",
        "name",
        "number",
        "proxy",
        "server",
        "started",
        "upstream",
    )

    def __init__(
        self, world: World, cluster: Cluster, number: int, tier: Tier, faults: Faults
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._tier = tier
        self.number = number
        self.name = f"m{number}"
        self.advertised = f"http://{self.name}:2379" if tier.is_advertised else ""
        self.faults = faults
        self._random: Random = world.stream(f"proxy {number}")
        self._logs = CollectedLogs(world, self.name)
        self.server: Server | None = None
        self.edge = SimulatedEdge(world, self, faults, STALLED_FACTOR)
        self.arrivals = Arrivals(self)
        self.upstream: SimulatedUpstream
        self.proxy: Proxy | None = None
        self.is_dead = True
        # Whether the process was asked to end cleanly.
        self.is_ending = False
        self._standstill = Standstill(world)
        # When each of its processes started, and how many have ended.
        self.started: list[float] = []
        self.ended = 0
        # Totals of the ended processes: calls, cache hits, shared events, lost connections.
        self.calls = self.hits = self.coalesced = self.connections_lost = 0
        self._incarnation = 0
        # The streams that the process has seen opened and that have not ended.
        self._streams: set[int] = set()
        self._is_woken = False
        self._alarm_at = inf
        self._last_turn = 0.0
        self._turns_now = 0

    @property
    def member(self) -> object:
        """The serving proxy; None while no process runs."""
        return self.proxy

    @property
    def incarnation(self) -> int:
        """A number that changes with every start and end of the process."""
        return self._incarnation

    def line(self, what: str, kind: Kind | None = None, seconds: float = 0.0) -> None:
        """Add a line to the trace; lines with a kind also appear in pictures."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what, kind, seconds)

    # The life of a process.

    def start(self) -> None:
        """Start a process with the current members as its endpoints."""
        assert self.is_dead
        world, tier = self._world, self._tier
        self.is_dead = self.is_ending = False
        self._incarnation += 1
        self._streams = set()
        self._is_woken = False
        self._alarm_at = inf
        self.started.append(world.now)
        self.line("start of a proxy", Kind.START)
        members = [f"http://m{number}:2379" for number in self._cluster.members]
        settings = ProxySettings(
            endpoints=tuple(parse_endpoint(url) for url in members),
            sync_seconds=tier.sync_seconds,
            advertise_client_url=self.advertised,
            host_name=self.name,
            cache_bytes_max=tier.cache_bytes_max,
            is_ordering=tier.is_ordering,
        )
        self.upstream = SimulatedUpstream(
            world, self._cluster, self._random, tier.queued_bytes_max, self.request_turn
        )
        self.proxy = Proxy(self.edge, self.upstream, settings, self._random.randrange, self._logs)
        self.edge.open()
        self.request_turn()

    def crash(self) -> None:
        """Kill the process now."""
        if not self.is_dead:
            self.line("killed", Kind.KILLED)
            self._die()

    def terminate(self) -> None:
        """Let the process drain and end, as a signal does."""
        if self.proxy is not None and not self.is_ending:
            self.is_ending = True
            self._drain(self._incarnation)

    def _drain(self, incarnation: int) -> None:
        if incarnation != self._incarnation or self.later(self._drain, incarnation):
            return
        assert self.proxy is not None
        self.line("terminated", Kind.TERMINATED)
        self.proxy.drain(self._world.now)
        self.request_turn()

    def _die(self) -> None:
        self.is_dead = True
        self.is_ending = False
        self.ended += 1
        self._incarnation += 1
        if self.proxy is not None:
            self._count(self.proxy)
        self.proxy = None
        self._standstill.until = 0.0
        self.arrivals.forget()
        self.upstream.stop()
        self.edge.crash()

    def _count(self, proxy: Proxy) -> None:
        self.calls += sum(proxy.counters.started)
        self.hits += 0 if proxy.cache is None else proxy.cache.hits
        self.coalesced += proxy.counters.events_coalesced
        self.connections_lost += self.upstream.lost

    def end(self) -> None:
        """End the process for good."""
        if not self.is_dead:
            self._die()

    # Faults.

    def pause(self, seconds: float) -> None:
        """Pause the process for a while."""
        if not self.is_dead:
            self.line(f"paused for {seconds:.3f}", Kind.PAUSED, seconds)
            self._standstill.pause_for(seconds)

    def cut_off(self, members: list[int], seconds: float) -> None:
        """Partition the process from some members for a while."""
        if not self.is_dead:
            self.line(f"cut off from {members} for {seconds:.3f}", Kind.CUT_OFF, seconds)
            for number in members:
                self.upstream.cut_off(number, self._world.now + seconds)

    def break_one(self) -> None:
        """Break one connection: to a member, or of a client's call."""
        if self.is_dead:
            return
        if self._random.random() < 0.5:
            if self.upstream.break_one():
                self.line("a connection to a member breaks")
            return
        call = self.edge.break_one()
        if call is not None:
            self.line(f"the connection of call {call} breaks")
            self._world.after(self._random.uniform(*CLIENT_DELAY), self.arrivals.hang_up, call)

    def later(self, call: Callable[..., None], *arguments: object) -> bool:
        """Defer a call while the process is paused; return whether it was deferred."""
        return self._standstill.later(call, *arguments)

    # Turns.

    def request_turn(self) -> None:
        """Schedule a turn soon, unless one is scheduled already."""
        if self._is_woken or self.proxy is None:
            return
        self._is_woken = True
        least, most = self.faults.wake_delay
        delay = least + self._random.random() * (most - least)
        self._world.after(delay, self._turn, self._incarnation)

    def _turn(self, incarnation: int) -> None:
        if incarnation != self._incarnation or self.later(self._turn, incarnation):
            return
        self._is_woken = False
        self._run_turn()

    def _wait_until(self, moment: float) -> None:
        """Schedule a turn at a moment, in case nothing wakes the process earlier."""
        if moment < self._alarm_at:
            self._alarm_at = moment
            self._world.at(max(moment, self._world.now), self._alarm, self._incarnation, moment)

    def _alarm(self, incarnation: int, moment: float) -> None:
        if incarnation != self._incarnation or moment != self._alarm_at:
            return
        if not self.later(self._alarm, incarnation, moment):
            self._alarm_at = inf
            self._run_turn()

    def _run_turn(self) -> None:
        proxy, now = self.proxy, self._world.now
        assert proxy is not None
        self._turns_now = self._turns_now + 1 if now == self._last_turn else 0
        self._last_turn = now
        if self._turns_now > _TURNS_AT_ONCE_MAX:
            raise Violation("turns get somewhere", f"{self.name} is woken at {now} for nothing")
        requests, events = self.arrivals.take()
        self._streams.update(call for kind, call, _ in events if kind == EdgeEventKind.OPENED)
        polled = self.upstream.poll(self._tier.polled_events_max, BYTES_PER_TURN)
        try:
            proxy.turn(now, requests, events, polled)
        except Violation:
            raise
        except Exception as error:
            raise Violation(SERVES, f"{self.name} raised {error!r}") from error
        self._check(proxy)
        if proxy.is_ended:
            self.line("ended", Kind.ENDED)
            self._die()
        elif proxy.is_busy or self.upstream.has_more:
            self.request_turn()
        else:
            self._wait_until(proxy.wake_at(now))

    # Checks.

    def check_before_output(self) -> None:
        """Do nothing: a proxy has no state to check before its outputs."""

    def output(self) -> None:
        """Allow every output: a proxy crashes only between turns."""

    def _check(self, proxy: Proxy) -> None:
        """Check after a turn that no call was forgotten and no unexpected error was counted."""
        if proxy.routes.boundary.counts:
            raise Violation(
                "nothing unforeseen happens", f"{self.name} {proxy.routes.boundary.counts}"
            )
        edge, waiting = self.edge, self.arrivals
        if edge.unary and not proxy.routes.calls_in_flight:
            forgotten = edge.unary.keys() - waiting.calls()
            if forgotten:
                raise Violation(ANSWERED, f"{self.name} has forgotten calls {sorted(forgotten)}")
        self._check_relays(proxy)
        # A turn may not have taken the end of a stream yet.
        ended = {call for _, call in waiting.events()}
        self._streams &= edge.pending.keys() | ended
        differing = self._streams ^ proxy.counters.streams.keys()
        if differing - ended:
            raise Violation(ANSWERED, f"{self.name} has forgotten streams {sorted(differing)}")

    def _check_relays(self, proxy: Proxy) -> None:
        """Check that back-pressure on a member ends once the client reads again."""
        if not len(proxy._forwarding) or self._standstill.until == self._world.now:
            return
        told = self.arrivals.events()
        for call, relay in proxy._forwarding._open.items():
            if (
                self.upstream.is_paused(relay.number)
                and not self.edge.is_stalled(call)
                and (EdgeEventKind.WRITABLE, call) not in told
            ):
                raise Violation(ANSWERED, f"{self.name} does not go on with stream {call}")

    def check_bounds(self) -> None:
        """Require that the process keeps no more than its limits."""
        for name, size in self.kept().items():
            if size > WAITING_MAX:
                raise Violation(BOUNDED, f"{self.name} keeps {size} {name}")
        for call, size in self.edge.pending.items():
            if size > STREAM_PENDING_BYTES_MAX + STALLED_FACTOR * TURN_BYTES_MAX:
                raise Violation(BOUNDED, f"{self.name} holds {size} bytes for stream {call}")

    def kept(self) -> dict[str, int]:
        """Return how much the process keeps for clients and from members, by kind."""
        proxy = self.proxy
        if proxy is None:
            return {}
        watches, keep_alives = proxy._watches, proxy._keep_alives
        routes = proxy.routes
        return {
            "calls at members": routes.calls_in_flight + self.upstream.calls_open,
            "callbacks": len(routes._callbacks) + len(routes._deadlines) + len(routes._resent),
            "streams to members": len(routes._streams) + len(routes._held_streams),
            "streams of clients": len(proxy.counters.streams),
            "watch streams": len(watches._streams) + len(watches._sessions),
            "streams passed on": len(proxy._forwarding),
            "keep-alive streams": len(keep_alives._clients) + len(keep_alives._shared_streams),
            "bytes of requests": routes.bytes_in_flight and 1,
            "ranges watched for the cache": len(proxy.cache.ranges) if proxy.cache else 0,
        }

    def leftovers(self) -> dict[str, int]:
        """Return the nonzero counts of `kept`, which must vanish after all clients have left.

        The proxy's own calls for the member list appear from time to time, but end soon.
        """
        return {name: size for name, size in self.kept().items() if size}
