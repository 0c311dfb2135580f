"""A hundred seeds of clusters under faults, and what earlier ones have found."""

from collections import Counter

import pytest

from sim.campaign import run_seeds
from sim.run import Outcome, simulate

SEEDS = 100
SIZES = (3, 1, 3, 5)

# Seeds, members, and the bug they found when the code was as it was then.
FOUND = {
    (1, 1): "the backend said when it is due, and then was not: the loop was woken for nothing",
    (92, 1): "the power failed before the first batch was whole: the cluster never began",
}


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(run_seeds(0, SEEDS, SIZES))


def test_a_hundred_seeds_hold_every_guarantee(outcomes: list[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.guarantee]
    assert [(each.seed, each.members, each.guarantee, each.violation) for each in failed] == []


def test_the_runs_do_what_they_are_for(outcomes: list[Outcome]) -> None:
    """Faults happen, requests are answered, snapshots travel: otherwise nothing is tested."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    assert counts["answers"] > 0.7 * counts["requests"] > 3000
    assert counts["crashes"] > 200 and counts["partitions"] > 40 and counts["pauses"] > 40
    assert counts["terms"] > 200 and counts["snapshots"] > 3 and counts["watch events"] > 2000


@pytest.mark.parametrize(("seed", "members"), FOUND)
def test_a_seed_that_found_a_bug_finds_none(seed: int, members: int) -> None:
    outcome = simulate(seed, members)
    assert (outcome.guarantee, outcome.violation) == ("", "")
