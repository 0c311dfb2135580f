"""Which nodes may campaign, which vote for which, and what a lost or late election leaves
behind."""

import pytest

from kvorum.raft.core import Raft
from kvorum.raft.errors import FatalError, ProposalDroppedError
from kvorum.raft.messages import HardState, Message, MessageType
from tests.raft.cores import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    RANDOM,
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
    prop,
    propose,
    read,
    terms,
    tick_through,
)

VOTE, VOTE_RESP = MessageType.VOTE, MessageType.VOTE_RESP
PRE_VOTE, PRE_VOTE_RESP = MessageType.PRE_VOTE, MessageType.PRE_VOTE_RESP
HEARTBEAT, APP = MessageType.HEARTBEAT, MessageType.APP


def core_with_log(*log_terms: int, pre_vote: bool) -> Raft:
    core = new_core(1, (), storage=StoredLog(*log_terms), pre_vote=pre_vote)
    core.reset(log_terms[-1])
    return core


@pytest.mark.parametrize("pre_vote", [False, True])
@pytest.mark.parametrize(
    ("places", "won"),
    [("...", True), ("..X", True), (".XX", False), (".XX.", False), (".XX..", True)],
)
def test_leader_election(places: str, won: bool, pre_vote: bool) -> None:
    net = Net([None if place == "X" else new_core(1, (), pre_vote=pre_vote) for place in places])
    net.send(hup(1))
    lost = (PRE_CANDIDATE, 0) if pre_vote else (CANDIDATE, 1)
    assert (net[1].role, net[1].term) == ((LEADER, 1) if won else lost)


@pytest.mark.parametrize("pre_vote", [False, True])
def test_longer_logs_win(pre_vote: bool) -> None:
    net = Net(
        [
            new_core(1, (), pre_vote=pre_vote),
            core_with_log(1, pre_vote=pre_vote),
            core_with_log(1, pre_vote=pre_vote),
            core_with_log(1, 1, pre_vote=pre_vote),
            new_core(1, (), pre_vote=pre_vote),
        ]
    )
    net.send(hup(1))
    assert (net[1].role, net[1].term) == (FOLLOWER, 1)


def voter_and_learner() -> tuple[Raft, Raft]:
    pair = [new_core(node, (1,), learners=(2,)) for node in (1, 2)]
    for core in pair:
        core.become_follower(1, 0)
    return pair[0], pair[1]


def test_a_learner_does_not_stand() -> None:
    _, learner = voter_and_learner()
    learner.randomized_election_timeout = 10
    for _ in range(10):
        learner.tick()
    assert learner.role == FOLLOWER


def test_learner_promotion() -> None:
    voter, learner = voter_and_learner()
    net = Net([voter, learner])
    tick_through(voter)
    flush(voter)
    assert (voter.role, learner.role) == (LEADER, FOLLOWER)
    net.send(beat(1))
    add_node(voter, 2)
    add_node(learner, 2)
    assert not learner.is_learner
    tick_through(learner)
    net.send(*net.filter(read(learner)))
    net.send(beat(2))
    assert (voter.role, learner.role) == (FOLLOWER, LEADER)


def test_a_learner_votes() -> None:
    _, learner = voter_and_learner()
    learner.step(Message(VOTE, to=2, sender=1, term=2, log_term=11, index=11))
    (answer,) = read(learner)
    assert (answer.type, answer.reject) == (VOTE_RESP, False)


@pytest.mark.parametrize("pre_vote", [False, True])
def test_leader_cycle(pre_vote: bool) -> None:
    net = Net.of(3, pre_vote=pre_vote)
    for candidate in (1, 2, 3):
        net.send(hup(candidate))
        expected = [LEADER if node == candidate else FOLLOWER for node in (1, 2, 3)]
        assert net.roles() == expected


