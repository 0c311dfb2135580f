"""Proposals, appends, acknowledgements, rejections, and what they commit."""

import pytest

from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.errors import FatalError, ProposalDroppedError
from kvorum.raft.messages import HardState, Message, MessageType, Snapshot
from kvorum.raft.replication import maybe_commit
from tests.raft.cores import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    Net,
    StoredLog,
    all_entries,
    beat,
    entries,
    flush,
    hup,
    lead,
    lines_of,
    new_core,
    next_entries,
    prop,
    propose,
    read,
    terms,
    tick_through,
)

APP, APP_RESP = MessageType.APP, MessageType.APP_RESP
HEARTBEAT, HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP


def data_of(core: Raft) -> list[bytes]:
    return [entry.data for entry in all_entries(core)]


def test_log_replication() -> None:
    net = Net.of(3)
    net.send(hup(1))
    net.send(prop(1))
    assert [net[node].log.committed for node in net.cores] == [2, 2, 2]
    net.send(hup(2))
    net.send(prop(2, b"more"))
    for node in net.cores:
        assert net[node].log.committed == 4
        applied = [entry.data for entry in next_entries(net[node]) if entry.data]
        assert applied == [b"somedata", b"more"]


def test_a_learner_gets_the_log() -> None:
    net = Net([new_core(node, (1,), learners=(2,)) for node in (1, 2)])
    tick_through(net[1])
    net.send(*net.filter(read(net[1])))
    net.send(beat(1))
    net.send(prop(1))
    assert (net[1].log.committed, net[2].log.committed) == (2, 2)
    assert net[1].tracker.progress[2].match == 2


def test_one_node_commits_alone() -> None:
    net = Net.of(1)
    net.send(hup(1))
    net.send(prop(1))
    net.send(prop(1))
    assert net[1].log.committed == 3


@pytest.mark.parametrize("new_term_entry", [False, True])
def test_entries_of_an_old_term_wait_for_one_of_the_new(new_term_entry: bool) -> None:
    net = Net.of(5)
    net.send(hup(1))
    for node in (3, 4, 5):
        net.cut(1, node)
    net.send(prop(1))
    net.send(prop(1))
    assert net[1].log.committed == 1
    net.recover()
    if new_term_entry:
        net.send(hup(2))
        assert net[1].log.committed == 4
        return
    net.ignored.add(APP)
    net.send(hup(2))
    assert net[2].log.committed == 1
    net.recover()
    net.send(beat(2))
    net.send(prop(2))
    assert net[2].log.committed == 5


@pytest.mark.parametrize(
    ("places", "taken"),
    [("...", True), ("..X", True), (".XX", False), (".XX.", False), (".XX..", True)],
)
def test_proposal(places: str, taken: bool) -> None:
    net = Net([None if place == "X" else new_core(1, ()) for place in places])
    net.send(hup(1))
    net.send(prop(1))
    for core in net.cores.values():
        if core is not None:
            assert data_of(core) == ([b"", b"somedata"] if taken else [])
    assert net[1].term == 1


@pytest.mark.parametrize("places", ["...", "..X"])
def test_proposal_by_way_of_a_follower(places: str) -> None:
    net = Net([None if place == "X" else new_core(1, ()) for place in places])
    net.send(hup(1))
    net.send(prop(2))
    for core in net.cores.values():
        if core is not None:
            assert (data_of(core), core.term) == ([b"", b"somedata"], 1)


@pytest.mark.parametrize(
    ("matches", "log", "term", "committed"),
    [
        ((1,), (1,), 1, 1),
        ((1,), (1,), 2, 0),
        ((2,), (1, 2), 2, 2),
        ((1,), (2,), 2, 1),
        ((2, 1, 1), (1, 2), 1, 1),
        ((2, 1, 1), (1, 1), 2, 0),
        ((2, 1, 2), (1, 2), 2, 2),
        ((2, 1, 2), (1, 1), 2, 0),
        ((2, 1, 1, 1), (1, 2), 1, 1),
        ((2, 1, 1, 1), (1, 1), 2, 0),
        ((2, 1, 1, 2), (1, 2), 1, 1),
        ((2, 1, 1, 2), (1, 1), 2, 0),
        ((2, 1, 2, 2), (1, 2), 2, 2),
        ((2, 1, 2, 2), (1, 1), 2, 0),
    ],
)
def test_commit(matches: tuple[int, ...], log: tuple[int, ...], term: int, committed: int) -> None:
    nodes = tuple(range(1, len(matches) + 1))
    core = new_core(1, nodes, storage=StoredLog(*log, hard_state=HardState(term, 0, 0)))
    for node, match in zip(nodes, matches, strict=True):
        core.tracker.progress[node].match = match
    maybe_commit(core)
    assert core.log.committed == committed


