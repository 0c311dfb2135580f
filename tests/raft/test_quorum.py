"""Quorum arithmetic against a naive second implementation, and its tables."""

from hypothesis import given
from hypothesis import strategies as st

from kvorum.raft.entries import NO_LIMIT
from kvorum.raft.progress import Progress
from kvorum.raft.quorum import VoteResult, committed_index, joint_vote_result, vote_result
from kvorum.raft.tracker import Configuration, Tracker
from tests.raft.naive import naive_committed
from tests.raft.quorum_driver import table

ids = st.integers(1, 9)
voters = st.frozensets(ids, max_size=9)
indexes = st.dictionaries(ids, st.integers(1, 20))
votes = st.dictionaries(ids, st.booleans())


def tracker_of(
    incoming: frozenset[int], outgoing: frozenset[int], match: dict[int, int]
) -> Tracker:
    tracker = Tracker(1)
    progress: dict[int, Progress] = {}
    for node in incoming | outgoing:
        progress[node] = tracker.new_progress(match.get(node, 0), match.get(node, 0) + 1)
    tracker.install(Configuration(incoming, outgoing), progress)
    return tracker


@given(voters, voters, indexes)
def test_committed_index(
    incoming: frozenset[int], outgoing: frozenset[int], match: dict[int, int]
) -> None:
    naive = naive_committed(sorted(incoming), match)
    assert committed_index([match.get(node, 0) for node in incoming]) == naive
    joint = min(naive, naive_committed(sorted(outgoing), match))
    tracker = tracker_of(incoming, outgoing, match)
    assert tracker.committed() == joint
    assert tracker.quorum_index(match) == joint


def naive_vote(ids: frozenset[int], cast: dict[int, bool]) -> VoteResult:
    """Try every way in which the missing votes could come."""
    missing = len([node for node in ids if node not in cast])
    granted = len([node for node in ids if cast.get(node)])
    outcomes = {granted + more > len(ids) / 2 for more in range(missing + 1)} if ids else {True}
    if outcomes == {True}:
        return VoteResult.WON
    return VoteResult.LOST if outcomes == {False} else VoteResult.PENDING


@given(voters, voters, votes)
def test_vote_result(
    incoming: frozenset[int], outgoing: frozenset[int], cast: dict[int, bool]
) -> None:
    first, second = naive_vote(incoming, cast), naive_vote(outgoing, cast)
    assert vote_result([cast.get(node) for node in incoming]) is first
    if VoteResult.LOST in (first, second):
        expected = VoteResult.LOST
    elif VoteResult.PENDING in (first, second):
        expected = VoteResult.PENDING
    else:
        expected = VoteResult.WON
    assert joint_vote_result(first, second) is expected
    tracker = tracker_of(incoming, outgoing, {})
    for node, vote in cast.items():
        tracker.record_vote(node, vote)
    members = incoming | outgoing
    counted = [vote for node, vote in cast.items() if node in members]
    assert tracker.tally_votes() == (counted.count(True), counted.count(False), expected)


@given(voters, voters, st.frozensets(ids))
def test_quorum_active(
    incoming: frozenset[int], outgoing: frozenset[int], active: frozenset[int]
) -> None:
    tracker = tracker_of(incoming, outgoing, {})
    for node, peer in tracker.progress.items():
        peer.recent_active = node in active
    heard = all(len(half & active) * 2 > len(half) for half in (incoming, outgoing) if half)
    assert tracker.quorum_active() is heard


@given(voters, indexes, st.data())
def test_an_acknowledgement_never_lowers_the_commit(
    members: frozenset[int], match: dict[int, int], data: st.DataObject
) -> None:
    before = committed_index([match.get(node, 0) for node in members])
    if members:
        node = data.draw(st.sampled_from(sorted(members)))
        match[node] = match.get(node, 0) + data.draw(st.integers(0, 5))
    assert committed_index([match.get(node, 0) for node in members]) >= before


def test_nobody_agrees_to_everything() -> None:
    assert committed_index([]) == NO_LIMIT
    assert vote_result([]) is VoteResult.WON


def test_table() -> None:
    assert table([1, 2, 3], {1: 101, 2: 102, 3: 103}) == (
        "       idx\n>      101    (id=1)\nx>     102    (id=2)\nxx>    103    (id=3)\n"
    )
    assert table([1, 2, 3], {1: 100, 2: 100, 3: 100}) == (
        "       idx\n>      100    (id=1)\n>      100    (id=2)\n>      100    (id=3)\n"
    )
    assert table([1, 2, 3], {1: 100, 2: 102, 3: 102}) == (
        "       idx\n>      100    (id=1)\nx>     102    (id=2)\nx>     102    (id=3)\n"
    )
    assert table([1, 2, 3], {1: 101, 3: 103}) == (
        "       idx\nx>     101    (id=1)\n?        0    (id=2)\nxx>    103    (id=3)\n"
    )