@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_leader_overwrites_newer_entries_that_were_not_committed(pre_vote: bool) -> None:
    def voted(term: int) -> Raft:
        storage = StoredLog(hard_state=HardState(term, 3, 0))
        return new_core(1, (), storage=storage, pre_vote=pre_vote)

    net = Net(
        [
            core_with_log(1, pre_vote=pre_vote),
            core_with_log(1, pre_vote=pre_vote),
            core_with_log(2, pre_vote=pre_vote),
            voted(2),
            voted(2),
        ]
    )
    net.send(hup(1))
    assert (net[1].role, net[1].term) == (FOLLOWER, 2)
    net.send(hup(1))
    assert (net[1].role, net[1].term) == (LEADER, 3)
    assert [terms(net[node]) for node in net.cores] == [[1, 3]] * 5


def in_role(core: Raft, role: int) -> Raft:
    core.term = 1
    if role == FOLLOWER:
        core.become_follower(core.term, 3)
    elif role == PRE_CANDIDATE:
        core.become_pre_candidate()
    else:
        core.become_candidate()
        if role == LEADER:
            core.become_leader()
    return core


@pytest.mark.parametrize("role", [FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER])
@pytest.mark.parametrize("kind", [VOTE, PRE_VOTE])
def test_vote_from_any_role(kind: int, role: int) -> None:
    core = in_role(new_core(1, (1, 2, 3)), role)
    read(core)
    before = core.term
    term = before + 1
    core.step(Message(kind, to=1, sender=2, term=term, log_term=term, index=42))
    (answer,) = [message for message in read(core) if message.to == 2]
    assert (answer.type, answer.reject) == (VOTE_RESP if kind == VOTE else PRE_VOTE_RESP, False)
    if kind == VOTE:
        assert (core.role, core.term, core.vote) == (FOLLOWER, term, 2)
    else:
        assert (core.role, core.term) == (role, before)
        assert core.vote in (0, 1)


def test_dueling_candidates() -> None:
    net = Net.of(3)
    net.cut(1, 3)
    net.send(hup(1))
    net.send(hup(3))
    assert (net[1].role, net[3].role) == (LEADER, CANDIDATE)
    net.recover()
    net.send(hup(3))
    assert net.roles() == [FOLLOWER] * 3
    assert net.terms() == [2, 2, 2]
    assert [net[node].log.last_index() for node in net.cores] == [1, 1, 0]


def test_dueling_pre_candidates() -> None:
    net = Net.of(3, pre_vote=True)
    net.cut(1, 3)
    net.send(hup(1))
    net.send(hup(3))
    assert (net[1].role, net[3].role) == (LEADER, FOLLOWER)
    net.recover()
    net.send(hup(3))
    assert net.roles() == [LEADER, FOLLOWER, FOLLOWER]
    assert net.terms() == [1, 1, 1]
    assert [net[node].log.last_index() for node in net.cores] == [1, 1, 0]


def test_a_candidate_concedes() -> None:
    net = Net.of(3)
    net.isolate(1)
    net.send(hup(1))
    net.send(hup(3))
    net.recover()
    net.send(beat(3))
    net.send(prop(3, b"force follower"))
    net.send(beat(3))
    assert (net[1].role, net[1].term) == (FOLLOWER, 1)
    assert [terms(net[node]) for node in net.cores] == [[1, 1]] * 3


@pytest.mark.parametrize("pre_vote", [False, True])
def test_one_node_alone(pre_vote: bool) -> None:
    core = new_core(1, pre_vote=pre_vote)
    core.step(hup(1))
    flush(core)
    assert core.role == LEADER
    term = core.term
    core.step(hup(1))
    flush(core)
    assert (core.role, core.term) == (LEADER, term)
    assert lines_of(core).lines[-1] == "DEBUG 1 ignoring MsgHup because already leader"


def test_old_messages() -> None:
    net = Net.of(3)
    for node in (1, 2, 1):
        net.send(hup(node))
    net.send(Message(APP, to=1, sender=2, term=2, entries=entries(3, 2)))
    net.send(prop(1))
    assert [terms(net[node]) for node in net.cores] == [[1, 2, 3, 3]] * 3


@pytest.mark.parametrize(
    ("elapsed", "share"), [(5, 0), (10, 0.1), (13, 0.4), (15, 0.6), (18, 0.9), (20, 1)]
)
def test_past_the_election_timeout(elapsed: int, share: float) -> None:
    core = new_core(1)
    passed = 0
    for _ in range(10_000):
        core.reset(core.term)
        passed += elapsed >= core.randomized_election_timeout
    assert passed / 10_000 == pytest.approx(share, abs=0.05 if 0 < share < 1 else 0)


