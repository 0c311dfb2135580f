"""Search for a planted bug: simulate seed after seed until a guarantee is violated."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from kvorum.sim.campaign import size_of
from kvorum.sim.run import Outcome, simulate

SEEDS_MAX = 400

Planted = Callable[[], AbstractContextManager[object]]


def find(planted: Planted, first_seed: int = 0, seeds: int = SEEDS_MAX) -> Outcome | None:
    """Return the first run that detects a bug; None if no run does."""
    with planted():
        for seed in range(first_seed, first_seed + seeds):
            outcome = simulate(seed, size_of(seed))
            if outcome.guarantee:
                return outcome
    return None
