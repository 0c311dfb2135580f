"""All proxies of a run: which clients use them, and their faults."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from kvorum.api.errors import Status
from kvorum.network.edge.interface import Metadata
from kvorum.sim.calls import Calls, CallsWithMetadata
from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import Faults
from kvorum.sim.history import History
from kvorum.sim.proxies.checks import check_cached
from kvorum.sim.proxies.host import ProxyHost
from kvorum.sim.proxies.probes import ProxyProbe
from kvorum.sim.proxies.tier import Tier
from kvorum.sim.world import World

FIRST_NUMBER = 101
"""Proxies are numbered from here on, above all machines."""
DOWN_SECONDS = (0.05, 0.5)
PAUSE_SECONDS = (0.05, 0.5, 2.0)
CUT_SECONDS = (0.2, 1.0, 3.0)
"""Maximum durations; each fault draws one of them and then a duration up to it."""
OVER_SECONDS = 0.3
"""How long a fault may last beyond the end of the fault phase."""


class ThroughProxies:
    """The targets of a client that uses proxies; some clients also call members directly."""

    __slots__ = ("_cluster", "_fronts", "_is_switching")

    def __init__(self, cluster: Cluster, fronts: Sequence[int], *, is_switching: bool) -> None:
        self._cluster = cluster
        self._fronts = fronts
        self._is_switching = is_switching

    @property
    def members(self) -> Sequence[int]:
        """The proxies, and for some clients also the members, that may be called."""
        if self._is_switching:
            return [*self._fronts, *self._cluster.members]
        return self._fronts

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Callable[[bytes | Status | None], None],
        metadata: Metadata | None = None,
    ) -> int:
        """As `Calls.call`."""
        return self._cluster.call(member, path, payload, answered, metadata)

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Callable[[bytes | Status | None], None],
        message: Callable[[bytes], None],
        metadata: Metadata | None = None,
    ) -> int:
        """As `Calls.open_stream`."""
        return self._cluster.open_stream(member, path, answered, message, metadata)

    def send(self, member: int, call: int, payload: bytes) -> None:
        """As `Calls.send`."""
        self._cluster.send(member, call, payload)

    def hang_up(self, member: int, call: int) -> None:
        """As `Calls.hang_up`."""
        self._cluster.hang_up(member, call)

    def stall(self, member: int, call: int, seconds: float) -> None:
        """As `Calls.stall`."""
        self._cluster.stall(member, call, seconds)

    def is_ready(self) -> bool:
        """As `Calls.is_ready`."""
        return self._cluster.is_ready()

    def stays(self, name: str, member: int) -> bool:
        """As `Calls.stays`."""
        return self._cluster.stays(name, member)


class Fronts:
    """The proxies of a run."""

    __slots__ = ("_cluster", "_faults", "_random", "_tier", "_world", "hosts", "troubles")

    def __init__(self, world: World, cluster: Cluster, tier: Tier, faults: Faults) -> None:
        self._world = world
        self._cluster = cluster
        self._tier = tier
        self._faults = faults
        self._random: Random = world.stream("proxies")
        self.hosts = [
            ProxyHost(world, cluster, FIRST_NUMBER + place, tier, faults)
            for place in range(tier.proxies)
        ]
        cluster.proxies.update({host.number: host for host in self.hosts})
        # How often each kind of fault was injected.
        self.troubles: Counter[str] = Counter()

    @property
    def numbers(self) -> list[int]:
        """The numbers of all proxies."""
        return [host.number for host in self.hosts]

    def way(self, name: str, *, always: bool = False) -> CallsWithMetadata:
        """Return a client's targets: the proxies or the members."""
        random = self._world.stream(f"proxied {name}")
        is_proxied = random.random() < self._tier.share or always
        is_switching = random.random() < self._tier.switching
        if not is_proxied:
            return self._cluster
        return ThroughProxies(self._cluster, self.numbers, is_switching=is_switching)

    # Faults.

    def start(self) -> None:
        """Start all proxies and their faults."""
        for host in self.hosts:
            host.start()
        faults = self._faults
        for gap, trouble in (
            (faults.proxy_crash_gap, self._crash),
            (faults.proxy_terminate_gap, self._terminate),
            (faults.proxy_pause_gap, self._pause),
            (faults.proxy_cut_gap, self._cut),
            (faults.proxy_reset_gap, self._break),
        ):
            if gap:
                self._again(gap, trouble)

    def _again(self, gap: float, trouble: Callable[[ProxyHost], None]) -> None:
        self._world.after(self._random.expovariate(1 / gap), self._happen, gap, trouble)

    def _happen(self, gap: float, trouble: Callable[[ProxyHost], None]) -> None:
        if self._world.now < self._cluster.nemesis.peace_at:
            trouble(self._random.choice(self.hosts))
            self._again(gap, trouble)

    def _lasting(self, choices: tuple[float, ...]) -> float:
        """Return a fault's duration, which ends at most `OVER_SECONDS` after the fault phase."""
        seconds = self._random.uniform(0.0, self._random.choice(choices))
        left = self._cluster.nemesis.peace_at + OVER_SECONDS - self._world.now
        return min(seconds, left)

    def _crash(self, host: ProxyHost) -> None:
        if not host.is_dead:
            self.troubles["proxies killed"] += 1
            host.crash()
            self._world.after(self._random.uniform(*DOWN_SECONDS), self._start, host)

    def _start(self, host: ProxyHost) -> None:
        if host.is_dead:
            host.start()

    def _terminate(self, host: ProxyHost) -> None:
        if not host.is_dead and not host.is_ending:
            self.troubles["proxies ended"] += 1
            host.terminate()
            self._look_for_end(host)

    def _look_for_end(self, host: ProxyHost) -> None:
        """Restart a proxy once it has ended."""
        if host.is_dead:
            self._start(host)
        elif host.is_ending:
            self._world.after(DOWN_SECONDS[0], self._look_for_end, host)

    def _pause(self, host: ProxyHost) -> None:
        self.troubles["proxies paused"] += 1
        host.pause(self._lasting(PAUSE_SECONDS))

    def _cut(self, host: ProxyHost) -> None:
        members = self._cluster.members
        cut = self._random.sample(members, self._random.randint(1, len(members)))
        self.troubles["proxies cut off"] += 1
        host.cut_off(cut, self._lasting(CUT_SECONDS))

    def _break(self, host: ProxyHost) -> None:
        self.troubles["connections of proxies broken"] += 1
        host.break_one()

    def stop(self, faults: Faults) -> None:
        """Stop injecting faults, and start all proxies that are down.

        Restart those that no longer know any member of the cluster, as an operator would.
        """
        self._faults = faults
        for host in self.hosts:
            host.faults = host.edge.faults = faults
            if host.proxy is not None:
                known = {place.address.host for place in host.proxy.routes.endpoints}
                if known.isdisjoint(f"m{number}" for number in self._cluster.members):
                    host.crash()
            self._start(host)

    def end(self) -> None:
        """End all proxy processes."""
        for host in self.hosts:
            host.end()

    # Checks.

    def check_bounds(self) -> None:
        """Require that all proxies stay within their limits."""
        for host in self.hosts:
            host.check_bounds()

    def probes(self, calls: Callable[[str], Calls]) -> list[ProxyProbe]:
        """Return a probe for each proxy; `calls` returns the way for a probe's calls by name."""
        return [
            ProxyProbe(self._world, calls(f"x{host.number}"), host.number, host.advertised)
            for host in self.hosts
        ]

    def leftovers(self) -> dict[str, dict[str, int]]:
        """Return what proxies still keep for clients, by proxy name."""
        return {host.name: kept for host in self.hosts if (kept := host.leftovers())}

    def check(self, history: History) -> None:
        """Check the answers that clients got from proxies."""
        for host in self.hosts:
            check_cached(history, host.number, host.started, is_ordering=self._tier.is_ordering)

    def counts(self) -> dict[str, int]:
        """Return how often each kind of event happened."""
        return {
            "calls through proxies": sum(host.calls for host in self.hosts),
            "reads from caches": sum(host.hits for host in self.hosts),
            "events shared": sum(host.coalesced for host in self.hosts),
            "connections of proxies lost": sum(host.connections_lost for host in self.hosts),
        }
