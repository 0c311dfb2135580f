"""Changes of the membership on a node: proposing, applying, and what they hinder."""

from dataclasses import replace

import pytest

from kvorum.raft import membership
from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2
from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.errors import FatalError, ProposalDroppedError
from kvorum.raft.messages import ConfState, HardState, Message, MessageType
from kvorum.raft.wire import encode_conf_change
from tests.raft.cores import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    Net,
    StoredLog,
    add_learner,
    add_node,
    beat,
    entries,
    hup,
    lead,
    lines_of,
    new_core,
    next_entries,
    prop,
    read,
    remove_node,
    tick_through,
    transfer,
)


def proposal(change: ConfChange | ConfChangeV2, node: int = 1) -> Message:
    kind, data = encode_conf_change(change)
    return Message(MessageType.PROP, to=node, sender=node, entries=[Entry(kind, 0, 0, data)])


ADD_3 = ConfChange(ChangeType.ADD_NODE, 3)


def test_a_change_is_appended() -> None:
    core = lead(new_core(1, (1, 2)))
    core.log.committed = core.log.last_index()
    core.log.applied_to(core.log.last_index(), 0)
    last = core.log.last_index()
    core.step(proposal(ADD_3))
    assert (core.log.last_index(), core.pending_conf_index) == (last + 1, last + 1)


def test_a_second_change_is_replaced_by_an_empty_entry() -> None:
    core = lead(new_core(1, (1, 2)))
    core.log.committed = core.log.last_index()
    core.log.applied_to(core.log.last_index(), 0)
    core.step(proposal(ADD_3))
    pending, last = core.pending_conf_index, core.log.last_index()
    core.step(proposal(ADD_3))
    (entry,) = core.log.entries_from(last + 1, 1 << 20)
    assert (entry.type, entry.data) == (EntryType.NORMAL, b"")
    assert core.pending_conf_index == pending
    assert lines_of(core).lines[-1] == (
        "INFO 1 ignoring conf change transition:ConfChangeTransitionAuto "
        "changes:{type:ConfChangeAddNode node_id:3} at config voters=(1 2): "
        "possible unapplied conf change at index 2 (applied to 1)"
    )


@pytest.mark.parametrize(("stored", "pending"), [((), 0), ((1,), 1)])
def test_a_new_leader_waits_for_changes_of_its_log(stored: tuple[int, ...], pending: int) -> None:
    core = new_core(1, (1, 2))
    core.log.append(entries(1, *stored))
    lead(core)
    assert core.pending_conf_index == pending


def test_add_node() -> None:
    core = new_core(1)
    add_node(core, 2)
    assert core.tracker.config.voters() == [1, 2]


def test_add_learner() -> None:
    core = new_core(1)
    add_learner(core, 2)
    assert core.tracker.config.conf_state() == ConfState((1,), (2,))
    assert not core.is_learner
    add_node(core, 2)
    assert not core.tracker.progress[2].is_learner
    add_learner(core, 1)
    assert core.is_learner
    add_node(core, 1)
    assert not core.is_learner


def test_a_new_peer_counts_as_active() -> None:
    core = lead(new_core(1, check_quorum=True))
    for _ in range(9):
        core.tick()
    add_node(core, 2)
    core.tick()
    assert core.role == LEADER
    for _ in range(10):
        core.tick()
    assert core.role == FOLLOWER


@pytest.mark.parametrize("learner", [False, True])
def test_remove_node(learner: bool) -> None:
    core = new_core(1, (1,), learners=(2,)) if learner else new_core(1, (1, 2))
    remove_node(core, 2)
    assert core.tracker.config.conf_state() == ConfState((1,))
    with pytest.raises(FatalError, match="removed all voters"):
        remove_node(core, 1)


def test_a_cancelled_change_changes_nothing() -> None:
    core = new_core(1, (1, 2))
    cancelled = ConfChange(ChangeType.REMOVE_NODE, 0)
    assert membership.apply_conf_change(core, cancelled) == ConfState((1, 2))


@pytest.mark.parametrize(
    "change",
    [
        ConfChange(ChangeType.REMOVE_NODE, 2),
        ConfChangeV2(changes=(Change(ChangeType.REMOVE_NODE, 2),)),
    ],
)
def test_nobody_stands_with_a_change_to_apply(change: ConfChange | ConfChangeV2) -> None:
    net = Net.of(3)
    net.send(hup(1))
    assert net[1].role == LEADER
    net.send(proposal(change))
    tick_through(net[2])
    assert net[2].role == FOLLOWER
    assert lines_of(net[2]).lines[-1] == (
        "WARN 2 cannot campaign at term 1 since there are still pending configuration changes "
        "to apply"
    )
    net.send(transfer(2, at=1))
    assert (net[1].role, net[2].role) == (LEADER, FOLLOWER)
    for _ in range(10):
        net[1].tick()
    next_entries(net[2])
    net.send(transfer(2, at=1))
    assert (net[1].role, net[2].role) == (FOLLOWER, LEADER)
    next_entries(net[1])
    tick_through(net[1])
    assert net[1].role == CANDIDATE


