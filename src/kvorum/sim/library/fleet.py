"""All library clients of a run, and the options that the seed draws for them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from kvorum.client import watch_set
from kvorum.client.core import CoreSettings
from kvorum.client.endpoints import parse_endpoint
from kvorum.sim.cluster import Cluster
from kvorum.sim.history import History
from kvorum.sim.library.checks import check_claims
from kvorum.sim.library.clients import LibraryClient
from kvorum.sim.library.holders import Holder
from kvorum.sim.library.leasers import Leaser, check_reads
from kvorum.sim.library.process import RUNNING, Process
from kvorum.sim.library.shell import RecordedCore, Shell, client_names, clocks
from kvorum.sim.library.suspensions import Suspensions
from kvorum.sim.library.tasks import Task, Waiter
from kvorum.sim.library.watchers import LibraryWatcher
from kvorum.sim.sessions import Hold
from kvorum.sim.workloads import Workload
from kvorum.sim.world import World
from kvorum.state.mvcc.watch import hub

CHANCE = 0.26
"""Chance that a run without users has library clients; this makes a fifth of all runs."""
CALM_CHANCE = 0.25
FIRST_NUMBER = 4000
"""The records number library clients from here on."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Library:
    """The library clients of a run, and the faults they get."""

    clients: int
    watchers: int
    holders: int
    disturb_gap: float
    """Average time between two faults of a client's process."""
    sync_share: float
    """Share of the clients that refresh their endpoints from the member list."""
    kept_events_max: int
    """How many untaken events a watch keeps."""
    fragment_bytes_max: int
    """Size above which a watch response is split into fragments."""
    is_calm: bool
    """Whether members get no faults: each election would extend the leases."""


def draw_library(random: Random) -> Library | None:
    """Draw a run's library clients; None, as for most runs, if it has none."""
    if random.random() >= CHANCE:
        return None
    return Library(
        clients=random.randint(1, 2),
        watchers=random.randint(1, 2),
        holders=random.randint(3, 5),
        disturb_gap=random.choice([1.0, 2.0, 5.0]),
        sync_share=random.choice([0.0, 0.5, 1.0]),
        kept_events_max=random.choice([1, 3, 10, 10_000]),
        fragment_bytes_max=random.choice([1, 100, 400, 1 << 20]),
        is_calm=random.random() < CALM_CHANCE,
    )


class Fleet:
    """The library clients of a run."""

    __slots__ = (
        "_asks",
        "_cluster",
        "_library",
        "_suspensions",
        "_tasks",
        "_world",
        "clients",
        "holders",
        "leasers",
        "shells",
        "watchers",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        library: Library,
        workload: Workload,
        asks: Callable[[str], Sequence[int]],
        suspensions: Suspensions | None,
    ) -> None:
        """Make the clients; `asks` returns the first targets, members or proxies, for a name."""
        self._world = world
        self._cluster = cluster
        self._library = library
        self._suspensions = suspensions
        self._asks = asks
        self.shells: list[Shell] = []
        self._tasks: list[Task] = []
        history = cluster.history
        self.clients = [
            LibraryClient(
                world, self._shell(f"lc{number}"), history, workload, FIRST_NUMBER + number
            )
            for number in range(1, library.clients + 1)
        ]
        self.watchers = [
            LibraryWatcher(world, cluster, history, workload, number, self._shell(f"lw{number}"))
            for number in range(1, library.watchers + 1)
        ]
        self.holders = [
            Holder(world, self._shell(f"lh{number}"), workload, number)
            for number in range(1, library.holders + 1)
        ]
        self.leasers = [
            Leaser(world, self._shell(f"ll{number}"), workload, number)
            for number in range(1, (0 if suspensions is None else suspensions.leasers) + 1)
        ]

    def _shell(self, name: str) -> Shell:
        world, cluster = self._world, self._cluster
        random = world.stream(f"core {name}")
        addresses = [parse_endpoint(f"m{number}:2379") for number in self._asks(name)]
        settings = CoreSettings()
        if random.random() < self._library.sync_share:
            settings = CoreSettings(sync_seconds=random.choice([0.3, 2.0]))
        core = RecordedCore(addresses, settings, start=random.randrange(len(addresses)))
        number = FIRST_NUMBER + len(self.shells) + 1
        shell = Shell(world, cluster, Process(world, name), core, number)
        self.shells.append(shell)
        return shell

    def start(self) -> None:
        """Start all clients and their faults."""
        until = self._cluster.nemesis.peace_at
        for shell in self.shells:
            process = shell.process
            process.disturb(until, self._library.disturb_gap)
            if self._suspensions is not None:
                random = self._world.stream(f"suspensions {process.name}")
                process.suspend_often(random, until, self._suspensions.gap)
        for client in self.clients:
            self._tasks.append(Task(self._world, client.shell.process, client.run()))
        for holder in self.holders:
            self._tasks.append(Task(self._world, holder.shell.process, holder.run()))
        for leaser in self.leasers:
            self._tasks.append(Task(self._world, leaser.shell.process, leaser.run()))
        for watcher in self.watchers:
            self._tasks.append(Task(self._world, watcher.shell.process, watcher.run()))

    def stop(self) -> None:
        """Stop all clients except watchers, and end their processes."""
        for client in self.clients:
            client.is_stopped = True
            client.shell.end()
        for holder in self.holders:
            holder.stop()
        for leaser in self.leasers:
            leaser.stop()

    def close(self) -> None:
        """End the remaining tasks because the run is over."""
        for task in self._tasks:
            task.end()

    @property
    def holds(self) -> list[Hold]:
        """The locks that the holders claim to have held."""
        return [claim.hold for holder in self.holders for claim in holder.claims if claim.name]

    def check(self, history: History) -> None:
        """Check the holders' claims and the leasers' reads against the history."""
        check_claims(history, [claim for holder in self.holders for claim in holder.claims])
        check_reads(history, [read for leaser in self.leasers for read in leaser.reads])

    def counts(self) -> dict[str, int]:
        """Return how often each kind of event happened."""
        connections = [shell.connections for shell in self.shells]
        counts = {
            "connections of the library": sum(each[0] for each in connections),
            "connections of the library lost": sum(each[1] for each in connections),
            "claims": sum(len(holder.claims) for holder in self.holders),
        }
        if self.leasers:
            counts["reads by leases"] = sum(len(leaser.reads) for leaser in self.leasers)
        for shell in self.shells:
            for name, count in shell.process.counts.items():
                counts[name] = counts.get(name, 0) + count
        return counts


@contextmanager
def library_installed(world: World, library: Library | None) -> Iterator[None]:
    """Apply the run's clocks and limits to the library and to members' watches in the block."""
    if library is None:
        yield
        return
    overhead = library.fragment_bytes_max - hub.REQUEST_BYTES_MAX
    with ExitStack() as patches:
        patches.enter_context(client_names(clocks(world, RUNNING.get) | {"Waiter": Waiter}))
        patches.enter_context(patch.object(hub, "FRAGMENT_OVERHEAD_BYTES", overhead))
        patches.enter_context(patch.object(watch_set, "KEPT_EVENTS_MAX", library.kept_events_max))
        yield
