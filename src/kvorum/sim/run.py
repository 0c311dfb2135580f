"""One run: a cluster, clients and faults as its plan says; then peace, and the checks.

First all faults that the seed has drawn happen, while clients work. Then the faults end, and
within bounded time every member must serve and have the same state as the others, and every watcher
must have every event. Then all machines lose power once more, and all of that must hold again.
"""

import gc
import shutil
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvorum.api.limits import WorkLimits
from kvorum.proxy.endpoints import LINGER_SECONDS
from kvorum.sim import checks
from kvorum.sim.administrators import Administrator, Wanted
from kvorum.sim.auditor import Auditor
from kvorum.sim.auth_checks import check_visits
from kvorum.sim.backups.fleet import BackupFleet, backups_installed
from kvorum.sim.buckets import check_buckets
from kvorum.sim.calls import Calls, CallsWithMetadata
from kvorum.sim.clients import Client
from kvorum.sim.cluster import Cluster
from kvorum.sim.coverage_points import count_coverage
from kvorum.sim.inspectors import Inspector
from kvorum.sim.json_calls import JsonCalls
from kvorum.sim.lease_checks import check_leases
from kvorum.sim.leaseholders import Leaseholder
from kvorum.sim.library.fleet import Fleet, library_installed
from kvorum.sim.limits import work_limits
from kvorum.sim.linearizability import Undecided
from kvorum.sim.lock_checks import check_locks
from kvorum.sim.machine import Machine
from kvorum.sim.memory import check_bounds, leftovers
from kvorum.sim.observers import GUARANTEE as OBSERVED
from kvorum.sim.observers import Observer
from kvorum.sim.permissions import ROOT
from kvorum.sim.plan import Plan, draw_plan
from kvorum.sim.probes import Probe
from kvorum.sim.proxies.fronts import Fronts
from kvorum.sim.proxies.sharers import Sharer, name_of_sharer
from kvorum.sim.proxies.tier import tier_installed
from kvorum.sim.reflectors import Reflector
from kvorum.sim.sessions import Session
from kvorum.sim.trace import Trace
from kvorum.sim.users import Realm, Users
from kvorum.sim.violation import Violation
from kvorum.sim.watch_checks import check_watcher
from kvorum.sim.watchers import Watcher
from kvorum.sim.workloads import CACHED
from kvorum.sim.world import World

SERVE_SECONDS_MAX = 30.0
"""Every member serves within this time after the faults."""
WATCH_SECONDS_MAX = 20.0
"""Every watcher gets every committed event within this time after the faults."""
LEASE_SECONDS_MAX = 6.0
"""Every lease that no client renews ends within its time plus this, if few end at once."""
REVOKE_WAVE_SECONDS_MAX = 1.5
"""Extra time for each wave where many leases end at once: members check every half second."""
LEASE_ROUNDS_MAX = 3
"""Rounds of waiting for leases: no grant is on its way for longer than two of them."""
LEAVE_SECONDS_MAX = 30.0
"""Nothing is kept for clients this long after they left."""
END_SECONDS_MAX = 15.0
"""A process that is asked to end has ended within this time, and leads no more."""
PEACE_SECONDS = 1.0
"""How long clients go on after the faults."""
CHECK_SECONDS = 0.05
BOUNDS_SECONDS = 0.5
EVENTS_MAX = 20_000
"""With more events in `BOUNDS_SECONDS`, repeatedly, members exchange messages without progress."""
STORMS_MAX = 3
"""How often in a row; a joining member may get its log as small messages out of order, and for each
that it refuses the leader sends all that follow once more."""
ENDS = "leadership is handed over by whoever ends cleanly"
COLLECTED_OBJECTS = 50_000
"""Objects that a run makes before it looks for garbage in cycles; a run makes little of it."""
MEMORY_DIRECTORY = "/dev/shm"  # noqa: S108 (a directory of its own is made in it)


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    seed: int
    members: int
    violation: str = ""
    guarantee: str = ""
    seconds: float = 0.0
    """Virtual seconds."""
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    """The faults that happened, by kind."""
    coverage: dict[str, int] = field(default_factory=dict)
    """Coverage points that were reached, by name."""


def memory_directory() -> str | None:
    """Return a directory in memory; None, for the default directory, if there is none."""
    return MEMORY_DIRECTORY if Path(MEMORY_DIRECTORY).is_dir() else None


