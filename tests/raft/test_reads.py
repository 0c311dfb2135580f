"""Linearizable reads through the leader, in both modes."""

import pytest

from kvorum.raft import membership
from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2, Transition
from kvorum.raft.config import ReadOnlyOption
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import HardState, Message, MessageType
from kvorum.raft.read_only import ReadOnly
from kvorum.raft.states import ReadState
from tests.raft.cores import (
    LEADER,
    Net,
    StoredLog,
    beat,
    hup,
    lead,
    lines_of,
    new_core,
    next_entries,
    prop,
    read,
    tick_through,
)

READ_INDEX, READ_INDEX_RESP = MessageType.READ_INDEX, MessageType.READ_INDEX_RESP
HEARTBEAT, HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP
APP, APP_RESP = MessageType.APP, MessageType.APP_RESP


def request(node: int, context: bytes, sender: int = 0) -> Message:
    entry = Entry(EntryType.NORMAL, 0, 0, context)
    return Message(READ_INDEX, to=node, sender=sender or node, entries=[entry])


@pytest.mark.parametrize("option", list(ReadOnlyOption))
def test_reads_by_way_of_any_node(option: ReadOnlyOption) -> None:
    net = Net.of(3, read_only_option=option, check_quorum=option is ReadOnlyOption.LEASE_BASED)
    net[2].randomized_election_timeout = 11
    for _ in range(10):
        net[2].tick()
    net.send(hup(1))
    assert net[1].role == LEADER
    for number, node in enumerate((1, 2, 3, 1, 2, 3)):
        for _ in range(10):
            net.send(prop(1, b""))
        context = b"ctx%d" % number
        net.send(request(node, context))
        assert net[node].read_states == [ReadState(11 + 10 * number, context)]
        net[node].read_states = []


def test_reads_with_a_learner() -> None:
    net = Net([new_core(node, (1,), learners=(2,)) for node in (1, 2)])
    tick_through(net[1])
    net.send(*net.filter(read(net[1])))
    for number, node in enumerate((1, 2, 1, 2)):
        for _ in range(10):
            net.send(prop(1, b""))
            next_entries(net[1])
        net.send(request(node, b"ctx"))
        assert net[node].read_states == [ReadState(11 + 10 * number, b"ctx")]
        net[node].read_states = []


def test_a_single_voter_holds_the_reads_of_learners_until_it_has_committed() -> None:
    storage = StoredLog(1, 1, hard_state=HardState(1, 0, 1))
    core = new_core(1, (1,), learners=(2,), storage=storage, applied=1)
    core.step(hup(1))
    # Its own vote counts when it is written, and makes it the leader; its entry is not written yet.
    (vote,), core.messages_after_append = core.messages_after_append, []
    core.step(vote)
    assert core.role == LEADER
    # It restarted: entry 2 may have been acknowledged, and it does not know that.
    core.step(request(1, b"ctx", sender=2))
    assert READ_INDEX_RESP not in [message.type for message in core.messages]
    answers = [message for message in read(core) if message.type == READ_INDEX_RESP]
    assert [(each.to, each.index) for each in answers] == [(2, 3)]


def test_a_new_leader_holds_reads_until_it_has_committed() -> None:
    cores = []
    for node, (commit, compacted) in enumerate([(1, 0), (2, 2), (2, 2)], 1):
        storage = StoredLog(1, 1, hard_state=HardState(1, 0, commit))
        if compacted:
            storage.compact(compacted)
        cores.append(new_core(node, (1, 2, 3), storage=storage, applied=commit))
    net = Net(cores)
    net.ignored.add(APP)
    net.send(hup(1))
    assert net[1].role == LEADER
    net.send(request(1, b"ctx"))
    assert net[1].read_states == []
    net.recover()
    net[1].tick()
    net.send(prop(1))
    assert net[1].log.committed == 4
    assert net[1].log.term(4) == net[1].term
    assert net[1].read_states == [ReadState(4, b"ctx")]
    net.send(request(1, b"ctx"))
    assert net[1].read_states == [ReadState(4, b"ctx"), ReadState(4, b"ctx")]


def test_a_late_answer_never_satisfies_another_read() -> None:
    net = Net.of(3)
    net.send(hup(1))
    net.send(prop(1))
    first_commit = net[1].log.committed
    held: list[Message] = []

    def hold_responses(message: Message) -> bool:
        if message.type == HEARTBEAT_RESP:
            held.append(message)
            return False
        return True

    net.hook = hold_responses
    first, duplicate = request(1, b"A", sender=2), request(1, b"A", sender=2)
    net.send(first)
    net[1].tick()
    net.send(*net.filter(read(net[1])))
    assert held
    net.isolate(1)
    net.hook = lambda _: True
    net.send(hup(2))
    net.send(prop(2))
    second_commit = net[2].log.committed
    assert second_commit > first_commit
    net.send(request(1, b"B"))
    net.recover()
    net.send(duplicate)
    net.send(*held)
    for node in net.cores:
        for state in net[node].read_states:
            least = first_commit if state.context == b"A" else second_commit
            assert state.index >= least, f"node {node} got {state}"


