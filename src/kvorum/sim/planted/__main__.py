"""Search for every planted bug in three ranges of seeds, on all cores, and print a table.

`python -m kvorum.sim.planted [name ...]`; the exit code is 1 if a search of 400 seeds misses a bug.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor

from kvorum.sim.planted import PLANTED
from kvorum.sim.planted.search import SEEDS_MAX, find

FIRST_SEEDS = (0, 10_000, 20_000)


def _find(name: str, first_seed: int) -> tuple[int, str] | None:
    """Return how many seeds the search took and which guarantee was violated; None if it failed."""
    outcome = find(PLANTED[name], first_seed)
    return None if outcome is None else (outcome.seed - first_seed + 1, outcome.guarantee)


def main() -> int:
    """Search for the named bugs, or for all; return the exit code."""
    names = sys.argv[1:] or list(PLANTED)
    missed = 0
    print(f"| bug | seeds from {', '.join(map(str, FIRST_SEEDS))} | noticed as |")
    print("| --- | --- | --- |")
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        searches = {
            name: [executor.submit(_find, name, first) for first in FIRST_SEEDS] for name in names
        }
        for name, found in searches.items():
            results = [each.result() for each in found]
            missed += None in results
            seeds = ", ".join("-" if each is None else str(each[0]) for each in results)
            guarantees = dict.fromkeys(each[1] for each in results if each is not None)
            print(f"| {name.replace('_', ' ')} | {seeds} | {'; '.join(guarantees)} |", flush=True)
    print(f"{len(names) - missed} of {len(names)} found within {SEEDS_MAX} seeds of every range")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
