"""One rule, one test: what no table covers, and what safety hangs on.

The mutations of `mutate.py` break these rules one at a time; every one must be noticed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.raft import membership
from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2, Transition
from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.errors import FatalError, ProposalDroppedError
from kvorum.raft.messages import (
    APPEND_THREAD,
    ConfState,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.progress import ProgressState
from kvorum.raft.replication import broadcast_append, maybe_send_append
from kvorum.raft.wire import encode_conf_change
from tests.raft.cores import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    Net,
    StoredLog,
    add_node,
    beat,
    entries,
    flush,
    hup,
    lead,
    lines_of,
    new_core,
    new_raw_node,
    propose,
    read,
    remove_node,
    replicating_leader,
    transfer,
)

APP, APP_RESP = MessageType.APP, MessageType.APP_RESP
VOTE, VOTE_RESP = MessageType.VOTE, MessageType.VOTE_RESP
PRE_VOTE, PRE_VOTE_RESP = MessageType.PRE_VOTE, MessageType.PRE_VOTE_RESP
HEARTBEAT, HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP
THREE = (1, 2, 3)


# Elections.


def test_the_own_vote_counts_only_once_it_is_durable() -> None:
    core = new_core(1)
    core.step(hup(1))
    assert core.role == CANDIDATE
    flush(core)
    assert core.role == LEADER


def test_no_vote_in_a_term_whose_leader_is_known() -> None:
    core = new_core(1, THREE)
    core.become_follower(1, 2)
    assert core.vote == 0
    core.step(Message(VOTE, to=1, sender=3, term=1, log_term=9, index=9))
    (answer,) = read(core)
    assert answer.reject
    assert core.vote == 0


def test_a_granted_vote_restarts_the_election_timer() -> None:
    core = new_core(1, THREE)
    for granted in (True, False):
        core.election_elapsed = 5
        log_term = 1 if granted else 0
        core.log.unstable.entries = [] if granted else entries(1, 1)
        core.step(Message(VOTE, to=1, sender=2, term=core.term + 1, log_term=log_term, index=1))
        assert read(core)[0].reject is not granted
        core.election_elapsed = 5
    core.log.unstable.entries = []
    core.vote = 0
    core.step(Message(VOTE, to=1, sender=2, term=core.term, log_term=1, index=1))
    assert core.election_elapsed == 0


def test_a_granted_pre_vote_leaves_timer_and_vote_alone() -> None:
    core = new_core(1, THREE)
    core.election_elapsed = 5
    core.step(Message(PRE_VOTE, to=1, sender=2, term=1, log_term=1, index=1))
    assert (core.election_elapsed, core.vote, core.term) == (5, 0, 0)


@pytest.mark.parametrize("first", [True, False])
def test_the_first_vote_of_a_peer_counts(first: bool) -> None:
    core = new_core(1, (1, 2, 3, 4, 5))
    core.step(hup(1))
    flush(core)
    for granted in (first, not first):
        core.step(Message(VOTE_RESP, to=1, sender=2, term=1, reject=not granted))
    expected = (2, 0) if first else (1, 1)
    assert core.tracker.tally_votes()[:2] == expected


def test_a_late_vote_is_no_pre_vote() -> None:
    core = new_core(1, THREE, pre_vote=True)
    core.become_candidate()
    core.step(hup(1))
    assert (core.role, core.term) == (PRE_CANDIDATE, 1)
    core.step(Message(VOTE_RESP, to=1, sender=2, term=1))
    flush(core)
    assert (core.role, core.tracker.votes) == (PRE_CANDIDATE, {1: True})


def test_votes_of_learners_are_not_counted() -> None:
    core = new_core(1, (1, 2, 3), learners=(4,))
    core.step(hup(1))
    flush(core)
    core.step(Message(VOTE_RESP, to=1, sender=4, term=1))
    assert (core.role, core.tracker.tally_votes()[0]) == (CANDIDATE, 1)


def test_a_proposal_on_a_candidate_is_dropped() -> None:
    core = new_core(1, THREE)
    for become in (core.become_candidate, core.become_pre_candidate):
        become()
        with pytest.raises(ProposalDroppedError):
            propose(core)
        assert lines_of(core).lines[-1] == "INFO 1 no leader at term 1; dropping proposal"


def test_a_lost_election_makes_a_follower_of_the_same_term() -> None:
    core = new_core(1, THREE)
    core.step(hup(1))
    flush(core)
    for node in (2, 3):
        core.step(Message(VOTE_RESP, to=1, sender=node, term=1, reject=True))
    assert (core.role, core.term, core.lead) == (FOLLOWER, 1, 0)


@pytest.mark.parametrize(
    ("check_quorum", "leader", "elapsed", "context", "ignored"),
    [
        (True, 2, 9, b"", True),
        (True, 2, 10, b"", False),
        (True, 0, 0, b"", False),
        (False, 2, 0, b"", False),
        (True, 2, 0, b"CampaignTransfer", False),
    ],
)
@pytest.mark.parametrize("kind", [VOTE, PRE_VOTE])
def test_lease(
    check_quorum: bool, leader: int, elapsed: int, context: bytes, ignored: bool, kind: int
) -> None:
    core = new_core(1, THREE, check_quorum=check_quorum)
    core.become_follower(1, leader)
    core.election_elapsed = elapsed
    core.step(Message(kind, to=1, sender=3, term=2, log_term=1, index=1, context=context))
    assert (read(core) == []) is ignored
    if ignored:
        assert core.term == 1
        assert (
            lines_of(core)
            .lines[-1]
            .endswith("at term 1: lease is not expired (remaining ticks: 1)")
        )


@pytest.mark.parametrize(("check_quorum", "pre_vote"), [(1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("kind", [HEARTBEAT, APP])
def test_a_stale_leader_is_told_the_term(kind: int, check_quorum: int, pre_vote: int) -> None:
    core = new_core(1, THREE, check_quorum=bool(check_quorum), pre_vote=bool(pre_vote))
    core.become_follower(3, 0)
    core.step(Message(kind, to=1, sender=2, term=2))
    answers = [(each.type, each.to, each.term, each.index) for each in read(core)]
    assert answers == ([(APP_RESP, 2, 3, 0)] if check_quorum or pre_vote else [])
    assert core.lead == 0


def test_a_pre_vote_of_a_lower_term_is_answered() -> None:
    core = new_core(1, THREE)
    core.become_follower(5, 0)
    core.step(Message(PRE_VOTE, to=1, sender=2, term=3, log_term=9, index=9))
    (answer,) = read(core)
    assert (answer.type, answer.term, answer.reject) == (PRE_VOTE_RESP, 5, True)


def test_terms_of_vote_responses() -> None:
    core = new_core(1, THREE, storage=StoredLog(1))
    core.become_follower(4, 0)
    core.step(Message(PRE_VOTE, to=1, sender=2, term=5, log_term=1, index=1))
    core.step(Message(PRE_VOTE, to=1, sender=2, term=5, log_term=0, index=0))
    granted, denied = read(core)
    assert (granted.reject, granted.term) == (False, 5)
    assert (denied.reject, denied.term) == (True, 4)


def test_a_pre_candidate_forgets_its_leader_and_keeps_its_term() -> None:
    core = new_core(1, THREE, pre_vote=True)
    core.become_follower(1, 2)
    core.vote = 3
    core.step(hup(1))
    assert (core.role, core.lead, core.term, core.vote) == (PRE_CANDIDATE, 0, 1, 3)
    sent = read(core)
    assert [(each.type, each.term) for each in sent] == [(PRE_VOTE, 2)] * 2


def test_a_rejected_pre_vote_of_a_higher_term_is_taken_up() -> None:
    core = new_core(1, THREE, pre_vote=True)
    core.step(hup(1))
    flush(core)
    core.step(Message(PRE_VOTE_RESP, to=1, sender=2, term=7, reject=True))
    assert (core.role, core.term) == (FOLLOWER, 7)


def test_a_transfer_never_asks_for_a_pre_vote() -> None:
    core = new_core(1, THREE, pre_vote=True)
    core.become_follower(1, 2)
    core.step(Message(MessageType.TIMEOUT_NOW, to=1, sender=2, term=1))
    sent = read(core)
    assert [(each.type, each.context) for each in sent] == [(VOTE, b"CampaignTransfer")] * 2


def test_a_vote_without_a_term_is_ignored() -> None:
    core = new_core(1, THREE)
    core.become_follower(3, 0)
    for kind in (VOTE, PRE_VOTE):
        core.step(Message(kind, to=1, sender=2, log_term=9, index=9))
    assert (read(core), core.vote) == ([], 0)


# Check of the quorum.


def test_activity_is_asked_for_again_after_every_check() -> None:
    core = lead(new_core(1, THREE, check_quorum=True))
    for peer in core.tracker.progress.values():
        peer.recent_active = True
    core.step(Message(MessageType.CHECK_QUORUM, sender=1))
    assert core.role == LEADER
    active = {node for node, peer in core.tracker.progress.items() if peer.recent_active}
    assert active == {1}
    core.step(Message(MessageType.CHECK_QUORUM, sender=1))
    assert core.role == FOLLOWER


# Replication.


def test_peers_are_served_in_ascending_order() -> None:
    core = lead(new_core(4, (9, 2, 7, 4)))
    broadcast_append(core)
    core.step(beat(4))
    assert [message.to for message in core.messages] == [2, 7, 9, 2, 7, 9]
    voters = new_core(4, (9, 2, 7, 4))
    voters.step(hup(4))
    assert [message.to for message in voters.messages] == [2, 7, 9]


def test_a_commit_is_told_to_those_who_do_not_know_it() -> None:
    core = replicating_leader()
    propose(core)
    read(core)
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=2))
    told = [(each.to, each.commit, len(each.entries)) for each in read(core)]
    assert told == [(2, 2, 0), (3, 2, 0)]
    # Peer 3 was told already; its acknowledgement is not answered.
    core.step(Message(APP_RESP, to=1, sender=3, term=1, index=2))
    assert read(core) == []


def test_a_commit_that_a_peer_was_not_told_follows_its_acknowledgement() -> None:
    core = replicating_leader()
    propose(core)
    read(core)
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=2))
    read(core)
    core.tracker.progress[3].sent_commit = 1
    core.step(Message(APP_RESP, to=1, sender=3, term=1, index=2))
    assert [(each.to, each.commit) for each in read(core)] == [(3, 2)]


def test_a_probe_pauses_only_if_it_carries_entries() -> None:
    core = lead(new_core(1, (1, 2)))
    read(core)
    peer = core.tracker.progress[2]
    peer.next = 2
    assert maybe_send_append(core, 2, peer, send_if_empty=True)
    assert (peer.state, peer.flow_paused) == (ProgressState.PROBE, False)
    peer.next = 1
    assert maybe_send_append(core, 2, peer, send_if_empty=True)
    assert peer.flow_paused


def test_probing_lowers_the_commit_that_was_sent() -> None:
    core = replicating_leader()
    for _ in range(3):
        propose(core)
    read(core)
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=4))
    read(core)
    peer = core.tracker.progress[3]
    assert (peer.sent_commit, peer.match) == (4, 1)
    peer.become_probe()
    assert (peer.next, peer.sent_commit) == (2, 1)


def test_a_rejection_lowers_the_commit_that_was_sent() -> None:
    core = replicating_leader()
    for _ in range(3):
        propose(core)
    read(core)
    for state in (ProgressState.REPLICATE, ProgressState.PROBE):
        peer = core.tracker.progress[3]
        peer.state, peer.next, peer.sent_commit = state, 5, 4
        assert peer.maybe_decrease(4, 2)
        assert peer.sent_commit == peer.next - 1


def test_heartbeats_set_the_commit_that_was_sent() -> None:
    core = replicating_leader()
    propose(core)
    read(core)
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=2))
    assert core.tracker.progress[3].sent_commit == 2
    core.step(beat(1))
    assert core.tracker.progress[3].sent_commit == 1


def test_a_heartbeat_response_probes_a_peer_that_is_up_to_date() -> None:
    core = replicating_leader()
    core.tracker.progress[2].become_probe()
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2, term=1))
    assert [(each.type, each.to) for each in read(core)] == [(APP, 2)]
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=1))
    assert core.tracker.progress[2].state == ProgressState.REPLICATE


def test_a_stale_rejection_changes_nothing() -> None:
    core = replicating_leader()
    propose(core)
    read(core)
    before = str(core.tracker.progress[2])
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=1, reject=True, reject_hint=0))
    assert str(core.tracker.progress[2]) == before
    assert read(core) == []


def test_a_rejection_never_moves_next_below_the_match() -> None:
    core = replicating_leader()
    peer = core.tracker.progress[2]
    peer.become_probe()
    peer.next = 2
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=1, reject=True, reject_hint=0))
    assert (peer.match, peer.next) == (1, 2)


def test_an_append_below_the_commit_is_answered_with_the_commit() -> None:
    core = new_core(1, THREE, storage=StoredLog(1, 1, 1, hard_state=HardState(1, 0, 3)))
    core.step(Message(APP, to=1, sender=2, term=2, log_term=1, index=1, entries=entries(2, 1)))
    (answer,) = read(core)
    assert (answer.index, answer.reject) == (3, False)
    assert core.log.last_index() == 3


@given(data=st.data())
def test_a_leader_without_a_committed_entry_stops_its_follower(data: st.DataObject) -> None:
    """The follower judges every append as a comparison of whole logs would."""
    length = data.draw(st.integers(2, 8))
    own_terms = sorted(data.draw(st.lists(st.integers(1, 4), min_size=length, max_size=length)))
    committed = data.draw(st.integers(1, length))
    compacted = data.draw(st.integers(0, committed - 1))
    # A leader that lost entries has later terms behind those it shares, or the same ones anew.
    shared = data.draw(st.integers(0, length))
    tail = sorted(data.draw(st.lists(st.integers(5, 6), max_size=8)))
    renewed = data.draw(st.integers(compacted + 1, length + 1))
    leaders = [
        Entry(EntryType.NORMAL, term, index, b"anew" if index >= renewed else b"")
        for index, term in enumerate(own_terms[:shared] + tail, 1)
    ]
    index = data.draw(st.integers(0, min(len(leaders), committed - 1)))
    sent = leaders[index : data.draw(st.integers(index, len(leaders)))]

    storage = StoredLog(*own_terms, hard_state=HardState(4, 0, committed))
    if compacted:
        storage.compact(compacted)
    core = new_core(1, THREE, storage=storage)
    log_term = leaders[index - 1].term if index else 0
    shown = [
        *((each.term, b"") for each in leaders[:index]),
        *((each.term, each.data) for each in sent),
    ]
    known = [(term, b"") for term in own_terms[:committed]]
    message = Message(APP, to=1, sender=2, term=7, index=index, log_term=log_term, entries=sent)
    if all(theirs == ours for theirs, ours in zip(shown, known, strict=False)):
        core.step(message)
        (answer,) = read(core)
        assert (answer.index, answer.reject) == (committed, False)
    else:
        with pytest.raises(FatalError, match="members have lost entries that were committed"):
            core.step(message)


def test_a_follower_ahead_of_its_leader_is_reported_once_a_term() -> None:
    core = lead(new_core(1, THREE))
    read(core)
    lines_of(core).take()
    for index in (99, 99, 98):
        core.step(Message(APP_RESP, to=1, sender=2, term=core.term, index=index))
    (line,) = lines_of(core).take()
    assert "2 holds entries that this leader lacks" in line
    core.become_follower(core.term + 1, 0)
    lead(core)
    lines_of(core).take()
    core.step(Message(APP_RESP, to=1, sender=2, term=core.term, index=99))
    assert len(lines_of(core).take()) == 1


def test_the_leaders_acknowledgement_counts_only_once_it_is_durable() -> None:
    core = lead(new_core(1))
    assert core.log.committed == 0
    flush(core)
    assert core.log.committed == 1


def test_recovery_from_a_snapshot_asks_only_for_a_log_that_connects() -> None:
    storage = StoredLog(*[1] * 20, hard_state=HardState(1, 0, 20))
    core = lead(new_core(1, (1, 2), storage=storage))
    read(core)
    peer = core.tracker.progress[2]
    storage.compact(10)
    peer.become_snapshot(20)
    core.step(Message(APP_RESP, to=1, sender=2, term=core.term, index=9))
    assert peer.state == ProgressState.SNAPSHOT
    # An older snapshot than the one that was sent will do, if the log goes on from there.
    core.step(Message(APP_RESP, to=1, sender=2, term=core.term, index=10))
    assert peer.state == ProgressState.REPLICATE
    assert [entry.index for entry in read(core)[-1].entries] == list(range(11, 22))


# Proposals.


def test_a_forwarded_proposal_names_its_sender() -> None:
    core = new_core(2, THREE)
    core.become_follower(1, 1)
    core.step(Message(MessageType.PROP, to=2, entries=[Entry(0, 0, 0, b"x")]))
    (forwarded,) = read(core)
    assert (forwarded.to, forwarded.sender, forwarded.term) == (1, 2, 0)


def test_proposals_are_not_forwarded_if_that_is_switched_off() -> None:
    core = new_core(2, THREE, disable_proposal_forwarding=True)
    core.become_follower(1, 1)
    with pytest.raises(ProposalDroppedError):
        propose(core)
    assert read(core) == []
    assert lines_of(core).lines[-1] == (
        "INFO 2 not forwarding to leader 1 at term 1; dropping proposal"
    )


def test_a_removed_leader_takes_no_proposals_but_goes_on_leading() -> None:
    core = replicating_leader()
    remove_node(core, 1)
    assert core.role == LEADER
    with pytest.raises(ProposalDroppedError):
        propose(core)
    core.step(beat(1))
    assert [message.to for message in read(core)] == [2, 3]


@pytest.mark.parametrize("demote", [False, True])
def test_a_removed_leader_steps_down_if_told_so(demote: bool) -> None:
    core = lead(new_core(1, THREE, step_down_on_removal=True))
    kind = ChangeType.ADD_LEARNER_NODE if demote else ChangeType.REMOVE_NODE
    membership.apply_conf_change(core, ConfChange(kind, 1))
    assert (core.role, core.lead) == (FOLLOWER, 0)


# Membership.


def test_a_new_peer_is_probed_at_once_from_the_last_entry() -> None:
    core = replicating_leader(1, (1,))
    for _ in range(4):
        propose(core)
    read(core)
    assert core.log.last_index() == 5
    add_node(core, 2)
    peer = core.tracker.progress[2]
    (sent,) = read(core)
    assert (sent.to, sent.index, len(sent.entries)) == (2, 4, 1)
    assert (peer.match, peer.next, peer.recent_active) == (0, 5, True)


def leave_proposed(core: Raft) -> bool:
    last = core.log.entries_from(core.log.last_index(), 1 << 20)[-1]
    return (last.type, last.data) == (EntryType.CONF_CHANGE_V2, b"")


def test_leaving_a_joint_configuration_waits_for_what_was_proposed() -> None:
    core = replicating_leader(1, (1,))
    core.log.applied_to(1, 0)
    change = ConfChangeV2(Transition.JOINT_IMPLICIT, (Change(ChangeType.ADD_LEARNER_NODE, 2),))
    kind, data = encode_conf_change(change)
    core.step(Message(MessageType.PROP, sender=1, entries=[Entry(kind, 0, 0, data)]))
    propose(core)
    flush(core)
    assert (core.log.committed, core.pending_conf_index) == (3, 2)
    membership.apply_conf_change(core, change)
    core.pending_conf_index = 3
    core.applied_to(2, 0)
    assert not leave_proposed(core)
    core.applied_to(3, 0)
    assert leave_proposed(core)
    assert core.pending_conf_index == core.log.last_index()
    # It is proposed once.
    last = core.log.last_index()
    core.applied_to(3, 0)
    assert core.log.last_index() == last


def test_leaving_a_joint_configuration_may_have_to_wait() -> None:
    core = replicating_leader()
    core.log.applied_to(1, 0)
    change = ConfChangeV2(Transition.JOINT_IMPLICIT, (Change(ChangeType.ADD_LEARNER_NODE, 4),))
    membership.apply_conf_change(core, change)
    core.lead_transferee = 2
    core.applied_to(1, 0)
    assert lines_of(core).lines[-1] == (
        "DEBUG not initiating automatic transition out of joint configuration "
        "voters=(1 2 3)&&(1 2 3) learners=(4) autoleave: raft proposal dropped"
    )


def test_validation_of_changes_can_be_switched_off() -> None:
    core = lead(new_core(1, (1,), disable_conf_change_validation=True))
    kind, data = encode_conf_change(ConfChange(ChangeType.ADD_NODE, 2))
    for _ in range(2):
        core.step(Message(MessageType.PROP, sender=1, entries=[Entry(kind, 0, 0, data)]))
    appended = core.log.entries_from(2, 1 << 20)
    assert [entry.type for entry in appended] == [EntryType.CONF_CHANGE] * 2


def test_a_joint_configuration_needs_both_majorities() -> None:
    core = lead(new_core(1, THREE))
    flush(core)
    changes = tuple(Change(ChangeType.ADD_NODE, node) for node in (4, 5))
    removed = tuple(Change(ChangeType.REMOVE_NODE, node) for node in (2, 3))
    membership.apply_conf_change(core, ConfChangeV2(Transition.JOINT_EXPLICIT, changes + removed))
    for node in (4, 5):
        core.step(Message(APP_RESP, to=1, sender=node, term=1, index=1))
    assert core.log.committed == 0
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=1))
    assert core.log.committed == 1


# Transfer.


def test_a_transfer_has_a_whole_election_timeout() -> None:
    core = replicating_leader()
    core.election_elapsed = 9
    propose(core)
    core.step(transfer(3, at=1))
    assert core.election_elapsed == 0
    core.tick()
    assert core.lead_transferee == 3


def test_no_transfer_to_a_learner() -> None:
    core = lead(new_core(1, (1, 2), learners=(3,)))
    core.step(transfer(3, at=1))
    assert core.lead_transferee == 0
    assert lines_of(core).lines[-1] == "DEBUG 1 is learner. Ignored transferring leadership"


def test_a_transferee_is_called_once_it_has_caught_up() -> None:
    core = replicating_leader()
    propose(core)
    core.step(transfer(3, at=1))
    assert MessageType.TIMEOUT_NOW not in [message.type for message in read(core)]
    core.step(Message(APP_RESP, to=1, sender=3, term=1, index=2))
    assert MessageType.TIMEOUT_NOW in [message.type for message in read(core)]
    assert "INFO 1 sent MsgTimeoutNow to 3 after received MsgAppResp" in lines_of(core).lines


# Snapshots.


@pytest.mark.parametrize(
    ("members", "restored"),
    [
        (ConfState((2, 3)), False),
        (ConfState((2, 3), learners=(1,)), True),
        (ConfState((2, 3), voters_outgoing=(1, 2)), True),
        (ConfState((1, 2)), True),
    ],
)
def test_a_snapshot_without_this_node_is_refused(members: ConfState, restored: bool) -> None:
    core = new_core(1, THREE)
    core.step(Message(MessageType.SNAP, to=1, sender=2, term=1, snapshot=Snapshot(9, 1, members)))
    assert core.log.last_index() == (9 if restored else 0)
    (answer,) = read(core)
    assert (answer.index, answer.reject) == (9 if restored else 0, False)


def test_a_pending_snapshot_is_stored_before_standing() -> None:
    core = new_core(1, THREE)
    given = Snapshot(9, 1, ConfState(THREE))
    core.step(Message(MessageType.SNAP, to=1, sender=2, term=1, snapshot=given))
    assert not core.promotable()
    core.step(Message(MessageType.STORAGE_APPEND_RESP, to=1, sender=APPEND_THREAD, snapshot=given))
    assert core.promotable()
    assert core.log.applied == 9


def test_a_stale_write_still_acknowledges_its_snapshot() -> None:
    node = new_raw_node(1, THREE, async_storage_writes=True)
    given = Snapshot(9, 1, ConfState(THREE))
    node.step(Message(MessageType.SNAP, to=1, sender=2, term=1, snapshot=given))
    (write,) = [each for each in node.ready().messages if each.to == APPEND_THREAD]
    (done,) = [each for each in write.responses if each.to == 1]
    node.step(Message(HEARTBEAT, to=1, sender=3, term=2))
    assert (node.raft.term, node.raft.log.applied) == (2, 0)
    node.step(done)
    assert node.raft.log.applied == 9
    assert node.raft.log.unstable.snapshot is None


# The paper's own safety argument, figure 8.


def test_an_entry_of_an_old_term_is_not_committed_by_counting() -> None:
    net = Net.of(3)
    storage = StoredLog(1, 2, hard_state=HardState(3, 0, 0))
    core = lead(new_core(1, THREE, storage=storage))
    net.cores = {1: core, 2: None, 3: None}
    flush(core)
    core.step(Message(APP_RESP, to=1, sender=2, term=core.term, index=2))
    assert core.log.committed == 0
    core.step(Message(APP_RESP, to=1, sender=2, term=core.term, index=3))
    assert core.log.committed == 3