def test_confirmed_reads_are_forgotten() -> None:
    core = lead(new_core(1, (1, 2), election_ticks=5))
    core.log.commit_to(core.log.last_index())
    read(core)
    core.step(request(1, b"ctx", sender=2))
    (sent,) = read(core)
    assert (sent.type, len(core.read_only.unconfirmed)) == (HEARTBEAT, 1)
    assert sent.context == (1).to_bytes(8, "little")
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2, context=sent.context))
    assert len(core.read_only.unconfirmed) == 0
    answers = [message for message in read(core) if message.type == READ_INDEX_RESP]
    assert [(each.to, each.index, each.entries[0].data) for each in answers] == [(2, 1, b"ctx")]


def test_equal_contexts_are_different_reads() -> None:
    core = lead(new_core(1, (1, 2, 3)))
    core.log.commit_to(1)
    read(core)
    core.step(request(1, b"same"))
    (older, _) = read(core)
    core.step(request(1, b"same"))
    (newer, _) = read(core)
    assert older.context != newer.context
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2, context=older.context))
    assert core.read_states == [ReadState(1, b"same")]
    core.step(Message(HEARTBEAT_RESP, to=1, sender=3, context=newer.context))
    assert core.read_states == [ReadState(1, b"same")] * 2


@pytest.mark.parametrize("context", [b"", b"ctx", bytes(7), b"\xff" * 8, bytes(9)])
def test_an_echo_of_what_was_never_asked_confirms_nothing(context: bytes) -> None:
    core = lead(new_core(1, (1, 2, 3)))
    core.log.commit_to(1)
    read(core)
    if context != b"\xff" * 8:
        core.step(request(1, b"ctx"))
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2, context=context))
    assert core.read_states == []
    core.step(request(1, b"later"))
    # An echo of nothing makes the leader count again.
    core.step(Message(HEARTBEAT_RESP, to=1, sender=3, context=bytes(8)))
    assert core.read_states == []


def test_a_single_voter_answers_at_once() -> None:
    core = lead(new_core(1))
    read(core)
    core.log.commit_to(1)
    core.step(request(1, b"ctx"))
    assert core.read_states == [ReadState(1, b"ctx")]


@pytest.mark.parametrize("option", list(ReadOnlyOption))
@pytest.mark.parametrize("change", [ChangeType.REMOVE_NODE, ChangeType.ADD_LEARNER_NODE])
@pytest.mark.parametrize("size", [2, 3])
def test_a_leader_that_votes_no_more_answers_nobody(
    change: int, option: ReadOnlyOption, size: int
) -> None:
    net = Net.of(size, read_only_option=option, check_quorum=option is ReadOnlyOption.LEASE_BASED)
    net.send(hup(1))
    core = net[1]
    early = [request(1, b"early"), forwarded(net, 2, b"early")]
    early[1].log_term = 0
    if option is ReadOnlyOption.SAFE:
        for each in early:
            core.step(each)
    membership.apply_conf_change(core, ConfChange(change, 1))
    assert core.role == LEADER
    core.step(request(1, b"late"))
    core.step(forwarded(net, 2, b"late"))
    net.send(*net.filter(read(core)))
    net.send(beat(1))
    assert [core.read_states, net[2].read_states] == [[], []]


def test_a_leader_that_leaves_a_joint_configuration_answers_until_it_has() -> None:
    net = Net.of(3)
    net.send(hup(1))
    leaving = ConfChangeV2(Transition.JOINT_EXPLICIT, (Change(ChangeType.REMOVE_NODE, 1),))
    for node in (1, 2, 3):
        membership.apply_conf_change(net[node], leaving)
    net.send(request(1, b"joint"))
    assert net[1].read_states == [ReadState(1, b"joint")]
    net[1].read_states = []
    membership.apply_conf_change(net[1], ConfChangeV2())
    net.send(request(1, b"left"))
    assert net[1].read_states == []


def test_a_leader_with_a_lease_answers_at_once() -> None:
    core = lead(
        new_core(1, (1, 2, 3), read_only_option=ReadOnlyOption.LEASE_BASED, check_quorum=True)
    )
    core.log.commit_to(1)
    read(core)
    core.step(request(1, b"ctx"))
    assert core.read_states == [ReadState(1, b"ctx")]
    assert read(core) == []


