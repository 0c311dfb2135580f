"""Eighty seeds of clusters under faults, and what earlier ones have found."""

import pytest

from kvorum.sim.campaign import Summary, run_seeds
from kvorum.sim.run import simulate

SEEDS = 80
# The first of them waits for all runs, on a busy machine for more than five minutes.
waits_for_all_seeds = pytest.mark.timeout(900)

# Seeds, members, and the bug they found when the code was as it was then.
FOUND = {
    (1, 1): "the backend said when it is due, and then was not: the loop was woken for nothing",
    (75, 5): "the clock stood still over a restart: ids came again, entries were mixed up",
    (92, 1): "the power failed before the first batch was whole: the cluster never began",
    (2117, 1): "none in the members: a window of messages out of order was taken for a storm",
    (100055, 5): "none in the members: a lease that was granted late was said to end late",
    (100934, 3): "none in the members: a restored disk got back what was replaced since",
    (100960, 3): "none in the members: an operator took a change for lost that was in a log",
    (101290, 3): "the name of the applied index was damaged: a start applied everything again",
    (148, 3): "tokens outlived the end of authentication within a snapshot",
    (286, 3): "a token was refused by a member that lacked only the login",
    (344, 3): "a change of the membership that was dropped kept commit indexes from followers",
    (356, 3): "a start had more of its log in memory than it may keep, and refused everything",
    (10005, 1): "a call in JSON whose deadline passed was answered after the drain",
    (10010, 3): "deadlines of calls in JSON were kept for hours after their calls",
    (20162, 3): "a read at a removed member waited for an index that never came",
    (60066, 3): "a received snapshot was purged before it was installed",
    (400061, 1): "none in the members: a leader of two that removed itself was gone before it told",
    (400414, 3): "none in the members: what came to a paused process came out of order",
    (500359, 5): "a leader that had been removed was asked to promote a learner, and stopped",
    (600381, 1): "who asked for a snapshot while one was made for another never got one",
    (700277, 1): "a voter that was added before the cluster decided on its version never got in",
    (820195, 5): "none in the members: elections in peace gave leases their time again",
    (821421, 1): "none in the members: an operator asked someone who knew no members",
    (822465, 1): "the last of two members forgot that the other had been removed",
    (826286, 3): "none in the members: an operator asked for flags when nobody ran",
    (910621, 1): "a lease was renewed as of the last turn, and ended before its time",
    (1001426, 3): "none in the members: one that got a snapshot crashed in peace, and stayed down",
    (1003710, 3): "a removed leader was refused at once, and the last of two needed its vote",
    (1004576, 3): "a leader that was removed before it was published ended at once",
    (1006583, 5): "a start after one that was killed left the member's directory not durable",
    (4002437, 1): "a promoted learner had more than the voter, and did not know that it may stand",
    (12000104, 3): "none in the members: two that were removed tried to tell their names for ever",
    (12000806, 3): "a defragmentation was given up with its call, and all later ones waited",
    (12001261, 1): "none in the members: all were damaged, so that their members were not known",
    (13000959, 5): "a hash that waited for a compaction waited for all later ones, too",
    (14000242, 3): "none in the members: their questions to each other were taken for clients'",
    (15000333, 1): "a leader did not hand over to a voter that was added since the last tick",
    (15000640, 3): "a defragmentation begun before a snapshot was installed removed its database",
    (16001291, 5): "a start after one that was killed left the name of the database not durable",
    (10352, 3): "a snapshot was removed again because older ones could not be",
    (10923, 5): "a store that went back was backed up without a log as if it had not",
    (15000925, 1): "a client asked for the members again and again while nobody answered",
}


@pytest.fixture(scope="module")
def summary() -> Summary:
    summary = Summary()
    for outcome in run_seeds(0, SEEDS):
        summary.add(outcome)
    return summary


@waits_for_all_seeds
def test_every_seed_holds_every_guarantee(summary: Summary) -> None:
    failed = [(each.seed, each.members, each.guarantee) for each in summary.failed]
    assert failed == [], summary.failed[0].violation
    assert summary.seeds == SEEDS


@waits_for_all_seeds
def test_every_history_was_decided(summary: Summary) -> None:
    assert summary.counts["undecided"] == 0


@waits_for_all_seeds
def test_the_runs_do_what_they_are_for(summary: Summary) -> None:
    """Faults happen, requests are answered, snapshots travel: otherwise nothing is tested."""
    counts, faults = summary.counts, summary.faults
    assert counts["answers"] > 0.7 * counts["requests"] > 3500
    assert faults["crashes"] > 150 and faults["partitions"] > 10 and faults["pauses"] > 40
    assert counts["terms"] > 150 and counts["snapshots"] > 5 and counts["watch events"] > 1500
    assert counts["holds"] > 50 and counts["calls in JSON"] > 1500
    assert counts["claims"] > 25 and counts["connections of the library lost"] > 150
    assert counts["calls through proxies"] > 1000 and counts["reads from caches"] > 20
    assert counts["events shared"] > 50 and counts["connections of proxies lost"] > 100
    assert counts["backups: snapshots"] > 20 and counts["backups: points restored"] > 50
    assert counts["backups: clusters forked"] and faults["backups killed"] > 15


@waits_for_all_seeds
def test_every_listed_mark_is_reached(summary: Summary) -> None:
    assert summary.list_missed() == []


@pytest.mark.parametrize(("seed", "members"), FOUND)
def test_a_seed_that_found_a_bug_finds_none(seed: int, members: int) -> None:
    outcome = simulate(seed, members)
    assert (outcome.guarantee, outcome.violation) == ("", "")
