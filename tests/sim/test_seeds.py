"""A hundred seeds of clusters under faults, and every seed that once found a bug."""

import pytest

from sim.campaign import run_seeds
from sim.run import simulate

SEEDS = 100
SIZES = (3, 1, 3, 5)

# The bug each of them found.
FOUND = {
    (1, 1): "the backend said when it is due, and then was not: the loop was woken for nothing",
    (92, 1): "the power failed before the first batch was whole: the cluster never began",
}


def test_a_hundred_seeds_hold_every_guarantee() -> None:
    failed = [outcome for outcome in run_seeds(0, SEEDS, SIZES) if outcome.guarantee]
    assert [(each.seed, each.members, each.guarantee, each.violation) for each in failed] == []


@pytest.mark.parametrize(("seed", "members"), FOUND)
def test_a_seed_that_found_a_bug_finds_none(seed: int, members: int) -> None:
    outcome = simulate(seed, members)
    assert (outcome.guarantee, outcome.violation) == ("", "")


def test_a_run_does_what_it_is_for() -> None:
    """Faults happen, requests are answered, snapshots travel: otherwise nothing is tested."""
    counts: dict[str, int] = {}
    for outcome in run_seeds(0, 24, SIZES):
        for name, count in outcome.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts["answers"] > 0.7 * counts["requests"] > 700
    assert counts["crashes"] > 50 and counts["partitions"] > 10 and counts["pauses"] > 5
    assert counts["terms"] > 50 and counts["snapshots"] > 0 and counts["watch events"] > 500