def test_reads_are_forwarded_to_the_leader_as_they_came() -> None:
    follower = new_core(2, (1, 2, 3))
    follower.step(request(2, b"ctx", sender=2))
    assert read(follower) == []
    assert lines_of(follower).lines[-1] == (
        "INFO 2 no leader at term 0; dropping index reading msg"
    )
    follower.become_follower(1, 1)
    follower.step(Message(READ_INDEX, to=2, entries=request(2, b"own").entries))
    follower.step(request(2, b"theirs", sender=3))
    own, theirs = read(follower)
    assert (own.to, own.sender, own.term) == (1, 2, 0)
    assert (theirs.to, theirs.sender, theirs.term) == (1, 3, 0)
    former = new_core(1, (1, 2, 3))
    former.become_follower(2, 3)
    former.step(own)
    former.step(theirs)
    assert [(each.to, each.sender) for each in read(former)] == [(3, 2), (3, 3)]


@pytest.mark.parametrize("count", [0, 2])
def test_an_answer_needs_one_entry(count: int) -> None:
    core = new_core(1, (1, 2))
    answer = Message(READ_INDEX_RESP, to=1, sender=2, index=3)
    answer.entries = [Entry(EntryType.NORMAL, 0, 0)] * count
    core.step(answer)
    assert core.read_states == []
    assert lines_of(core).lines[-1] == (
        f"ERROR 1 invalid format of MsgReadIndexResp from 2, entries count: {count}"
    )


def test_heartbeats_carry_the_newest_read_until_it_is_confirmed() -> None:
    core = lead(new_core(1, (1, 2, 3)))
    core.log.commit_to(1)
    read(core)
    core.step(beat(1))
    assert {message.context for message in read(core)} == {b""}
    core.step(request(1, b"a"))
    core.step(request(1, b"b"))
    read(core)
    core.step(beat(1))
    assert {message.context for message in read(core)} == {(2).to_bytes(8, "little")}


def test_read_numbers() -> None:
    reads = ReadOnly()
    assert reads.context() == b""
    requests = [request(1, b"%d" % number) for number in range(3)]
    for number, each in enumerate(requests):
        reads.add(each, number, node=1)
    assert reads.acknowledged == {1: 3}
    reads.acknowledge(2, 2)
    reads.acknowledge(2, 1)
    assert reads.acknowledged[2] == 2
    assert reads.confirm_up_to(2) == [(requests[0], 0), (requests[1], 1)]
    assert reads.confirm_up_to(2) == []
    assert reads.confirm_up_to(9) == [(requests[2], 2)]
    assert reads.context() == b""


def forwarded(net: Net, node: int, context: bytes) -> Message:
    """Let a follower forward a read, and hold it back."""
    net[node].step(request(node, context))
    (message,) = net[node].messages
    net[node].messages = []
    return message


@pytest.mark.parametrize(("size", "heartbeats"), [(2, 0), (3, 0), (4, 3), (5, 4)])
def test_a_follower_that_completes_the_quorum_is_answered_at_once(
    size: int, heartbeats: int
) -> None:
    net = Net.of(size)
    net.send(hup(1))
    net[1].step(forwarded(net, 2, b"ctx"))
    said = [message.type for message in net[1].messages]
    assert said == ([HEARTBEAT] * heartbeats or [READ_INDEX_RESP])
    net.send(*net.filter(read(net[1])))
    assert net[2].read_states == [ReadState(1, b"ctx")]


def test_a_learner_completes_no_quorum() -> None:
    net = Net([new_core(node, (1, 2), learners=(3,)) for node in (1, 2, 3)])
    net.send(hup(1))
    net[1].step(forwarded(net, 3, b"ctx"))
    assert [message.type for message in net[1].messages] == [HEARTBEAT] * 2


@pytest.mark.parametrize("term", [0, 1, 3])
def test_a_request_of_another_term_confirms_nothing(term: int) -> None:
    net = Net.of(3)
    net.send(hup(2))
    net.send(hup(1))
    assert (net[1].role, net[1].term) == (LEADER, 2)
    late = forwarded(net, 2, b"ctx")
    assert late.log_term == 2
    late.log_term = term
    net[1].step(late)
    assert [message.type for message in net[1].messages] == [HEARTBEAT] * 2


def test_a_late_request_confirms_no_read_but_its_own() -> None:
    net = Net.of(3)
    net.send(hup(1))
    late = forwarded(net, 2, b"late")
    # The others have another leader meanwhile, and write; a client asks the old one.
    net.isolate(1)
    net.send(hup(3))
    net.send(prop(3))
    assert net[3].log.committed > net[1].log.committed
    net[1].step(request(1, b"own"))
    net[1].step(late)
    assert net[1].read_states == []


def test_a_request_keeps_the_term_of_whoever_made_it() -> None:
    net = Net.of(3)
    net.send(hup(1))
    passed_on = request(2, b"ctx", sender=3)
    passed_on.log_term = 7
    net[2].step(passed_on)
    (message,) = net[2].messages
    assert (message.to, message.sender, message.log_term) == (1, 3, 7)