@pytest.mark.parametrize(
    ("log_term", "index", "commit", "first", "new", "last", "committed", "reject"),
    [
        (3, 2, 3, 3, (), 2, 0, True),
        (3, 3, 3, 4, (), 2, 0, True),
        (1, 1, 1, 2, (), 2, 1, False),
        (0, 0, 1, 1, (2,), 1, 1, False),
        (2, 2, 3, 3, (2, 2), 4, 3, False),
        (2, 2, 4, 3, (2,), 3, 3, False),
        (1, 1, 4, 2, (2,), 2, 2, False),
        (1, 1, 3, 2, (), 2, 1, False),
        (1, 1, 3, 2, (2,), 2, 2, False),
        (2, 2, 3, 3, (), 2, 2, False),
        (2, 2, 4, 3, (), 2, 2, False),
    ],
)
def test_append(
    log_term: int,
    index: int,
    commit: int,
    first: int,
    new: tuple[int, ...],
    last: int,
    committed: int,
    reject: bool,
) -> None:
    core = new_core(1, (1,), storage=StoredLog(1, 2))
    core.become_follower(2, 0)
    core.step(
        Message(
            APP,
            sender=2,
            term=2,
            log_term=log_term,
            index=index,
            commit=commit,
            entries=entries(first, *new),
        )
    )
    assert (core.log.last_index(), core.log.committed) == (last, committed)
    (answer,) = read(core)
    assert answer.reject is reject


@pytest.mark.parametrize(("commit", "committed"), [(3, 3), (1, 2)])
def test_heartbeat(commit: int, committed: int) -> None:
    core = new_core(1, (1, 2), storage=StoredLog(1, 2, 3))
    core.become_follower(2, 2)
    core.log.commit_to(2)
    core.step(Message(HEARTBEAT, to=1, sender=2, term=2, commit=commit, context=b"ctx"))
    assert core.log.committed == committed
    (answer,) = read(core)
    assert (answer.type, answer.context) == (HEARTBEAT_RESP, b"ctx")


def test_a_heartbeat_that_commits_what_is_not_there_stops_the_node() -> None:
    core = new_core(1, (1, 2), storage=StoredLog(1))
    with pytest.raises(FatalError, match=r"tocommit\(7\) is out of range \[lastIndex\(1\)\]"):
        core.step(Message(HEARTBEAT, to=1, sender=2, term=1, commit=7))
    assert lines_of(core).lines[-1].startswith("FATAL tocommit(7)")


def test_heartbeat_response() -> None:
    core = lead(new_core(1, (1, 2), storage=StoredLog(1, 2, 3)))
    core.log.commit_to(core.log.last_index())
    for _ in range(2):
        core.step(Message(HEARTBEAT_RESP, to=1, sender=2))
        (sent,) = read(core)
        assert sent.type == APP
    acknowledged = sent.index + len(sent.entries)
    core.step(Message(APP_RESP, to=1, sender=2, index=acknowledged))
    read(core)
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2))
    assert read(core) == []


@pytest.mark.parametrize(
    ("index", "reject", "match", "next_index", "sent"),
    [
        (3, True, 0, 3, []),
        (2, True, 0, 2, [(1, 0)]),
        (2, False, 2, 4, [(2, 2), (2, 2)]),
        (0, False, 0, 4, [(0, 0)]),
    ],
)
def test_append_response(
    index: int, reject: bool, match: int, next_index: int, sent: list[tuple[int, int]]
) -> None:
    core = lead(new_core(1, (1, 2, 3), storage=StoredLog(1, 1)))
    read(core)
    core.tracker.progress[2].next = 3
    core.step(
        Message(
            APP_RESP,
            to=1,
            sender=2,
            term=core.term,
            index=index,
            reject=reject,
            reject_hint=index,
        )
    )
    peer = core.tracker.progress[2]
    assert (peer.match, peer.next) == (match, next_index)
    assert [(each.index, each.commit) for each in read(core)] == sent