def test_a_configuration_that_cannot_be_restored_stops_the_node() -> None:
    with pytest.raises(FatalError, match="unable to restore config"):
        new_core(1, (), learners=(1,))
    with pytest.raises(FatalError, match="ConfStates not equivalent after sorting"):
        new_core(1, (1, 2), learners=(2, 3))


# Telling peers that a change is committed.


def test_a_change_is_told_of_when_it_is_applied() -> None:
    net = Net.of(3, tell_changes_when_applied=True)
    net.send(hup(1))
    next_entries(net[1])
    removal = ConfChange(ChangeType.REMOVE_NODE, 3)
    net.send(proposal(removal))
    net.send(prop(1))
    net.send(beat(1))
    assert [net[node].log.committed for node in (1, 2, 3)] == [3, 1, 1]
    membership.apply_conf_change(net[1], removal)
    # Whom it removes is told, too, and of what was committed since.
    net.send(*net.filter(read(net[1])))
    assert [net[node].log.committed for node in (1, 2, 3)] == [3, 3, 3]
    assert 3 not in net[1].tracker.progress
    net.send(prop(1))
    assert [net[node].log.committed for node in (1, 2)] == [4, 4]


def test_a_change_that_was_dropped_holds_nothing_back() -> None:
    net = Net.of(3, tell_changes_when_applied=True, uncommitted_size_max=1)
    net.send(hup(1))
    next_entries(net[1])
    net.isolate(1)
    net.send(prop(1))  # not committed, and as much as may be
    with pytest.raises(ProposalDroppedError):
        net[1].step(proposal(ConfChange(ChangeType.REMOVE_NODE, 3)))
    net.recover()
    net.send(beat(1))
    net[1].uncommitted_size = 0  # as it is once that entry is applied
    net.send(prop(1))
    net.send(beat(1))
    assert [net[node].log.committed for node in (1, 2, 3)] == [3, 3, 3]


def test_a_new_leader_tells_of_the_changes_it_found_when_they_are_applied() -> None:
    net = Net.of(3, tell_changes_when_applied=True)
    net.send(hup(1))
    next_entries(net[1])
    net.isolate(1)
    found = [
        Entry(kind, 1, index, data)
        for index, (kind, data) in enumerate(
            [encode_conf_change(ADD_3), (EntryType.NORMAL, b""), encode_conf_change(ADD_3)], 2
        )
    ]
    for node in (2, 3):
        net[node].log.append(found)
    net.send(hup(2))
    assert net[2].role == LEADER
    assert [net[node].log.committed for node in (2, 3)] == [5, 1]
    membership.apply_conf_change(net[2], ADD_3)
    net.send(*net.filter(read(net[2])))
    assert net[3].log.committed == 3
    net.send(beat(2))
    assert net[3].log.committed == 3
    membership.apply_conf_change(net[2], ADD_3)
    net.send(*net.filter(read(net[2])))
    assert net[3].log.committed == 5


def test_a_change_is_told_of_at_once_unless_asked_otherwise() -> None:
    net = Net.of(3)
    net.send(hup(1))
    next_entries(net[1])
    net.send(proposal(ConfChange(ChangeType.REMOVE_NODE, 3)))
    assert [net[node].log.committed for node in (1, 2, 3)] == [2, 2, 2]


# Telling voters what is committed.

PROMOTE_2 = ConfChange(ChangeType.ADD_NODE, 2)
REMOVE_1 = ConfChange(ChangeType.REMOVE_NODE, 1)
REMOVE_4 = ConfChange(ChangeType.REMOVE_NODE, 4)


def holding(
    node: int,
    voters: tuple[int, ...],
    log: list[Entry],
    committed: int,
    *,
    learners: tuple[int, ...] = (),
    **options: bool,
) -> Raft:
    """Return a node that has applied what it knows to be committed."""
    storage = StoredLog(hard_state=HardState(log[-1].term, 0, committed))
    storage.append(log)
    return new_core(node, voters, learners=learners, storage=storage, applied=committed, **options)


def with_change(change: ConfChange) -> list[Entry]:
    kind, data = encode_conf_change(change)
    first, last = entries(1, 1, 1, 1)[::2]
    return [first, Entry(kind, 1, 2, data), last]


@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_learner_with_the_longer_log_hears_of_its_promotion(pre_vote: bool) -> None:
    log = with_change(PROMOTE_2)
    voter = holding(1, (1, 2), log[:2], 2, pre_vote=pre_vote, tell_commit_to_voters=True)
    learner = holding(2, (1,), log, 1, learners=(2,), pre_vote=pre_vote)
    net = Net([voter, learner])
    net.send(hup(1))
    assert net.roles() == [FOLLOWER, FOLLOWER]
    assert next_entries(learner) == [log[1]]
    membership.apply_conf_change(learner, PROMOTE_2)
    net.send(hup(2))
    assert net.roles() == [FOLLOWER, LEADER]


