"""One run: a cluster, clients and faults drawn from a seed; then peace, and the reckoning.

First everything goes wrong that the seed has drawn, while clients work. Then the faults end, and
within bounded time every member must serve, have what the others have, and every watcher must
have everything. Then the power is cut everywhere once more, and all of that must hold again.
"""

import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import PutRequest, PutResponse, RangeRequest, RangeResponse
from sim import checks
from sim.clients import METHODS, Client, draw_workload
from sim.cluster import Cluster
from sim.faults import draw
from sim.machine import Machine
from sim.trace import Trace
from sim.violation import Violation
from sim.watchers import Watcher
from sim.world import World

SERVE_SECONDS_MAX = 30.0
"""Once nothing goes wrong any more, every member serves within this time."""
WATCH_SECONDS_MAX = 20.0
"""And every watcher has everything that was committed within this time."""
LEASE_SECONDS_MAX = 6.0
"""And every lease that nobody renews ends within its time and this."""
PROBE_SECONDS = 0.5
MEMORY_DIRECTORY = "/dev/shm"  # noqa: S108 (a directory of its own is made in it)


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    members: int
    violation: str = ""
    guarantee: str = ""
    seconds: float = 0.0
    """Virtual ones."""
    counts: dict[str, int] = field(default_factory=dict)


def draw_options(random: Random) -> dict[str, object]:
    """Return options of the members; small limits, so that a short run reaches them."""
    return {
        "election_ticks": random.choice([2, 4, 4, 10]),
        "pre_vote": random.random() < 0.6,
        "message_bytes_max": random.choice([1, 2000, 1 << 20]),
        "inflight_messages_max": random.choice([2, 16, 512]),
        "segment_bytes": random.choice([4096, 16384, 65536]),
        "snapshot_entries": random.choice([5, 30, 10_000]),
        "catch_up_entries": random.choice([2, 20, 5000]),
        "flush_seconds": random.choice([0.02, 0.1, 0.5]),
        "flush_writes_max": random.choice([3, 50, 10_000]),
        "compaction_batch": random.choice([1, 5, 1000]),
        "compaction_pause_seconds": random.choice([0.01, 0.3]),
    }


def simulate(seed: int, members: int, trace: Trace | None = None) -> Outcome:
    """Run a seed with so many members; tell what it came to."""
    directory = tempfile.mkdtemp(
        prefix="kvorum-sim-", dir=MEMORY_DIRECTORY if Path(MEMORY_DIRECTORY).is_dir() else None
    )
    try:
        return Run(seed, members, directory, trace).outcome()
    finally:
        shutil.rmtree(directory)