def test_a_message_of_an_old_term_is_ignored() -> None:
    core = new_core(1, (1, 2))
    core.term = 2
    core.step(Message(APP, to=1, sender=2, term=1, entries=entries(1, 1)))
    assert (core.log.last_index(), core.lead, read(core)) == (0, 0, [])
    assert lines_of(core).lines[-1] == (
        "INFO 1 [term: 2] ignored a MsgApp message with lower term from 2 [term: 1]"
    )


VOTES = [
    *[(FOLLOWER, index, term, 0, term < 3) for index in (0, 1) for term in (0, 1, 2, 3)],
    *[(FOLLOWER, index, term, 0, term < 2) for index in (2, 3) for term in (0, 1, 2, 3)],
    (FOLLOWER, 3, 2, 2, False),
    (FOLLOWER, 3, 2, 1, True),
    (LEADER, 3, 3, 1, True),
    (PRE_CANDIDATE, 3, 3, 1, True),
    (CANDIDATE, 3, 3, 1, True),
]


@pytest.mark.parametrize("kind", [VOTE, PRE_VOTE])
@pytest.mark.parametrize(("role", "index", "log_term", "vote", "reject"), VOTES)
def test_vote_request(
    role: int, index: int, log_term: int, vote: int, reject: bool, kind: int
) -> None:
    core = new_core(1, storage=StoredLog(2, 2))
    core.role = role
    core.vote = vote
    core.term = max(2, log_term)
    core.step(Message(kind, to=1, sender=2, term=core.term, index=index, log_term=log_term))
    (answer,) = core.messages_after_append
    assert answer.type == (VOTE_RESP if kind == VOTE else PRE_VOTE_RESP)
    assert answer.reject is reject


TRANSITIONS = [
    (FOLLOWER, FOLLOWER, 1, 0),
    (FOLLOWER, PRE_CANDIDATE, 0, 0),
    (FOLLOWER, CANDIDATE, 1, 0),
    (FOLLOWER, LEADER, None, 0),
    (PRE_CANDIDATE, FOLLOWER, 0, 0),
    (PRE_CANDIDATE, PRE_CANDIDATE, 0, 0),
    (PRE_CANDIDATE, CANDIDATE, 1, 0),
    (PRE_CANDIDATE, LEADER, 0, 1),
    (CANDIDATE, FOLLOWER, 0, 0),
    (CANDIDATE, PRE_CANDIDATE, 0, 0),
    (CANDIDATE, CANDIDATE, 1, 0),
    (CANDIDATE, LEADER, 0, 1),
    (LEADER, FOLLOWER, 1, 0),
    (LEADER, PRE_CANDIDATE, None, 0),
    (LEADER, CANDIDATE, None, 0),
    (LEADER, LEADER, 0, 1),
]


@pytest.mark.parametrize(("before", "after", "term", "lead_then"), TRANSITIONS)
def test_transition(before: int, after: int, term: int | None, lead_then: int) -> None:
    core = new_core(1)
    core.role = before

    def change() -> None:
        if after == FOLLOWER:
            core.become_follower(term or 0, 0)
        else:
            (core.become_candidate, core.become_leader, core.become_pre_candidate)[after - 1]()

    if term is None:
        with pytest.raises(FatalError, match="invalid transition"):
            change()
        return
    change()
    assert (core.role, core.term, core.lead) == (after, term, lead_then)


@pytest.mark.parametrize("role", [FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER])
@pytest.mark.parametrize("kind", [VOTE, APP])
def test_everyone_steps_down_for_a_higher_term(role: int, kind: int) -> None:
    core = in_role(new_core(1, (1, 2, 3)), role)
    core.step(Message(kind, to=1, sender=2, term=3, log_term=3))
    assert (core.role, core.term) == (FOLLOWER, 3)
    assert core.log.last_index() == (1 if role == LEADER else 0)
    assert core.lead == (0 if kind == VOTE else 2)