def test_heartbeats_never_commit_more_than_the_peer_has() -> None:
    core = new_core(1, (1, 2, 3), storage=StoredLog(snapshot=Snapshot(1000, 1)))
    core.term = 1
    lead(core)
    for _ in range(10):
        propose(core)
    flush(core)
    last = core.log.last_index()
    core.tracker.progress[2].match, core.tracker.progress[2].next = 5, 6
    core.tracker.progress[3].match, core.tracker.progress[3].next = last, last + 1
    core.messages.clear()
    core.step(beat(1))
    sent = read(core)
    assert [(each.type, each.to) for each in sent] == [(HEARTBEAT, 2), (HEARTBEAT, 3)]
    assert [each.commit for each in sent] == [5, min(core.log.committed, last)]
    assert all((each.index, each.log_term, each.entries) == (0, 0, ()) for each in sent)


@pytest.mark.parametrize(("role", "count"), [(LEADER, 2), (CANDIDATE, 0), (FOLLOWER, 0)])
def test_only_a_leader_sends_heartbeats(role: int, count: int) -> None:
    core = new_core(1, (1, 2, 3), storage=StoredLog(1, 1))
    core.term, core.role = 1, role
    core.step(beat(1))
    sent = read(core)
    assert [each.type for each in sent] == [HEARTBEAT] * count


@pytest.mark.parametrize(
    ("leader_log", "follower_log", "compacted", "rejection", "resent"),
    [
        ((1, 2, 2, 4, 4, 4, 4), (1, 2, 2, *[3] * 8), 0, (3, 7), (2, 3)),
        ((1, 2, 2, 3, 4, 4, 4, 5), (1, 2, 2, *[3] * 8), 0, (3, 8), (3, 4)),
        ((1, 1, 1, 1), (1, 2, 2, 4), 0, (1, 1), (1, 1)),
        ((1, 1, 1, 1, 1, 1), (1, 2, 2, 4), 0, (1, 1), (1, 1)),
        ((1, 1, 1, 1), (1, 2, 2, 4, 4, 4), 0, (1, 1), (1, 1)),
        ((1, 1, 1, 4, 5), (1, 1, 1, 4), 0, (4, 4), (4, 4)),
        ((2, *[5] * 8), (2, *[4] * 5), 0, (4, 6), (2, 1)),
        ((2, 2, 2, 2, 2), (2, *[4] * 7), 0, (2, 1), (2, 1)),
        ((1, 1, 3), (1, 1, 3, 3, 3), 5, (0, 3), (1, 2)),
    ],
)
def test_fast_rejection(
    leader_log: tuple[int, ...],
    follower_log: tuple[int, ...],
    compacted: int,
    rejection: tuple[int, int],
    resent: tuple[int, int],
) -> None:
    state = HardState(leader_log[-1] - 1, 0, len(leader_log))
    leader = lead(new_core(1, (1, 2, 3), storage=StoredLog(*leader_log, hard_state=state)))
    state = HardState(leader_log[-1], 1, 0)
    storage = StoredLog(*follower_log, hard_state=state)
    follower = new_core(2, (1, 2, 3), storage=storage)
    if compacted:
        storage.compact(compacted)
    leader.messages.clear()
    leader.messages_after_append.clear()
    leader.step(Message(HEARTBEAT_RESP, to=1, sender=2))
    (append,) = leader.messages
    leader.messages = []
    append.term = max(append.term, follower.term)
    follower.step(append)
    (answer,) = read(follower)
    assert (answer.reject, (answer.log_term, answer.reject_hint)) == (True, rejection)
    answer.term = leader.term
    leader.step(answer)
    (append,) = leader.messages
    assert (append.log_term, append.index) == resent


def test_a_conf_change_may_commit_what_waited() -> None:
    core = lead(new_core(1, (1, 2), election_ticks=5))
    change = Entry(EntryType.CONF_CHANGE, 0, 0, b"\x10\x01\x18\x02")
    core.step(Message(MessageType.PROP, to=1, sender=1, entries=[change]))
    assert next_entries(core) == []
    index = core.log.last_index()
    propose(core, b"hello")
    core.step(Message(APP_RESP, to=1, sender=2, index=index))
    applied = next_entries(core)
    assert [(entry.type, entry.data) for entry in applied] == [(0, b""), (1, change.data)]
    from kvorum.raft import membership, wire

    membership.apply_conf_change(core, wire.decode_conf_change(applied[1]))
    assert [entry.data for entry in next_entries(core)] == [b"hello"]


