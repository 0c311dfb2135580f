"""Many seeds, on all cores. A failing one is run again with a trace, which must say the same."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from sim.run import Outcome, simulate
from sim.trace import Trace

SEEDS_PER_TASK = 5

Task = tuple[int, int]
"""A seed and how many members."""


def size_of(seed: int, sizes: Sequence[int]) -> int:
    """Return how many members a seed has: the sizes take turns."""
    return sizes[seed % len(sizes)]


def run_seeds(first_seed: int, count: int, sizes: Sequence[int]) -> Iterator[Outcome]:
    """Run seeds in order, on all cores; tell what each came to, in order."""
    tasks = [(seed, size_of(seed, sizes)) for seed in range(first_seed, first_seed + count)]
    workers = min(os.cpu_count() or 1, count)
    if workers < 2:
        yield from map(_run, tasks)
        return
    with ProcessPoolExecutor(workers) as executor:
        yield from executor.map(_run, tasks, chunksize=SEEDS_PER_TASK)


def _run(task: Task) -> Outcome:
    return simulate(*task)


def replay(seed: int, members: int) -> tuple[Outcome, Trace]:
    """Run a seed with its trace."""
    trace = Trace()
    return simulate(seed, members, trace), trace
