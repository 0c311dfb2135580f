"""The membership change engine over random configurations, and its errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.raft.changer import Changer, check_invariants, restore
from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2, Transition
from kvorum.raft.errors import ConfChangeError
from kvorum.raft.messages import ConfState
from kvorum.raft.progress import Progress
from kvorum.raft.tracker import Configuration, Tracker

kinds = st.sampled_from(
    [
        ChangeType.ADD_NODE,
        ChangeType.ADD_LEARNER_NODE,
        ChangeType.REMOVE_NODE,
        ChangeType.UPDATE_NODE,
    ]
)
# Node 1 always stays a voter, so that no sequence removes all of them.
first_changes = st.lists(
    st.builds(Change, st.sampled_from([0, 3]), st.integers(2, 6)), max_size=5
).map(lambda changes: [Change(ChangeType.ADD_NODE, 1), *changes])
changes = st.lists(st.builds(Change, kinds, st.integers(2, 10)), min_size=1, max_size=9)


def apply_simply(tracker: Tracker, given_changes: list[Change]) -> None:
    for change in given_changes:
        tracker.install(*Changer(tracker, 10).simple([change]))


def shown(tracker: Tracker) -> tuple[Configuration, list[str]]:
    return tracker.config, [f"{node}: {peer}" for node, peer in tracker.progress.items()]


@given(first_changes, changes, st.booleans())
def test_joint_and_simple_changes_lead_to_the_same(
    first: list[Change], then: list[Change], auto_leave: bool
) -> None:
    simple, joint = Tracker(10), Tracker(10)
    apply_simply(simple, first + then)
    apply_simply(joint, first)
    joint.install(*Changer(joint, 10).enter_joint(auto_leave, then))
    assert joint.config.is_joint()
    assert joint.config.auto_leave is auto_leave
    with pytest.raises(ConfChangeError, match="can't apply simple config change in joint"):
        Changer(joint, 10).simple(then)
    joint.install(*Changer(joint, 10).leave_joint())
    assert shown(joint) == shown(simple)


members = st.permutations(range(1, 10))


@st.composite
def conf_states(draw: st.DrawFn) -> ConfState:
    """Any valid configuration, its lists in any order."""
    pool = list(draw(members))
    voters = [pool.pop() for _ in range(draw(st.integers(1, 3)))]
    learners = [pool.pop() for _ in range(draw(st.integers(0, 2)))]
    if not draw(st.booleans()):
        return ConfState(tuple(voters), tuple(learners))
    learners_next = [pool.pop() for _ in range(draw(st.integers(0, 2)))]
    removed = [pool.pop() for _ in range(draw(st.integers(0, 2)))]
    kept = voters[: draw(st.integers(0, len(voters)))]
    outgoing = draw(st.permutations(kept + removed + learners_next))
    if not outgoing:
        return ConfState(tuple(voters), tuple(learners))
    return ConfState(
        tuple(voters), tuple(learners), tuple(outgoing), tuple(learners_next), draw(st.booleans())
    )


@given(conf_states(), st.integers(0, 20))
def test_restore(state: ConfState, last_index: int) -> None:
    tracker = Tracker(10)
    restore(tracker, last_index, state)
    assert tracker.config.conf_state() == state.normal()
    check_invariants(tracker.config, tracker.progress)
    for node, peer in tracker.progress.items():
        assert peer.is_learner is (node in state.learners)
        assert peer.next == max(last_index, 1)


@given(conf_states())
def test_leaving_a_joint_configuration(state: ConfState) -> None:
    tracker = Tracker(10)
    restore(tracker, 10, state)
    if not state.voters_outgoing:
        with pytest.raises(ConfChangeError, match="can't leave a non-joint config"):
            Changer(tracker, 10).leave_joint()
        return
    with pytest.raises(ConfChangeError, match="config is already joint"):
        Changer(tracker, 10).enter_joint(False, [])
    tracker.install(*Changer(tracker, 10).leave_joint())
    learners = sorted(state.learners + state.learners_next)
    assert tracker.config.conf_state() == ConfState(tuple(sorted(state.voters)), tuple(learners))
    assert sorted(tracker.progress) == sorted([*state.voters, *learners])


def test_a_failed_change_changes_nothing() -> None:
    tracker = Tracker(10)
    restore(tracker, 10, ConfState((1, 2), (3,)))
    before = shown(tracker)
    for attempt in ([Change(1, 1), Change(1, 2)], [Change(0, 4), Change(0, 5)], [Change(9, 1)]):
        with pytest.raises(ConfChangeError):
            Changer(tracker, 10).simple(attempt)
        assert shown(tracker) == before


def peer(*, learner: bool = False) -> Progress:
    made = Tracker(1).new_progress(0, 1)
    made.is_learner = learner
    return made


def nodes(*ids: int) -> frozenset[int]:
    return frozenset(ids)


@pytest.mark.parametrize(
    ("config", "progress", "text"),
    [
        (Configuration(nodes(1)), {}, "no progress for 1"),
        (
            Configuration(nodes(1), nodes(1), learners_next=nodes(2)),
            {1: peer(), 2: peer()},
            "2 is in LearnersNext, but not Voters[1]",
        ),
        (
            Configuration(nodes(1), nodes(1, 2), learners_next=nodes(2)),
            {1: peer(), 2: peer(learner=True)},
            "2 is in LearnersNext, but is already marked as learner",
        ),
        (
            Configuration(nodes(1), nodes(2), nodes(2)),
            {1: peer(), 2: peer(learner=True)},
            "2 is in Learners and Voters[1]",
        ),
        (
            Configuration(nodes(1), nodes(2), nodes(1)),
            {1: peer(learner=True), 2: peer()},
            "1 is in Learners and Voters[0]",
        ),
        (
            Configuration(nodes(1), learners=nodes(2)),
            {1: peer(), 2: peer()},
            "2 is in Learners, but is not marked as learner",
        ),
        (Configuration(nodes(1), auto_leave=True), {1: peer()}, "AutoLeave must be false"),
    ],
)
def test_invariants(config: Configuration, progress: dict[int, Progress], text: str) -> None:
    with pytest.raises(ConfChangeError) as raised:
        check_invariants(config, progress)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("change", "leaves", "enters", "auto"),
    [
        (ConfChangeV2(), True, False, True),
        (ConfChangeV2(context=b"manual"), True, False, True),
        (ConfChangeV2(Transition.JOINT_IMPLICIT), False, True, True),
        (ConfChangeV2(Transition.JOINT_EXPLICIT), False, True, False),
        (ConfChangeV2(changes=(Change(0, 1),)), False, False, True),
        (ConfChangeV2(changes=(Change(0, 1), Change(0, 2))), False, True, True),
        (ConfChange(ChangeType.ADD_NODE, 1).as_v2(), False, False, True),
    ],
)
def test_which_procedure(change: ConfChangeV2, leaves: bool, enters: bool, auto: bool) -> None:
    assert (change.leaves_joint(), change.enters_joint(), change.auto_leave()) == (
        leaves,
        enters,
        auto,
    )


def test_equivalent_states() -> None:
    assert ConfState((1, 2), (3, 4)).normal() == ConfState((2, 1), (4, 3)).normal()
    assert ConfState((1,)).normal() != ConfState((2,)).normal()
    assert ConfState((1,), auto_leave=True).normal() != ConfState((1,)).normal()
