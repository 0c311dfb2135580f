"""The simulator finds what it is built to find: a part of the planted bugs, in a few seeds each.

`make sim-planted` looks for all of them from three ranges of seeds. The search here begins near a
seed that is known to find the bug, so that the test is quick; where the code has changed since,
it goes on.
"""

import pytest

from kvorum.sim.backups.checks import KEPT, NEWEST, STATES, WHOLE
from kvorum.sim.backups.fleet import BACKED_UP
from kvorum.sim.library.checks import HELD
from kvorum.sim.library.leasers import CURRENT
from kvorum.sim.observers import GUARANTEE as OBSERVED
from kvorum.sim.planted import PLANTED
from kvorum.sim.planted.search import SEEDS_MAX, find

# The member itself notices that its log and its state do not fit.
STOPPED = "the member serves"
# Or it refuses for ever what a leader goes on to send.
STORM = "members get somewhere"
# Promises leave before others that were made earlier.
ORDER = "messages leave in the order in which raft made them"
# Or a new member never catches up, as what it is sent is refused.
CHANGED = {"the cluster can be changed in bounded time"}
# Entries that were committed are gone.
LOG = {"one log", "leaders have what is committed"}
# Somebody did what was not permitted, or was refused what was.
PERMITTED = {
    "what is permitted is applied, and nothing else",
    "answers are permitted, refusals are explained",
    "one history",
}
# A seed to begin with, and the guarantees whose violation shows the bug.
KNOWN = {
    "acknowledge_before_fsync": (
        0,
        {"one history", "acknowledged is durable", "one leader per term", ORDER, STOPPED, *LOG},
    ),
    "lose_the_tail_of_the_log": (0, {"one history", "acknowledged is durable", STOPPED, *LOG}),
    # A change of the members may be among what is applied twice.
    "apply_twice_after_restart": (
        3,
        {"one history", "applied once", "one configuration", STOPPED, STORM, *CHANGED},
    ),
    "index_ahead_of_effects": (0, {"one history", "acknowledged is durable"}),
    "lose_an_event_at_catch_up": (0, {"watch: reliable", "watch: resumable"}),
    # A watcher that goes back to what it had may want what is compacted.
    "deliver_an_event_twice": (
        0,
        {"watch: unique", "watch: filter", "watch: bookmarkable", "watch: reliable"},
    ),
    "miss_the_last_compare": (10_000, {"answers are explained by the history", *PERMITTED}),
    "apply_what_was_asked_as_of_an_old_revision": (13, PERMITTED),
    "leave_nested_transactions_unchecked": (20, PERMITTED),
    "take_the_short_way_past_permissions": (9, PERMITTED),
    "go_on_with_calls_in_json_whose_client_left": (
        11,
        {"every call in JSON is answered or ended", "memory is bounded"},
    ),
    # Whoever gets the line of another stream gets what it had, did not want, or cannot know.
    "send_the_line_of_another_message": (
        11,
        {"watch: unique", "watch: filter", "watch: reliable", "watch: ordered", OBSERVED},
    ),
    "resume_a_revision_too_late": (19, {"watch: reliable", "watch: resumable"}),
    "tell_each_fragment_by_itself": (64, {"watch: reliable"}),
    # A lease ends while somebody is sure of it, and then others hold what it held.
    "count_a_renewal_from_its_answer": (
        10_000,
        {"what a client takes for held is held", "locks and elections are held once"},
    ),
    # One that wakes up relies on what it held, and reads what it owned; or it is told too late.
    "ask_a_clock_that_a_suspend_stops": (
        18,
        {CURRENT, HELD, "leases do not end early", "locks and elections are held once"},
    ),
    "rely_on_a_lease_until_a_timer_ends_it": (
        18,
        {CURRENT, HELD, "locks and elections are held once"},
    ),
    "make_a_write_again": (6, {"applied once", "refused is not applied"}),
    "answer_from_the_cache_after_a_put": (5, {"proxies show their clients' writes"}),
    "lose_an_event_where_watches_are_shared": (5, {"watch: reliable", "watch: resumable"}),
    "renew_leases_of_clients_that_left": (5, {"leases end in bounded time"}),
    "order_histories_by_the_wall_clock": (
        0,
        {BACKED_UP, KEPT, NEWEST},
    ),
    "go_on_at_the_newest_snapshot": (31, {WHOLE, STATES, NEWEST, BACKED_UP}),
    "take_any_store_for_the_recorded_one": (0, {STATES, NEWEST}),
    "run_log_jobs_after_a_failed_one": (0, {"the log ends at a failure"}),
    "send_in_reverse_order": (0, {ORDER}),
    "apply_a_change_on_top_of_a_snapshot": (0, {"one configuration"}),
    "tell_progress_too_soon": (
        20_000,
        {"watch: bookmarkable", "watch: reliable", "watch: resumable"},
    ),
}

# Those that nearly the first seed finds, whatever changes.
QUICK = {
    "acknowledge_before_fsync",
    "lose_the_tail_of_the_log",
    "apply_twice_after_restart",
    "index_ahead_of_effects",
    "deliver_an_event_twice",
    "take_the_short_way_past_permissions",
    "go_on_with_calls_in_json_whose_client_left",
    "lose_an_event_where_watches_are_shared",
    "renew_leases_of_clients_that_left",
    "send_in_reverse_order",
}


def test_there_are_at_least_fifteen() -> None:
    assert len(PLANTED) >= 15 and set(KNOWN) <= set(PLANTED) and set(KNOWN) >= QUICK


@pytest.mark.sources
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in KNOWN],
)
def test_a_planted_bug_is_found(name: str) -> None:
    first_seed, guarantees = KNOWN[name]
    outcome = find(PLANTED[name], first_seed, SEEDS_MAX)
    assert outcome is not None, f"not found within {SEEDS_MAX} seeds"
    assert outcome.guarantee in guarantees, outcome