def simulate(seed: int, members: int, trace: Trace | None = None) -> Outcome:
    """Run a seed with `members` members; return the outcome."""
    return simulate_plan(draw_plan(seed, members), trace)


def simulate_plan(plan: Plan, trace: Trace | None = None) -> Outcome:
    """Run a plan; return the outcome."""
    directory = tempfile.mkdtemp(prefix="kvorum-sim-", dir=memory_directory())
    try:
        with count_coverage() as reached, collecting_seldom():
            run = Run(plan, directory, trace)
            with stand_ins_installed(run):
                outcome = run.outcome()
        outcome.coverage = {name: reached[name] for name in sorted(reached)}
        return outcome
    finally:
        shutil.rmtree(directory)


@contextmanager
def stand_ins_installed(run: "Run") -> Iterator[None]:
    """Give the programs of a run its clocks, threads and connections during the block."""
    plan = run.plan
    with (
        library_installed(run.world, plan.library),
        tier_installed(plan.tier),
        backups_installed(run.backups, plan.backups),
    ):
        yield


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Make the collector of cyclic garbage run rarely in the block: nothing waits for it."""
    usual = gc.get_threshold()
    gc.set_threshold(COLLECTED_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class Run:
    """A run and everything in it."""

    def __init__(self, plan: Plan, directory: str, trace: Trace | None) -> None:
        self.plan = plan
        self.world = world = World(plan.seed, trace)
        if trace is not None:
            for line in plan.lines():
                trace.line(0.0, "---", line)
        self.limits = work_limits(plan.limits)
        options = plan.options | {"limits": self.limits}
        self.cluster = cluster = Cluster(world, plan.members, plan.faults, directory, options)
        history, workload = cluster.history, plan.workload
        self.users: Users | None = None
        self.fronts: Fronts | None = None
        if plan.tier is not None:
            self.fronts = Fronts(world, cluster, plan.tier, plan.faults)
        # The transports of clients that speak JSON.
        self.speakers: list[JsonCalls] = []
        cluster.operator.calls = self._way("op")
        self.administrators: list[Administrator] = []
        if plan.realm is not None:
            self._enable_users(plan.realm)
        self.clients = [
            Client(world, self._calls(f"c{number}"), history, workload, number)
            for number in range(1, len(workload.shapes) + 1)
        ]
        self.sessions = [
            Session(world, self._calls(f"s{number}"), history, workload, number)
            for number in range(1, workload.sessions + 1)
        ]
        self.leaseholders = [
            Leaseholder(world, self._calls(f"h{number}"), history, number)
            for number in range(1, workload.leaseholders + 1)
        ]
        self.reflectors = [
            Reflector(world, self._calls(f"r{number}"), history, workload, number)
            for number in range(1, workload.reflectors + 1)
        ]
        self.watchers = [
            Watcher(world, self._calls(f"w{number}"), history, workload, number)
            for number in range(1, workload.watchers + 1)
        ]
        self.observers = [
            Observer(world, self._calls(f"o{number}"), history, number)
            for number in range(1, workload.observers + 1)
        ]
        self.inspectors = [
            Inspector(world, cluster, self._calls(f"i{number}"), history, number)
            for number in range(1, workload.inspectors + 1)
        ]
        self.sharers: list[Sharer] = []
        if plan.tier is not None:
            self.sharers = [
                Sharer(world, self._calls(name_of_sharer(number)), history, number)
                for number in range(1, plan.tier.sharers + 1)
            ]
        self.fleet: Fleet | None = None
        if plan.library is not None:
            self.fleet = Fleet(world, cluster, plan.library, workload, self._ways, plan.suspensions)
            self.watchers += self.fleet.watchers
        self.backups: BackupFleet | None = None
        if plan.backups is not None:
            self.backups = BackupFleet(world, cluster, plan.backups)
        cluster.nemesis.peace_at = plan.fault_seconds
        self.undecided = 0
        # The events scheduled at the last check of the bounds, and how often there were too many.
        self.events = 0
        self.storms = 0

    def _enable_users(self, realm: Realm) -> None:
        """Give clients their badges, and compare members with the ledger."""
        world, cluster = self.world, self.cluster
        cluster.token_seconds = realm.token_seconds
        cluster.auditor = Auditor(cluster.history, realm.token_seconds)
        self.users = users = Users(world, cluster, realm, cluster.auditor.ledger, self._way)
        cluster.operator.calls = users.badge("op", ROOT)
        wanted: Wanted = deque()
        self.administrators = [
            Administrator(world, users, cluster.history, number, wanted)
            for number in range(1, realm.administrators + 1)
        ]

    def _calls(self, name: str) -> Calls:
        """Return the transport of a client's calls."""
        return self._way(name) if self.users is None else self.users.badge(name)

    def _always_proxied(self) -> set[str]:
        """Return the names of clients that are in the run to use proxies."""
        shapes, tier = enumerate(self.plan.workload.shapes, 1), self.plan.tier
        sharers = 0 if tier is None else tier.sharers
        names = {f"c{number}" for number, shape in shapes if shape == CACHED}
        return names | {name_of_sharer(number) for number in range(1, sharers + 1)}

    def _ways(self, name: str) -> Sequence[int]:
        """Return the members or proxies that a client of the library asks first."""
        return self.cluster.members if self.fronts is None else self.fronts.way(name).members

    def _way(self, name: str) -> CallsWithMetadata:
        """Return a client's transport: JSON, or gRPC, maybe through a proxy."""
        dialects, world = self.plan.dialects, self.world
        if self.fronts is not None and name[0] == "x":
            # A probe of a proxy, which has no JSON.
            return self.cluster
        if dialects is None or world.stream(f"dialect {name}").random() >= dialects.share:
            # Operators, probes and inspectors must reach the member that they name.
            if self.fronts is None or name == "op" or name[0] in "pi":
                return self.cluster
            return self.fronts.way(name, always=name in self._always_proxied())
        speaker = JsonCalls(world, self.cluster, dialects, name)
        self.speakers.append(speaker)
        if world.trace is not None:
            world.trace.line(world.now, name, "speaks JSON")
        return speaker

    def outcome(self) -> Outcome:
        """Run everything, and return the outcome."""
        outcome = Outcome(self.plan.seed, self.plan.members)
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
                self.world.trace.moments.violation = violation
        except Exception as error:
            # Any error belongs to this seed, and the campaign goes on.
            outcome.guarantee = "nothing raises"
            outcome.violation = "".join(traceback.format_exception(error))
            if self.world.trace is not None:
                found = Violation(outcome.guarantee, repr(error))
                self.world.trace.moments.violation = found
        finally:
            if self.world.trace is not None:
                self.world.trace.moments.end = self.world.now
            self.close()
        outcome.seconds = self.world.now
        outcome.counts = self.counts()
        outcome.faults = self.faults()
        return outcome

    def go(self) -> None:
        """Run everything; raise Violation where a guarantee does not hold."""
        world, cluster = self.world, self.cluster
        cluster.start()
        if self.fronts is not None:
            self.fronts.start()
        for administrator in self.administrators:
            administrator.start()
        for client in self.clients:
            client.start()
        for session in self.sessions:
            session.start()
        for leaseholder in self.leaseholders:
            leaseholder.start()
        for sharer in self.sharers:
            sharer.start()
        for watcher in (*self.watchers, *self.reflectors):
            watcher.start()
        for observer in self.observers:
            observer.start()
        for inspector in self.inspectors:
            inspector.start()
        if self.fleet is not None:
            self.fleet.start()
        if self.backups is not None:
            self.backups.start(self.plan.fault_seconds)
        self._check_bounds()
        world.run_until(self.plan.fault_seconds)
        world.after(PEACE_SECONDS, self._stop_clients)
        cluster.stop_faults()
        if self.backups is not None:
            self.backups.calm_down()
        if self.fronts is not None:
            self.fronts.stop(cluster.faults)
        world.run_until(max(world.now, self.plan.fault_seconds + PEACE_SECONDS))
        self._expect_service("once faults had stopped")
        self._expect_agreement()
        self._expect_watchers()
        if self.backups is not None:
            self.backups.expect_quiet(cluster.members)
        if self.plan.waits_for_leases:
            self._expect_leases_to_end()
        self._expect_nothing_left()
        if len(cluster.members) > 1:
            self._expect_hand_over()
        machines = [machine for machine in cluster.machines.values() if not machine.has_left]
        for machine in machines:
            machine.crash(power_cut=True)
        for machine in machines:
            machine.start()
        self._expect_service("after all had lost power")
        self._expect_agreement()
        self._check_history()
        if self.backups is not None:
            self.backups.fork_if_planned()

    def _stop_clients(self) -> None:
        for client in self.clients:
            client.is_stopped = True
        for session in self.sessions:
            session.stop()
        for leaseholder in self.leaseholders:
            leaseholder.stop()
        for sharer in self.sharers:
            sharer.stop()
        for inspector in self.inspectors:
            inspector.stop()
        if self.fleet is not None:
            self.fleet.stop()
        if self.fronts is not None:
            # A proxy must bring its watchers up to date without a reconnect.
            for watcher in (*self.watchers, *self.reflectors):
                watcher.is_patient = True
        for administrator in self.administrators:
            administrator.stop()
        if self.users is not None:
            # Watchers need permission until they have everything.
            self.users.promote()

    def close(self) -> None:
        """End all processes, so that their files can be removed."""
        self.world.trace = None
        if self.fleet is not None:
            self.fleet.close()
        if self.backups is not None:
            self.backups.close()
        if self.fronts is not None:
            self.fronts.end()
        for machine in self.cluster.machines.values():
            machine.end()

    def _check_bounds(self) -> None:
        """Check, again and again, how much members keep and how busy they are."""
        for machine in self.cluster.machines.values():
            check_bounds(machine)
        if self.fronts is not None:
            self.fronts.check_bounds()
        events, self.events = self.world.events - self.events, self.world.events
        self.storms = self.storms + 1 if events > EVENTS_MAX else 0
        if self.storms > STORMS_MAX:
            raise Violation(
                "members get somewhere",
                f"{events} events in {BOUNDS_SECONDS} s, and more than {EVENTS_MAX} in each of "
                f"the {STORMS_MAX} before, most of them messages",
            )
        self.world.after(BOUNDS_SECONDS, self._check_bounds)

    def _calls_of_root(self, name: str) -> Calls:
        return self._way(name) if self.users is None else self.users.badge(name, ROOT)

    # After the faults.

    def _expect_service(self, when: str) -> None:
        """Require that a put and a linearizable get at every member are answered in time."""
        world, cluster = self.world, self.cluster
        # Slow links first deliver what was sent before.
        links = cluster.links
        begin = world.now if links is None else max(world.now, links.busy_until)
        deadline = begin + SERVE_SECONDS_MAX
        probes = [
            Probe(world, self._calls_of_root(f"p{number}"), number) for number in cluster.members
        ]
        if self.fronts is not None:
            probes += self.fronts.probes(self._calls_of_root)
        for probe in probes:
            probe.start()
        if not world.run_while(lambda: any(not probe.is_done for probe in probes), deadline):
            late = [f"m{probe.member}: {probe.last}" for probe in probes if not probe.is_done]
            raise Violation(
                "the cluster serves in bounded time",
                f"{SERVE_SECONDS_MAX:.0f} s {when} not served: {', '.join(late)}",
                *(f"m{probe.member}" for probe in probes if not probe.is_done),
            )

    def _expect_agreement(self) -> None:
        """Require that all members reach the same state, and that their rows are the history's."""
        world, cluster = self.world, self.cluster
        machines = cluster.standing()

        def differ() -> bool:
            members = [each.member for each in machines if each.member is not None]
            indexes = {index for each in members for index in (each.state.applied, each.committed)}
            return len(members) < len(machines) or len(indexes) > 1

        if not world.run_while(differ, world.now + SERVE_SECONDS_MAX):
            raise Violation(
                "members agree in bounded time",
                ", ".join(
                    f"{each.name} applied {each.member.state.applied if each.member else 'nothing'}"
                    for each in machines
                ),
            )
        hashes = {}
        for machine in machines:
            self._check_rows(machine)
            hashes[machine.name] = machine.hash_kv()
        if len(set(hashes.values())) > 1:
            raise Violation("members are equal by HashKV", f"{hashes}")
        check_buckets(machines, cluster.history)

    def _check_rows(self, machine: Machine) -> None:
        """Compare all rows of a member with the history."""
        member, history = machine.member, self.cluster.history
        assert member is not None
        store = member.state.store
        if store.revision < history.revision:
            raise Violation(
                checks.DURABLE,
                f"{machine.name} is at revision {store.revision}, {history.revision} was applied",
            )
        rows = member.state.backend.scan_rows(0, (store.revision + 1 << 32) - 1, 1 << 30)
        history.observe(
            self.world.now, machine.name, 2, store.revision, store.compacted_revision, rows
        )
        there = set(rows)
        for row in history.needed(store.compacted_revision):
            if row not in there:
                raise Violation(
                    "compaction leaves what is needed",
                    f"{machine.name} is compacted at {store.compacted_revision} and lacks {row!r}",
                )

    def _expect_watchers(self) -> None:
        world = self.world
        everybody = [*self.watchers, *self.reflectors]
        for watcher in everybody:
            watcher.leave_removed()
        waiting = list(everybody)
        seconds = WATCH_SECONDS_MAX
        if self.fronts is not None:
            # Proxies keep their streams at a removed member for this long.
            seconds += LINGER_SECONDS
        deadline = world.now + seconds

        def incomplete() -> bool:
            while waiting and waiting[-1].is_complete():
                waiting.pop()
            return bool(waiting)

        if not world.run_while(incomplete, deadline):
            watcher = waiting[-1]
            watcher.violate(
                "reliable",
                f"waits for {watcher.next} since {seconds:.0f} s; the store is at "
                f"{self.cluster.history.revision}",
            )
        self._expect_observers(deadline)
        for watcher in everybody:
            watcher.is_stopped = True
            watcher.hang_up()
        for observer in self.observers:
            observer.is_stopped = True
            observer.hang_up()

    def _expect_observers(self, deadline: float) -> None:
        """Require that every observer knows the leader."""

        def waiting() -> list[Observer]:
            return [observer for observer in self.observers if not observer.is_complete()]

        if not self.world.run_while(lambda: bool(waiting()), deadline):
            raise Violation(OBSERVED, f"after {WATCH_SECONDS_MAX:.0f} s {waiting()[0].describe()}")

    def _expect_leases_to_end(self) -> None:
        """Require that leases that no client renews end in time at every member."""
        seconds = self.plan.workload.lease_seconds[1] + LEASE_SECONDS_MAX
        there = self._leases()
        leases = len({lease for _, lease in there})
        seconds += REVOKE_WAVE_SECONDS_MAX * leases / _revokes_at_once(self.limits)
        # A grant may be on its way for long; its lease has its full time from its arrival. A new
        # leader gives every lease its time again.
        for _ in range(LEASE_ROUNDS_MAX):
            term = self._newest_term()
            deadline = self.world.now + seconds
            self.world.run_while_polling(lambda: bool(self._leases()), deadline, CHECK_SECONDS)
            before, there = there, self._leases()
            late = [f"{name} has {lease:x}" for name, lease in there if (name, lease) in before]
            if late and self._newest_term() == term:
                raise Violation(
                    "leases end in bounded time",
                    f"{seconds:.0f} s after clients could renew: {', '.join(late)}",
                )
            if not there:
                return
        raise Violation(
            "leases end in bounded time", f"nobody asks for any, and there are new ones: {there}"
        )

    def _newest_term(self) -> int:
        machines = self.cluster.standing()
        return max(machine.member.term for machine in machines if machine.member is not None)

    def _leases(self) -> list[tuple[str, int]]:
        """Return the leases of all members, as pairs of a name and a lease."""
        found = []
        for machine in self.cluster.standing():
            assert machine.member is not None
            found += [(machine.name, lease) for lease in machine.member.state.lessor.leases()]
        return found

    def _expect_hand_over(self) -> None:
        """Require that a leader, asked to end, hands over, ends in time and serves again."""
        world = self.world
        leader = max(self.cluster.standing(), key=_leads_in)
        term = _leads_in(leader)
        leader.terminate()
        if not world.run_while(lambda: not leader.is_dead, world.now + END_SECONDS_MAX):
            phase = leader.server.phase.value if leader.server is not None else ""
            raise Violation(ENDS, f"{leader.name} {phase} {END_SECONDS_MAX:.0f} s later")
        # It may also lose the leadership to a candidate, whose election goes on.
        if term and (leader.led_at_the_end or self._newest_term() <= term):
            raise Violation(ENDS, f"{leader.name} led term {term}, and nobody took over")
        leader.start()
        self._expect_service("after its leader had ended")

    def _expect_nothing_left(self) -> None:
        """Require that members keep nothing for clients that are gone."""
        world, cluster = self.world, self.cluster
        waits = self.plan.waits_for_proposals

        def machines() -> list[Machine]:
            # A removed member may leave meanwhile.
            return [
                machine
                for machine in cluster.machines.values()
                if machine.number in cluster.members or machine.member is not None
            ]

        def is_kept() -> bool:
            return any(leftovers(machine, proposals=waits) for machine in machines()) or bool(
                self.fronts is not None and self.fronts.leftovers()
            )

        if not world.run_while_polling(is_kept, world.now + LEAVE_SECONDS_MAX, CHECK_SECONDS):
            kept = {machine.name: leftovers(machine) for machine in machines()}
            kept |= {} if self.fronts is None else self.fronts.leftovers()
            raise Violation(
                "memory is bounded",
                f"after all clients left: {kept}",
                *(name for name, what in kept.items() if what),
            )

    def _check_history(self) -> None:
        history = self.cluster.history
        history.replay()
        checks.check_once(history)
        checks.check_answers(history)
        checks.check_order(history)
        try:
            checks.check_linearizable(history)
        except Undecided:
            self.undecided += 1
        if self.fronts is not None:
            self.fronts.check(history)
        check_leases(history)
        holds = [hold for session in self.sessions for hold in session.holds]
        if self.fleet is not None:
            holds += self.fleet.holds
            self.fleet.check(history)
        check_locks(history, holds)
        for watcher in (*self.watchers, *self.reflectors):
            check_watcher(watcher, history)
        for reflector in self.reflectors:
            reflector.check_states()
        for observer in self.observers:
            observer.check()
        for inspector in self.inspectors:
            inspector.check_hashes()
        if self.users is not None and self.cluster.auditor is not None:
            check_visits(self.users, self.cluster.auditor)

    def counts(self) -> dict[str, int]:
        """Return how much happened, by kind."""
        cluster, history = self.cluster, self.cluster.history
        answered = [each for each in history.records if each.returned is not None]
        watchers = [*self.watchers, *self.reflectors]
        return {
            "events": self.world.events,
            "messages": cluster.network.sent,
            "terms": len(cluster.leaders),
            "snapshots": cluster.snapshots,
            "requests": len(history.records),
            "answers": len(answered),
            "revisions": history.revision,
            "watch events": sum(len(got.events) for each in watchers for got in each.got),
            "holds": sum(len(session.holds) for session in self.sessions),
            "configurations": cluster.configurations_compared,
            "leaders observed": sum(len(observer.observed) for observer in self.observers),
            "hashes": sum(len(inspector.hashes) for inspector in self.inspectors),
            "snapshots saved": sum(inspector.snapshots for inspector in self.inspectors),
            "ranges in pieces": sum(each.kind == "stream" for each in answered),
            "calls in JSON": sum(speaker.calls for speaker in self.speakers),
            "undecided": self.undecided,
            **(self.fleet.counts() if self.fleet is not None else {}),
            **(self.users.counts() if self.users is not None else {}),
            **(self.fronts.counts() if self.fronts is not None else {}),
            **(self.backups.counts() if self.backups is not None else {}),
        }

    def faults(self) -> dict[str, int]:
        """Return the faults that happened, by kind."""
        cluster = self.cluster
        return {
            "messages lost": cluster.network.dropped,
            "crashes": sum(machine.crashes for machine in cluster.machines.values()),
            "helpers died": sum(machine.helpers_lost for machine in cluster.machines.values()),
            **cluster.nemesis.counts,
            **cluster.operator.counts,
            **cluster.director.counts,
            **(self.fronts.troubles if self.fronts is not None else {}),
            **(self.backups.troubles() if self.backups is not None else {}),
        }


def _revokes_at_once(limits: WorkLimits) -> int:
    return min(
        limits.lease_revokes_per_second_max,
        limits.lease_deadlines_examined_max,
        limits.lease_revokes_per_check_max,
    )


def _leads_in(machine: Machine) -> int:
    """Return the term that a member leads; 0 if it follows."""
    member = machine.member
    return member.term if member is not None and member.is_leader else 0