@pytest.mark.parametrize("kind", [HEARTBEAT, APP])
def test_a_candidate_takes_the_term_of_a_leader(kind: int) -> None:
    net = Net.of(3)
    net.send(hup(1))
    net.isolate(3)
    net.send(hup(2))
    net.send(hup(1))
    assert net.roles()[:2] == [LEADER, FOLLOWER]
    tick_through(net[3])
    assert net[3].role == CANDIDATE
    net.recover()
    net.send(Message(kind, to=3, sender=1, term=net[1].term))
    assert (net[3].role, net[3].term) == (FOLLOWER, net[1].term)


def taken_aside(core: Raft) -> list[Message]:
    held, core.messages_after_append = core.messages_after_append, []
    return held


@pytest.mark.parametrize("pre_vote", [False, True])
def test_the_own_vote_comes_after_the_election_was_lost(pre_vote: bool) -> None:
    core = new_core(1, (1, 2, 3), election_ticks=5, pre_vote=pre_vote)
    core.step(hup(1))
    held = taken_aside(core)
    core.step(Message(HEARTBEAT, to=1, sender=2, term=core.term))
    assert core.role == FOLLOWER
    for message in held:
        core.step(message)
    assert core.role == FOLLOWER
    assert core.tracker.tally_votes()[0] == 0


def test_the_own_pre_vote_comes_after_the_pre_election_was_won() -> None:
    core = new_core(1, (1, 2, 3), election_ticks=5, pre_vote=True)
    core.step(hup(1))
    assert core.role == PRE_CANDIDATE
    held = taken_aside(core)
    for node in (2, 3):
        core.step(Message(PRE_VOTE_RESP, to=1, sender=node, term=core.term + 1))
        if core.role == CANDIDATE:
            break
    core.step(Message(PRE_VOTE_RESP, to=1, sender=3, term=core.term))
    assert core.role == CANDIDATE
    for message in held:
        core.step(message)
    assert (core.role, core.tracker.tally_votes()[0]) == (CANDIDATE, 0)
    held = taken_aside(core)
    core.step(Message(VOTE_RESP, to=1, sender=2, term=core.term))
    assert core.role == CANDIDATE
    for message in held:
        core.step(message)
    assert core.role == LEADER


def test_the_own_acknowledgement_comes_after_a_change_of_term() -> None:
    core = lead(new_core(1, (1, 2, 3), election_ticks=5))
    propose(core)
    held = taken_aside(core)
    core.step(Message(HEARTBEAT, to=1, sender=2, term=core.term + 1))
    assert core.role == FOLLOWER
    for message in held:
        core.step(message)
    assert core.role == FOLLOWER


@pytest.mark.parametrize(
    ("voters", "promotable"), [((1,), True), ((1, 2, 3), True), ((), False), ((2, 3), False)]
)
def test_promotable(voters: tuple[int, ...], promotable: bool) -> None:
    assert new_core(1, voters).promotable() is promotable


@pytest.mark.parametrize("voters", [(1, 2, 3), (3, 2, 1)])
def test_voters_are_listed_in_order(voters: tuple[int, ...]) -> None:
    assert new_core(1, voters).tracker.config.voters() == [1, 2, 3]


def test_a_learner_does_not_campaign() -> None:
    voter, learner = voter_and_learner()
    net = Net([voter, learner])
    net.send(hup(2))
    assert learner.role == FOLLOWER
    assert lines_of(learner).lines[-1] == "WARN 2 is unpromotable and can not campaign"
    net.send(hup(1))
    assert voter.role == LEADER
    net.send(Message(MessageType.TIMEOUT_NOW, to=2, sender=1))
    assert learner.role == FOLLOWER


def test_who_is_no_member_does_not_campaign() -> None:
    core = new_core(1, (2, 3, 4), election_ticks=5)
    core.step(Message(MessageType.TIMEOUT_NOW, to=1, sender=2))
    core.step(Message(VOTE_RESP, to=1, sender=2))
    core.step(Message(VOTE_RESP, to=1, sender=3))
    assert core.role == FOLLOWER


