"""The simulator finds what it is built to find: each planted bug within 200 seeds.

The search begins near a seed that is known to find the bug, so that the test is quick; where the
code has changed since, it goes on.
"""

import pytest

from tests.sim.planted import PLANTED, SEEDS_MAX, find

# The member itself notices that its log and its state do not fit.
STOPPED = "the member serves"
# A seed to begin with, and the guarantees whose violation shows the bug.
KNOWN = {
    "acknowledge_before_fsync": (0, {"one history", "acknowledged is durable", STOPPED}),
    "forget_the_vote": (55, {"one leader per term", "one history"}),
    "skip_the_read_index_quorum": (84, {"revisions and terms never go back", "linearizable"}),
    "apply_twice_after_restart": (0, {"one history", "applied once", STOPPED}),
    "index_ahead_of_effects": (0, {"one history", "acknowledged is durable"}),
    "lose_an_event_at_catch_up": (0, {"watch"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    first_seed, guarantees = KNOWN[name]
    outcome = find(PLANTED[name], first_seed, SEEDS_MAX)
    assert outcome is not None, f"not found within {SEEDS_MAX} seeds"
    assert outcome.guarantee in guarantees, outcome