def test_reordered_messages() -> None:
    leader, follower = (new_core(node, (1, 2)) for node in (1, 2))
    lead(leader)
    leader.log.committed = 0
    read(leader)
    leader.tracker.progress[2].become_replicate()
    leader.tracker.progress[2].next = 2
    follower.become_follower(1, 1)
    follower.log.append(entries(1, 1))
    propose(leader)
    propose(leader)
    first, second = read(leader)
    follower.step(second)
    (rejection,) = read(follower)
    assert (rejection.reject, rejection.index, rejection.reject_hint) == (True, 2, 1)
    follower.step(first)
    (acknowledgement,) = read(follower)
    assert (acknowledgement.reject, acknowledgement.index) == (False, 2)
    leader.step(acknowledgement)
    assert leader.tracker.progress[2].match == 2
    assert len(read(leader)) == 1
    leader.step(Message(MessageType.UNREACHABLE, to=1, sender=2))
    peer = leader.tracker.progress[2]
    assert peer.next == 3
    leader.step(rejection)
    (resent,) = read(leader)
    assert resent.index == peer.match == 2


def test_an_acknowledgement_beyond_the_log_is_ignored() -> None:
    core = lead(new_core(1, (1, 2, 3)))
    read(core)
    core.step(Message(APP_RESP, to=1, sender=2, term=1, index=99))
    assert core.tracker.progress[2].match == 0
    assert lines_of(core).lines[-1] == (
        "ERROR 1 ignored MsgAppResp from 2 for index 99, behind the last index 1: 2 holds entries "
        "that this leader lacks, and cannot follow it. Was a member's data directory replaced "
        "by an older copy?"
    )


@pytest.mark.parametrize("indexes", [[3], [2, 4], [1, 2]])
def test_entries_that_do_not_follow_their_message_are_ignored(indexes: list[int]) -> None:
    core = new_core(1, (1, 2), storage=StoredLog(1))
    new = [Entry(EntryType.NORMAL, 1, index) for index in indexes]
    core.step(Message(APP, to=1, sender=2, term=1, log_term=1, index=1, entries=new))
    assert terms(core) == [1]
    assert read(core) == []
    assert lines_of(core).lines[-1].startswith("ERROR 1 ignored MsgApp from 2: ")


def test_an_empty_proposal_stops_the_node() -> None:
    core = lead(new_core(1))
    with pytest.raises(FatalError, match="1 stepped empty MsgProp"):
        core.step(Message(MessageType.PROP, to=1, sender=1))


def test_a_change_that_cannot_be_read_is_dropped() -> None:
    core = lead(new_core(1))
    broken = Entry(EntryType.CONF_CHANGE_V2, 0, 0, b"\x0b")
    with pytest.raises(ProposalDroppedError):
        core.step(Message(MessageType.PROP, to=1, sender=1, entries=[broken]))
    assert core.log.last_index() == 1


def test_a_message_of_an_unknown_peer_is_ignored() -> None:
    core = lead(new_core(1, (1, 2)))
    for kind in (APP_RESP, HEARTBEAT_RESP, MessageType.TRANSFER_LEADER):
        core.step(Message(kind, to=1, sender=9, term=1))
        assert lines_of(core).lines[-1] == "DEBUG 1 no progress available for 9"


def test_sending_follows_its_rules() -> None:
    core = lead(new_core(1, (1, 2)))
    with pytest.raises(FatalError, match="term should be set when sending MsgVote"):
        core.send(Message(MessageType.VOTE, to=2))
    with pytest.raises(FatalError, match=r"term should not be set when sending MsgApp \(was 3\)"):
        core.send(Message(APP, to=2, term=3))
    with pytest.raises(FatalError, match="message should not be self-addressed when sending"):
        core.send(Message(APP, to=1))


def test_a_commit_that_storage_does_not_have_stops_the_start() -> None:
    with pytest.raises(FatalError, match=r"1 state.commit 5 is out of range \[0, 2\]"):
        new_core(1, storage=StoredLog(1, 1, hard_state=HardState(1, 0, 5)))
