"""Any message from outside is taken, ignored, or refused; only lost data stops a node.

Messages are wild: any type, any sender, terms and indexes near and absurd.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.raft.entries import Entry
from kvorum.raft.errors import FatalError, RaftError
from kvorum.raft.messages import ConfState, HardState, Message, MessageType, Snapshot
from kvorum.raft.rawnode import RawNode
from kvorum.raft.states import Role
from tests.raft.cores import StoredLog, new_raw_node, storage_of

numbers = st.one_of(st.integers(0, 9), st.sampled_from([1 << 32, (1 << 64) - 1]))
entries = st.builds(
    Entry,
    st.integers(0, 2),
    numbers,
    numbers,
    st.sampled_from([b"", b"x", b"\x0b", b"\x10\x00\x18\x04", b"\x10\x01\x18\x02"]),
)
runs = st.builds(
    lambda first, terms: [Entry(0, term, first + at) for at, term in enumerate(terms)],
    st.integers(0, 9),
    st.lists(st.integers(0, 5), max_size=4),
)
snapshots = st.builds(
    Snapshot,
    numbers,
    numbers,
    st.sampled_from([ConfState((1, 2, 3)), ConfState((2, 3)), ConfState((2,), (), (1, 2), (1,))]),
)
messages = st.builds(
    Message,
    st.integers(0, 23),
    st.just(1),
    st.sampled_from([0, 1, 2, 3, 4, 77]),
    numbers,
    numbers,
    numbers,
    st.one_of(st.just(()), runs, st.lists(entries, max_size=3)),
    numbers,
    numbers,
    st.none() | snapshots,
    st.booleans(),
    numbers,
    st.sampled_from([b"", b"ctx", bytes(8), b"\xff" * 8, b"CampaignTransfer"]),
)


def in_role(role: int, asynchronous: bool) -> RawNode:
    """A node with entries 1 to 4 of term 1, of which three are committed."""
    node = new_raw_node(
        1,
        (1, 2, 3),
        learners=(4,),
        storage=StoredLog(1, 1, 1, 1, hard_state=HardState(1, 0, 3)),
        applied=2,
        async_storage_writes=asynchronous,
        pre_vote=True,
    )
    core = node.raft
    if role == Role.PRE_CANDIDATE:
        core.become_pre_candidate()
    elif role != Role.FOLLOWER:
        core.become_candidate()
        if role == Role.LEADER:
            core.become_leader()
    return node


# The ways in which a message says that something was lost.
LOST = (
    "tocommit(",  # the leader believes that we have entries which we do not have
    "conflict with committed entry",  # what was committed is to be replaced
    "stepped empty MsgProp",
    "members have lost entries that were committed",
)


def work(node: RawNode, asynchronous: bool) -> None:
    while node.has_ready():
        ready = node.ready()
        if asynchronous:
            return
        storage = storage_of(node.raft)
        if ready.snapshot is not None:
            storage.apply_snapshot(ready.snapshot)
        storage.append(ready.entries)
        node.advance()


@pytest.mark.long
@given(
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.one_of(messages, st.just(None)), min_size=1, max_size=8),
)
def test_any_message(role: int, asynchronous: bool, given_messages: list[Message | None]) -> None:
    node = in_role(role, asynchronous)
    term, commit = node.raft.term, node.raft.log.committed
    for message in given_messages:
        try:
            if message is None:
                node.tick()
                work(node, asynchronous)
            else:
                node.step(message)
        except RaftError:
            pass
        except FatalError as error:
            assert any(text in str(error) for text in LOST), str(error)  # noqa: PT017
            return
        log = node.raft.log
        assert node.raft.term >= term
        assert log.committed >= commit
        assert log.applied <= log.applying <= log.committed <= log.last_index()
        for peer in node.raft.tracker.progress.values():
            assert peer.match < peer.next
        term, commit = node.raft.term, log.committed


def test_a_removed_node_is_answered_politely() -> None:
    node = in_role(Role.LEADER, asynchronous=False)
    work(node, asynchronous=False)
    before = node.status().progress
    # Proposals and reads are taken from anyone: their sender may be behind, or ahead.
    for kind in set(range(24)) - {MessageType.PROP, MessageType.READ_INDEX}:
        message = Message(kind, to=1, sender=77, term=node.raft.term, entries=[Entry(0, 0, 0)])
        try:
            node.step(message)
        except RaftError as error:
            assert str(error).startswith("raft")  # noqa: PT017
    assert node.raft.role == Role.LEADER
    assert {node: str(peer) for node, peer in node.status().progress.items()} == {
        node: str(peer) for node, peer in before.items()
    }


@pytest.mark.parametrize("role", range(4))
@pytest.mark.parametrize(
    "message",
    [
        Message(MessageType.APP, to=1, sender=2),
        Message(MessageType.HEARTBEAT, to=1, sender=1, term=2),
        Message(MessageType.APP_RESP, to=1, sender=1, term=2, index=4, reject=True),
        Message(MessageType.HEARTBEAT_RESP, to=1, sender=1, term=2),
        Message(MessageType.VOTE, to=1, sender=1, term=9, index=9, log_term=9),
    ],
)
def test_impossible_messages_change_nothing(role: int, message: Message) -> None:
    node = in_role(role, asynchronous=False)
    if node.raft.term < 2:
        node.raft.term = 2
    work(node, asynchronous=False)
    before = node.basic_status()
    node.step(message)
    assert node.basic_status() == before
    assert node.raft.messages == []


@pytest.mark.parametrize("role", range(4))
def test_a_higher_term_is_followed(role: int) -> None:
    node = in_role(role, asynchronous=False)
    node.step(Message(8, to=1, sender=2, term=1 << 40))
    assert (node.raft.term, node.raft.role, node.raft.lead) == (1 << 40, Role.FOLLOWER, 2)
