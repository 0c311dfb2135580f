"""Runs many seeds on all cores; a replay of a failing seed must give the same violation."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from kvorum.sim.coverage_points import EXPECTED
from kvorum.sim.plan import draw_plan
from kvorum.sim.run import Outcome, simulate
from kvorum.sim.trace import Trace

SEEDS_PER_TASK = 5
SIZES = (3, 1, 3, 5)
"""The sizes of clusters, which the seeds take in turn."""

Task = tuple[int, int]
"""A seed and the number of members."""


def size_of(seed: int, sizes: Sequence[int] = SIZES) -> int:
    """Return the number of members in a seed's cluster."""
    return sizes[seed % len(sizes)]


def run_seeds(
    first_seed: int, count: int, sizes: Sequence[int] = SIZES, *, proxies: bool = False
) -> Iterator[Outcome]:
    """Run `count` seeds on all cores; yield their outcomes in order.

    With `proxies`, seeds without proxies are left out, and do not count.
    """
    seeds = (
        seed
        for seed in itertools.count(first_seed)
        if not proxies or draw_plan(seed, size_of(seed, sizes)).tier is not None
    )
    tasks = [(seed, size_of(seed, sizes)) for seed in itertools.islice(seeds, count)]
    workers = min(os.cpu_count() or 1, count)
    if workers < 2:
        yield from map(_run, tasks)
        return
    with ProcessPoolExecutor(workers) as executor:
        yield from executor.map(_run, tasks, chunksize=SEEDS_PER_TASK)


def _run(task: Task) -> Outcome:
    return simulate(*task)


def replay(seed: int, members: int) -> tuple[Outcome, Trace]:
    """Run a seed, and record its trace."""
    trace = Trace()
    return simulate(seed, members, trace), trace


class Summary:
    """The combined outcomes of many runs."""

    __slots__ = ("counts", "coverage", "failed", "faults", "seconds", "seeds")

    def __init__(self) -> None:
        self.seeds = 0
        self.seconds = 0.0
        self.failed: list[Outcome] = []
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.coverage: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a run."""
        self.seeds += 1
        self.seconds += outcome.seconds
        self.counts.update(outcome.counts)
        self.faults.update(outcome.faults)
        self.coverage.update(outcome.coverage)
        if outcome.guarantee:
            self.failed.append(outcome)

    def list_missed(self) -> list[str]:
        """Return the listed coverage points that no run has reached."""
        return [name for name in EXPECTED if not self.coverage[name]]

    def lines(self, first_seed: int, elapsed: float) -> list[str]:
        """Return the report's lines; the last one is the summary."""
        told = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        reached = ", ".join(f"{name} {self.coverage[name]}" for name in sorted(self.coverage))
        faults = ", ".join(f"{count} {name}" for name, count in self.faults.items() if count)
        return [
            *(
                f"failed: seed {each.seed}, {each.members} members: {each.guarantee}"
                for each in self.failed
            ),
            f"happened: {told}",
            f"coverage points reached: {reached or 'none'}",
            f"coverage points never reached: {', '.join(self.list_missed()) or 'none'}",
            f"{self.seeds} seeds from {first_seed} in {elapsed:.1f} s, {self.seconds / 3600:.2f} "
            f"virtual hours; faults: {faults or 'none'}; checked: {self.counts['requests']} "
            f"operations, {self.counts['watch events']} watch events; {len(self.failed)} "
            f"violations",
        ]
