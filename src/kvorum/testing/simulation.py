"""Run a user's scenario against simulated clusters, one for each seed.

A seed decides everything random, so a seed always gives the same run. A failing seed runs once more
to record its trace, and raises an error with all that is needed to reproduce it.
"""

import asyncio
import functools
import inspect
import re
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvorum.sim.cluster import Cluster
from kvorum.sim.library.process import Process
from kvorum.sim.picture import draw
from kvorum.sim.programs.faults import KINDS, checked_kinds, draw_faults
from kvorum.sim.programs.loop import VirtualLoop
from kvorum.sim.programs.program import PROGRAM, Program
from kvorum.sim.programs.surroundings import surrounded
from kvorum.sim.run import collecting_seldom, memory_directory
from kvorum.sim.trace import Trace
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.testing.simulated_cluster import SimulatedCluster

ALL_FAULTS = tuple(KINDS)
SEEDS = 100
MEMBERS = 3
SECONDS_MAX = 3600.0
"""The limit of a scenario's duration, in virtual seconds."""
_ELECTION_SECONDS_MAX = 300.0
_SHOWN_LINES = 40
_OPTIONS: dict[str, object] = {
    "heartbeat_seconds": 0.25,
    "election_ticks": 4,
    "segment_bytes": 65536,
}
"""Default election timeouts, but fewer heartbeats, which cause most of the work; small files."""
# Events inside members that few readers want: messages, jobs, applied entries, logs.
_INNER = re.compile(r"^ *[\d.]+ m\d+ +([<>x] |did |applied |sends |[DIW] )")

Scenario = Callable[[SimulatedCluster], Coroutine[Any, Any, object]]


class SimulationError(AssertionError):
    """A scenario failed; its error is the cause of this one."""

    def __init__(self, message: str, seed: int, trace: str, picture: str) -> None:
        super().__init__(message)
        self.seed = seed
        """The seed that failed, and fails again."""
        self.trace = trace
        """All events, one per line; docs/simulation.md has the legend."""
        self.picture = picture
        """The events as a page of HTML."""


@dataclass(slots=True)
class Simulated:
    """The result of a simulation without a failure."""

    seeds: int = 0
    seconds: float = 0.0
    """Virtual seconds, summed over all runs."""
    faults: dict[str, int] = field(default_factory=dict)
    """The number of faults that happened, by kind."""
    trace: str = ""
    """All events, if `seed` was given."""


@dataclass(slots=True, frozen=True)
class _Test:
    """The scenario of a test, with the arguments of the test."""

    scenario: Callable[..., Coroutine[Any, Any, object]]
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self, cluster: SimulatedCluster) -> Coroutine[Any, Any, object]:
        return self.scenario(cluster, *self.arguments, **self.named)


@dataclass(slots=True, frozen=True)
class _Plan:
    """The parameters of a run, except the seed."""

    scenario: Scenario
    members: int
    faults: tuple[str, ...]
    seconds_max: float

    def call(self, seed: int, extra: str = "") -> str:
        """Return the source of a call that reproduces a seed."""
        name = getattr(self.scenario, "__qualname__", repr(self.scenario))
        arguments = f"seed={seed}, members={self.members}"
        if self.faults != ALL_FAULTS:
            arguments += f", faults={self.faults!r}"
        if self.seconds_max != SECONDS_MAX:
            arguments += f", seconds_max={self.seconds_max!r}"
        if isinstance(self.scenario, _Test):
            return f"@kvorum.testing.simulated({arguments}{extra})"
        return f"kvorum.testing.simulate({name}, {arguments}{extra})"


def simulate(
    scenario: Scenario,
    *,
    seed: int | None = None,
    seeds: int | Iterable[int] = SEEDS,
    members: int = MEMBERS,
    faults: Iterable[str] = ALL_FAULTS,
    seconds_max: float = SECONDS_MAX,
    picture: str | Path | None = None,
) -> Simulated:
    """Run a scenario once for each seed, each time against a new simulated cluster.

    `seeds` is a number of seeds from 0 on, or the seeds themselves. `seed` is a single seed, whose
    trace is returned. `faults` are the kinds that may happen: kill, pause, partition, network, disk
    and processes; a seed draws some of them. If `picture` names a file, the run of `seed`, or of
    the seed that failed, is drawn there.

    Raise SimulationError for the first seed that fails: by an assertion, by any other error that
    the scenario does not catch, or because the scenario does not end within `seconds_max`.
    """
    # Hide this frame: test runners show the scenario's own frames, which are in the cause.
    __tracebackhide__ = True
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("simulate() has a loop of its own; call it from a plain function")
    if members < 1:
        raise ValueError(f"a cluster has at least one member, not {members}")
    plan = _Plan(scenario, members, checked_kinds(tuple(faults)), seconds_max)
    done = Simulated()
    if seed is not None:
        trace = Trace()
        _check(plan, seed, done, trace, picture)
        done.trace = trace.text()
        if picture is not None:
            Path(picture).write_text(_draw_run(plan, seed, trace), encoding="utf-8")
        return done
    for each in range(seeds) if isinstance(seeds, int) else seeds:
        _check(plan, each, done, None, picture)
    return done