def test_a_candidate_ignores_a_request_to_take_over() -> None:
    core = new_core(1, (1, 2, 3))
    core.become_candidate()
    core.step(Message(MessageType.TIMEOUT_NOW, to=1, sender=2))
    assert lines_of(core).lines[-1] == (
        "DEBUG 1 [term 1 state StateCandidate] ignored MsgTimeoutNow from 2"
    )
    with pytest.raises(ProposalDroppedError):
        propose(core)


# Check of the quorum.


def test_a_leader_stays_while_it_hears_of_a_quorum() -> None:
    core = lead(new_core(1, (1, 2, 3), election_ticks=5, check_quorum=True))
    for _ in range(6):
        core.step(Message(MessageType.HEARTBEAT_RESP, to=1, sender=2, term=core.term))
        core.tick()
    assert core.role == LEADER


def test_a_leader_that_hears_of_no_quorum_steps_down() -> None:
    core = lead(new_core(1, (1, 2, 3), election_ticks=5, check_quorum=True))
    for _ in range(6):
        core.tick()
    assert core.role == FOLLOWER
    assert "WARN 1 stepped down to follower since quorum is not active" in lines_of(core).lines


def ticks(core: Raft, count: int) -> None:
    for _ in range(count):
        core.tick()


def test_superseding_a_leader_waits_for_its_lease() -> None:
    net = Net.of(3, check_quorum=True)
    net[2].randomized_election_timeout = 11
    ticks(net[2], 10)
    net.send(hup(1))
    assert (net[1].role, net[3].role) == (LEADER, FOLLOWER)
    net.send(hup(3))
    assert net[3].role == CANDIDATE
    ticks(net[2], 10)
    net.send(hup(3))
    assert net[3].role == LEADER


def test_election_with_check_of_the_quorum() -> None:
    net = Net.of(3, check_quorum=True)
    net[1].randomized_election_timeout, net[2].randomized_election_timeout = 11, 12
    net.send(hup(1))
    assert (net[1].role, net[3].role) == (LEADER, FOLLOWER)
    net[1].randomized_election_timeout, net[2].randomized_election_timeout = 11, 12
    ticks(net[1], 10)
    ticks(net[2], 10)
    net.send(hup(3))
    assert (net[1].role, net[3].role) == (FOLLOWER, LEADER)


def test_a_stuck_candidate_is_freed() -> None:
    net = Net.of(3, check_quorum=True)
    net[2].randomized_election_timeout = 11
    ticks(net[2], 10)
    net.send(hup(1))
    net.isolate(1)
    net.send(hup(3))
    assert (net[2].role, net[3].role) == (FOLLOWER, CANDIDATE)
    assert net[3].term == net[2].term + 1
    net.send(hup(3))
    assert net[3].term == net[2].term + 2
    net.recover()
    net.send(Message(HEARTBEAT, to=3, sender=1, term=net[1].term))
    assert (net[1].role, net[1].term) == (FOLLOWER, net[3].term)
    net.send(hup(3))
    assert net[3].role == LEADER


def test_a_voter_that_is_no_member_of_its_own_configuration() -> None:
    one = new_core(1, (1, 2), check_quorum=True)
    other = new_core(2, (1,), check_quorum=True)
    other.randomized_election_timeout = 11
    net = Net.of(0)
    net.cores = {1: one, 2: other}
    assert not other.promotable()
    ticks(other, 10)
    net.send(hup(1))
    assert (one.role, other.role, other.lead) == (LEADER, FOLLOWER, 1)


def at_term_1(**options: bool) -> Net:
    net = Net.of(3, **options)
    for node in net.cores:
        net[node].become_follower(1, 0)
    return net


def test_a_disruptive_follower() -> None:
    net = at_term_1(check_quorum=True)
    net.send(hup(1))
    assert (net.roles(), net[1].term) == ([LEADER, FOLLOWER, FOLLOWER], 2)
    net[3].randomized_election_timeout = 12
    ticks(net[3], 12)
    assert net.roles() == [LEADER, FOLLOWER, CANDIDATE]
    assert net.terms() == [2, 2, 3]
    net[3].messages.clear()
    net[3].messages_after_append.clear()
    net.send(Message(HEARTBEAT, to=3, sender=1, term=2))
    assert net.roles() == [FOLLOWER, FOLLOWER, CANDIDATE]
    assert net.terms() == [3, 2, 3]


