"""The shrinker: what is left fails in the same way, and is less than there was."""

import pytest

from kvorum.sim.plan import draw_plan
from kvorum.sim.planted.search import find
from kvorum.sim.planted.storage import index_ahead_of_effects
from kvorum.sim.run import simulate_plan
from kvorum.sim.shrink import describe, requests_of, shrink

RUNS = 25


@pytest.mark.sources
@pytest.mark.long
def test_a_failing_seed_gets_smaller_and_fails_as_before() -> None:
    found = find(index_ahead_of_effects)
    assert found is not None
    plan = draw_plan(found.seed, found.members)
    with index_ahead_of_effects():
        shrunk = shrink(plan, RUNS)
        assert shrunk is not None
        assert simulate_plan(shrunk.plan).guarantee == found.guarantee == shrunk.guarantee
    assert shrunk.runs <= RUNS
    assert len(requests_of(shrunk.plan.workload)) < len(requests_of(plan.workload))
    assert "requests" in "\n".join(describe(shrunk.plan))


def test_a_seed_that_violates_nothing_is_left_alone() -> None:
    assert shrink(draw_plan(1, 1)) is None