class Run:
    """A run and everything in it."""

    def __init__(self, seed: int, members: int, directory: str, trace: Trace | None) -> None:
        self.world = world = World(seed, trace)
        random = world.stream("run")
        self.seed = seed
        self.faults = draw(random)
        self.fault_seconds = random.uniform(2.0, 8.0)
        self.workload = draw_workload(random, self.fault_seconds)
        options = draw_options(random)
        self.waits_for_leases = random.random() < 0.2
        if trace is not None:
            trace.line(0.0, "---", f"seed {seed} members {members}")
            trace.line(0.0, "---", f"{self.faults}")
            trace.line(0.0, "---", f"{self.workload}")
            trace.line(0.0, "---", f"{options}")
        self.cluster = Cluster(world, members, self.faults, directory, options)
        history = self.cluster.history
        self.clients = [
            Client(world, self.cluster, history, self.workload, number)
            for number in range(1, self.workload.clients + 1)
        ]
        self.watchers = [
            Watcher(world, self.cluster, history, self.workload, number)
            for number in range(1, self.workload.watchers + 1)
        ]

    def outcome(self) -> Outcome:
        """Do it, and tell what it came to."""
        outcome = Outcome(self.seed, len(self.cluster.members))
        try:
            self.go()
        except Violation as violation:
            outcome.guarantee = violation.guarantee
            outcome.violation = violation.text
            cause = violation.__cause__
            if cause is not None:
                outcome.violation += "\n" + "".join(traceback.format_exception(cause))
            if self.world.trace is not None:
                self.world.trace.line(self.world.now, "!!!", f"{violation}")
        finally:
            self.close()
        outcome.seconds = self.world.now
        outcome.counts = self.counts()
        return outcome

    def go(self) -> None:
        """Let everything happen; raise Violation where a guarantee does not hold."""
        world, cluster = self.world, self.cluster
        cluster.start()
        for client in self.clients:
            client.start()
        for watcher in self.watchers:
            watcher.start()
        world.run_until(self.fault_seconds)
        cluster.stop_faults()
        world.run_until(world.now + 1.0)
        for client in self.clients:
            client.is_stopped = True
        self._expect_service("once faults had stopped")
        self._expect_agreement()
        self._expect_watchers()
        if self.waits_for_leases:
            self._expect_leases_to_end()
        for machine in cluster.machines.values():
            machine.crash(power_cut=True)
        for machine in cluster.machines.values():
            machine.start()
        self._expect_service("after all had lost power")
        self._expect_agreement()
        self._judge()

    def close(self) -> None:
        """End all processes, so that their files can be removed."""
        self.world.trace = None
        for machine in self.cluster.machines.values():
            machine.end()

    # In peace.

    def _expect_service(self, when: str) -> None:
        """Require that a put and a linearizable get at every member are answered in time."""
        world, cluster = self.world, self.cluster
        deadline = world.now + SERVE_SECONDS_MAX
        probes = [Probe(world, cluster, number) for number in cluster.members]
        for probe in probes:
            probe.start()
        if not world.run_while(lambda: any(not probe.is_done for probe in probes), deadline):
            late = [f"m{probe.member}: {probe.last}" for probe in probes if not probe.is_done]
            raise Violation(
                "the cluster serves in bounded time",
                f"{SERVE_SECONDS_MAX:.0f} s {when} not served: {', '.join(late)}",
            )

    def _expect_agreement(self) -> None:
        """Require that all members come to the same state, and it is that of the history."""
        world, cluster = self.world, self.cluster
        machines = list(cluster.machines.values())

        def differ() -> bool:
            members = [each.member for each in machines if each.member is not None]
            indexes = {index for each in members for index in (each.applied, each.committed)}
            return len(members) < len(machines) or len(indexes) > 1

        if not world.run_while(differ, world.now + SERVE_SECONDS_MAX):
            raise Violation(
                "members agree in bounded time",
                ", ".join(
                    f"{each.name} applied {each.member.applied if each.member else 'nothing'}"
                    for each in machines
                ),
            )
        hashes = {}
        for machine in machines:
            self._check_rows(machine)
            hashes[machine.name] = machine.hash_kv()
        if len(set(hashes.values())) > 1:
            raise Violation("members are equal by HashKV", f"{hashes}")

    def _check_rows(self, machine: Machine) -> None:
        """Compare all rows of a member with the history."""
        member, history = machine.member, self.cluster.history
        assert member is not None
        store = member.store
        if store.revision < history.revision:
            raise Violation(
                "acknowledged is durable",
                f"{machine.name} is at revision {store.revision}, {history.revision} was applied",
            )
        rows = member.backend.scan_rows(0, (store.revision + 1 << 32) - 1, 1 << 30)
        history.observe(
            self.world.now, machine.name, 2, store.revision, store.compacted_revision, rows
        )

    def _expect_watchers(self) -> None:
        world = self.world
        waiting = list(self.watchers)
        deadline = world.now + WATCH_SECONDS_MAX

        def incomplete() -> bool:
            while waiting and waiting[-1].is_complete():
                waiting.pop()
            return bool(waiting)

        if not world.run_while(incomplete, deadline):
            watcher = waiting[-1]
            raise Violation(
                "watch",
                f"{watcher.name} waits for {watcher.next} since {WATCH_SECONDS_MAX:.0f} s; the "
                f"store is at {self.cluster.history.revision}",
            )
        for watcher in self.watchers:
            watcher.is_stopped = True

    def _expect_leases_to_end(self) -> None:
        """Require that what nobody renews is gone in time, and its keys with it."""
        seconds = self.workload.lease_seconds[1] + LEASE_SECONDS_MAX
        self.world.run_until(self.world.now + seconds)
        for machine in self.cluster.machines.values():
            assert machine.member is not None
            leases = machine.member.lessor.leases()
            if leases:
                raise Violation(
                    "leases end in bounded time",
                    f"{machine.name} has {len(leases)} leases {seconds:.0f} s after the last "
                    f"client stopped",
                )

    def _judge(self) -> None:
        history = self.cluster.history
        history.replay()
        checks.check_once(history)
        checks.check_answers(history)
        checks.check_order(history)
        checks.check_linearizable(history)
        checks.check_leases(history)
        for watcher in self.watchers:
            watcher.check()

    def counts(self) -> dict[str, int]:
        """Return how much happened, by kind."""
        cluster, history = self.cluster, self.cluster.history
        machines = cluster.machines.values()
        answered = [each for each in history.records if each.returned is not None]
        return {
            "events": self.world.events,
            "messages": cluster.network.sent,
            "messages lost": cluster.network.dropped,
            "partitions": cluster.partitions,
            "pauses": cluster.pauses,
            "crashes": sum(machine.crashes for machine in machines),
            "terms": len(cluster.leaders),
            "snapshots": cluster.snapshots,
            "requests": len(history.records),
            "answers": len(answered),
            "revisions": history.revision,
            "watch events": sum(len(watcher.events) for watcher in self.watchers),
        }


class Probe:
    """Asks one member to put and get a key until it does."""

    def __init__(self, world: World, cluster: Cluster, member: int) -> None:
        self._world = world
        self._cluster = cluster
        self.member = member
        self.is_done = False
        self.last = "no answer"
        self._attempt = 0

    def start(self) -> None:
        """Ask for the put."""
        self._attempt += 1
        key = b"probe/%d" % self.member
        value = b"%d.%.6f" % (self.member, self._world.now)
        self._ask("put", PutRequest(key=key, value=value), PutResponse, self._read)

    def _read(self, _response: Any) -> None:
        key = b"probe/%d" % self.member
        self._ask("get", RangeRequest(key=key), RangeResponse, self._finish)

    def _finish(self, response: Any) -> None:
        if response.kvs:
            self.is_done = True
        else:
            self.last = "a key is missing that was just put"

    def _ask(self, kind: str, request: Any, response: Any, then: Callable[[Any], None]) -> None:
        attempt = self._attempt

        def answered(result: bytes | Status | None) -> None:
            if attempt != self._attempt or self.is_done:
                return
            if isinstance(result, bytes):
                then(response.FromString(result))
            else:
                self.last = "connection lost" if result is None else result.text
                self._attempt += 1
                self._world.after(PROBE_SECONDS, self.start)

        self._cluster.call(self.member, METHODS[kind][0], request.SerializeToString(), answered)