def test_a_follower_that_was_cut_off_does_not_disrupt_with_pre_vote() -> None:
    net = at_term_1(check_quorum=True)
    net.send(hup(1))
    net.isolate(3)
    for _ in range(3):
        net.send(prop(1))
    for node in net.cores:
        net[node].config.pre_vote = True
    net.recover()
    net.send(hup(3))
    assert net.roles() == [LEADER, FOLLOWER, PRE_CANDIDATE]
    assert net.terms() == [2, 2, 2]
    net.send(Message(HEARTBEAT, to=3, sender=1, term=net[1].term))
    assert net[1].role == LEADER


# Pre-vote.


def test_a_node_with_a_smaller_term_can_complete_an_election() -> None:
    net = at_term_1(pre_vote=True)
    net.cut(1, 3)
    net.cut(2, 3)
    net.send(hup(1))
    assert net.roles()[:2] == [LEADER, FOLLOWER]
    net.send(hup(3))
    assert net[3].role == PRE_CANDIDATE
    net.send(hup(2))
    assert net.terms() == [3, 3, 1]
    assert net.roles() == [FOLLOWER, LEADER, PRE_CANDIDATE]
    net.recover()
    net.cut(2, 1)
    net.cut(2, 3)
    net.send(hup(3))
    net.send(hup(1))
    assert LEADER in (net[1].role, net[3].role)


def test_pre_vote_with_a_split_vote() -> None:
    net = at_term_1(pre_vote=True)
    net.send(hup(1))
    net.isolate(1)
    net.send(hup(2), hup(3))
    assert [(net[node].term, net[node].role) for node in (2, 3)] == [(3, CANDIDATE)] * 2
    net.send(hup(2))
    assert [net[node].term for node in (2, 3)] == [4, 4]
    assert [net[node].role for node in (2, 3)] == [LEADER, FOLLOWER]


def test_pre_vote_with_check_of_the_quorum() -> None:
    net = at_term_1(pre_vote=True, check_quorum=True)
    net.send(hup(1))
    net.isolate(1)
    assert net.roles() == [LEADER, FOLLOWER, FOLLOWER]
    net.send(hup(3))
    net.send(hup(2))
    assert net[2].role == LEADER or net[3].role == FOLLOWER


def migrating() -> Net:
    """Two nodes have pre-vote and the third gets it late, after it raised its term alone."""
    net = at_term_1()
    net[1].config.pre_vote = net[2].config.pre_vote = True
    net.send(hup(1))
    net.isolate(3)
    net.send(prop(1))
    net.send(hup(3))
    net.send(hup(3))
    assert net.roles() == [LEADER, FOLLOWER, CANDIDATE]
    assert net.terms() == [2, 2, 4]
    net[3].config.pre_vote = True
    net.recover()
    return net


def test_migration_to_pre_vote_can_complete_an_election() -> None:
    net = migrating()
    net.isolate(1)
    net.send(hup(3))
    net.send(hup(2))
    assert (net[2].role, net[3].role) == (FOLLOWER, PRE_CANDIDATE)
    net.send(hup(3))
    net.send(hup(2))
    assert net[2].role == LEADER or net[3].role == FOLLOWER


def test_migration_to_pre_vote_frees_a_stuck_pre_candidate() -> None:
    net = migrating()
    net.send(hup(3))
    assert net.roles() == [LEADER, FOLLOWER, PRE_CANDIDATE]
    net.send(hup(3))
    assert net.roles() == [LEADER, FOLLOWER, PRE_CANDIDATE]
    net.send(Message(HEARTBEAT, to=3, sender=1, term=net[1].term))
    assert (net[1].role, net[1].term) == (FOLLOWER, net[3].term)


def test_the_timeout_is_drawn_from_the_source_given() -> None:
    drawn: list[int] = []

    def below(limit: int) -> int:
        drawn.append(limit)
        return RANDOM.randrange(limit)

    core = new_core(1, (1, 2, 3), random_below=below)
    assert drawn == [10]
    assert 10 <= core.randomized_election_timeout <= 19