@pytest.mark.parametrize("behind", [0, 5])
@pytest.mark.parametrize("pre_vote", [False, True])
def test_who_is_left_hears_from_the_removed_leader_that_it_is_alone(
    pre_vote: bool, behind: int
) -> None:
    log = with_change(REMOVE_1)
    removed = holding(1, (2,), log, 2, pre_vote=pre_vote, tell_commit_to_voters=True)
    left = holding(2, (1, 2), log[:2], 1, pre_vote=pre_vote, tell_commit_to_voters=True)
    left.term += behind  # of an election that the removed one has not heard of
    net = Net([removed, left])
    net.send(hup(2))
    assert net.roles() == [FOLLOWER, FOLLOWER]
    assert next_entries(left) == [log[1]]
    membership.apply_conf_change(left, REMOVE_1)
    net.send(hup(2))
    assert net.roles() == [FOLLOWER, LEADER]


@pytest.mark.parametrize("tells", [False, True])
def test_a_refusal_tells_what_is_committed_of_the_log_asked_with(tells: bool) -> None:
    core = holding(2, (1, 2, 3), entries(1, 1, 1, 1), 3, tell_commit_to_voters=tells)
    core.step(PRE_VOTE_OF_1)
    (refusal,) = read(core)
    assert refusal.reject
    told = (refusal.log_term, refusal.index, refusal.commit)
    assert told == ((1, 2, 2) if tells else (0, 0, 0))


@pytest.mark.parametrize(
    ("refusal", "committed"),
    [
        ((1, 2, 2), 2),
        ((2, 2, 2), 1),  # of another entry
        ((1, 9, 9), 1),  # of one that is not here
        ((0, 0, 0), 1),  # of an etcd
    ],
)
def test_the_commit_of_a_refusal_counts_for_the_log_that_is_shared(
    refusal: tuple[int, int, int], committed: int
) -> None:
    core = holding(2, (1, 2, 3), entries(1, 1, 1, 1), 1, pre_vote=True)
    core.step(hup(2))
    log_term, index, commit = refusal
    core.step(
        Message(
            MessageType.PRE_VOTE_RESP,
            to=2,
            sender=1,
            term=1,
            log_term=log_term,
            index=index,
            commit=commit,
            reject=True,
        )
    )
    assert (core.role, core.log.committed) == (PRE_CANDIDATE, committed)


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_request_for_a_vote_tells_what_is_committed_if_asked_to(
    pre_vote: bool, tells: bool
) -> None:
    core = holding(1, (1, 2), entries(1, 1, 1), 1, pre_vote=pre_vote, tell_commit_to_voters=tells)
    core.step(hup(1))
    assert [message.commit for message in read(core)] == [1 if tells else 0]


PRE_VOTE_OF_1 = Message(MessageType.PRE_VOTE, to=2, sender=1, term=2, log_term=1, index=2, commit=2)


@pytest.mark.parametrize(
    ("log", "role"),
    [(with_change(REMOVE_4), FOLLOWER), (entries(1, 1, 1, 1), PRE_CANDIDATE)],
    ids=["a change", "no change"],
)
def test_who_stands_by_a_configuration_that_was_replaced_stands_no_more(
    log: list[Entry], role: int
) -> None:
    core = holding(2, (1, 2, 3, 4), log, 1, pre_vote=True)
    core.step(hup(2))
    assert core.role == PRE_CANDIDATE
    core.step(PRE_VOTE_OF_1)
    assert (core.role, core.term, core.log.committed) == (role, 1, 2)


@pytest.mark.parametrize(
    ("log_terms", "told", "committed"),
    [
        ((1, 1, 1), PRE_VOTE_OF_1, 2),
        ((1, 1, 1), replace(PRE_VOTE_OF_1, commit=9), 2),
        ((1, 2, 2), PRE_VOTE_OF_1, 1),
        ((1, 2, 2), replace(PRE_VOTE_OF_1, term=3, index=9, commit=9), 1),
        ((1, 1, 1), replace(PRE_VOTE_OF_1, commit=0), 1),
    ],
    ids=["its log is shared", "more than its log", "another entry", "unknown", "of an etcd"],
)
def test_the_commit_of_a_candidate_counts_for_the_log_that_is_shared(
    log_terms: tuple[int, ...], told: Message, committed: int
) -> None:
    core = holding(2, (1, 2, 3), entries(1, *log_terms), 1)
    core.step(told)
    assert core.log.committed == committed


def test_a_leader_commits_by_itself() -> None:
    core = lead(holding(2, (1, 2, 3), entries(1, 1, 1, 1), 1))
    core.step(replace(PRE_VOTE_OF_1, term=3))
    assert (core.role, core.log.committed) == (LEADER, 1)