def simulated(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Turn a scenario into a plain test: `@simulated(seeds=100)`, with options of `simulate`.

    The scenario's first parameter is the cluster. The test takes the other ones, as fixtures and
    parameters.
    """

    def made(scenario: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., None]:
        _cluster, *others = inspect.signature(scenario).parameters.values()

        def test(*arguments: Any, **named: Any) -> None:
            __tracebackhide__ = True
            simulate(_Test(scenario, arguments, named), **options)

        # functools.wraps would make test runners look for a fixture for the cluster.
        functools.update_wrapper(test, scenario)
        del test.__wrapped__  # type: ignore[attr-defined]
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return test

    return made


def _check(
    plan: _Plan, seed: int, done: Simulated, trace: Trace | None, picture: str | Path | None
) -> None:
    """Run a seed; raise SimulationError if it fails."""
    __tracebackhide__ = True
    run = _Run(plan, seed, trace)
    error = run.run()
    if error is None:
        done.seeds += 1
        done.seconds += run.world.now
        for name, count in run.count_faults().items():
            done.faults[name] = done.faults.get(name, 0) + count
        return
    if trace is None:
        trace = Trace()
        again = _Run(plan, seed, trace).run()
        if repr(again) != repr(error):
            raise _describe_difference(plan, seed, error, again, trace) from error
        assert again is not None
        error = again
    failed = _describe_failure(plan, seed, error, trace)
    if picture is not None:
        Path(picture).write_text(failed.picture, encoding="utf-8")
    raise failed from error


def _describe_failure(
    plan: _Plan, seed: int, error: BaseException, trace: Trace
) -> SimulationError:
    lines = [line for line in trace.lines if not _INNER.match(line)]
    drawn = f', picture="sim-{seed}.html"'
    message = [
        f"seed {seed} failed: {type(error).__name__}: {error}",
        f"replay:  {plan.call(seed)}",
        f"picture: {plan.call(seed, drawn)}",
        f"the last of what happened, of {len(trace.lines)} lines in all:",
        *lines[-_SHOWN_LINES:],
    ]
    return SimulationError("\n".join(message), seed, trace.text(), _draw_run(plan, seed, trace))


def _describe_difference(
    plan: _Plan, seed: int, first: BaseException, second: BaseException | None, trace: Trace
) -> SimulationError:
    message = (
        f"seed {seed} failed with {first!r}, but run again with {second!r}: something in the "
        "scenario depends on more than its seed, such as the order of a set, datetime.now(), or "
        "what an earlier run has left behind"
    )
    return SimulationError(message, seed, trace.text(), _draw_run(plan, seed, trace))


def _draw_run(plan: _Plan, seed: int, trace: Trace) -> str:
    heading = f"seed {seed} with {plan.members} members"
    return draw(trace.moments, heading, [plan.call(seed)])


class _Run:
    """One run of a scenario."""

    def __init__(self, plan: _Plan, seed: int, trace: Trace | None) -> None:
        self.plan = plan
        self.world = World(seed, trace)
        self.cluster: Cluster | None = None
        self.given: SimulatedCluster | None = None

    def run(self) -> BaseException | None:
        """Run the scenario; return its error, or None."""
        directory = tempfile.mkdtemp(prefix="kvorum-sim-", dir=memory_directory())
        try:
            with collecting_seldom():
                return self._run(directory)
        finally:
            shutil.rmtree(directory)

    def _run(self, directory: str) -> BaseException | None:
        __tracebackhide__ = True
        world, plan = self.world, self.plan
        faults = draw_faults(world.seed, plan.members, plan.faults)
        if world.trace is not None:
            world.trace.line(0.0, "---", f"seed {world.seed} members {plan.members}")
            world.trace.line(0.0, "---", f"{faults}")
        cluster = self.cluster = Cluster(world, plan.members, faults, directory, dict(_OPTIONS))
        cluster.operator.calls = cluster
        program = Program(world, cluster, Process(world, "scenario"), 1)
        loop = VirtualLoop(world, program)
        given = self.given = SimulatedCluster(world, cluster, loop, program, plan.faults)
        error: BaseException | None = None
        try:
            with surrounded(world, loop), loop.running():
                try:
                    self._run_scenario(loop, program)
                except Exception as raised:
                    error = raised
                self._end_trace(error)
                for each in given._programs:
                    each.end()
        finally:
            for machine in cluster.machines.values():
                machine.end()
        return error

    def _run_scenario(self, loop: VirtualLoop, program: Program) -> None:
        """Run until the scenario is done; raise its error."""
        __tracebackhide__ = True
        world, plan, given = self.world, self.plan, self.given
        assert given is not None and self.cluster is not None
        self.cluster.start()
        world.run_while(lambda: given.leader is None, _ELECTION_SECONDS_MAX)
        context = copy_context()
        context.run(PROGRAM.set, program)
        task = loop.create_task(plan.scenario(given), name="scenario", context=context)
        is_over = world.run_while(
            lambda: not task.done() and loop.failure is None, world.now + plan.seconds_max
        )
        if loop.failure is not None:
            raise loop.failure
        if not is_over:
            raise TimeoutError(f"the scenario took more than {plan.seconds_max:g} virtual seconds")
        task.result()

    def _end_trace(self, error: BaseException | None) -> None:
        trace = self.world.trace
        if trace is not None:
            trace.moments.end = self.world.now
            if error is not None:
                # A single line, because test runners add explanations of assertions on further
                # lines.
                arguments = f"{type(error).__name__}: {error}".splitlines()[0]
                trace.line(self.world.now, "!!!", arguments)
                if not isinstance(error, Violation):
                    error = Violation(type(error).__name__, f"{error}")
                trace.moments.violation = error
            self.world.trace = None

    def count_faults(self) -> dict[str, int]:
        """Return the faults that happened, by kind."""
        assert self.cluster is not None and self.given is not None
        return {
            "messages lost": self.cluster.network.dropped,
            "crashes": sum(each.crashes for each in self.cluster.machines.values()),
            **self.cluster.nemesis.counts,
            **self.given._counts,
        }
