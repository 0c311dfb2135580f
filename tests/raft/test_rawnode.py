"""RawNode: the contract of Ready and advance, restarts, limits, and asynchronous writes."""

import gc
from dataclasses import replace
from typing import Any

import pytest

from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2, Transition
from kvorum.raft.entries import NO_LIMIT, Entry, EntryType, encoded_size
from kvorum.raft.errors import (
    BootstrapError,
    FatalError,
    LocalMessageError,
    PeerNotFoundError,
    ProposalDroppedError,
    RaftError,
)
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    IS_LOCAL,
    IS_RESPONSE,
    MESSAGE_TYPES,
    ConfState,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.rawnode import RawNode
from kvorum.raft.ready import Ready
from kvorum.raft.states import ReadState, Role
from kvorum.raft.wire import decode_conf_change, encode_conf_change
from tests.raft.cores import StoredLog, entries, new_config, new_core, new_raw_node, storage_of


def persist(node: RawNode, ready: Ready) -> None:
    storage = storage_of(node.raft)
    if ready.snapshot is not None:
        storage.apply_snapshot(ready.snapshot)
    if ready.hard_state is not None:
        storage.set_hard_state(ready.hard_state)
    storage.append(ready.entries)


def do(node: RawNode) -> Ready:
    """Do what one Ready asks for, but for applying changes of the membership."""
    ready = node.ready()
    persist(node, ready)
    node.advance()
    return ready


def settle(node: RawNode) -> list[Entry]:
    """Do everything, applying changes too; return what was applied."""
    applied: list[Entry] = []
    while node.has_ready():
        ready = node.ready()
        persist(node, ready)
        for entry in ready.committed_entries:
            applied.append(entry)
            if entry.type != EntryType.NORMAL:
                node.apply_conf_change(decode_conf_change(entry))
        node.advance()
    return applied


def single_leader(**options: Any) -> RawNode:
    storage = StoredLog(snapshot=Snapshot(1, 1, ConfState((1,))))
    node = RawNode(new_config(1, storage, **options))
    node.campaign()
    settle(node)
    assert node.raft.role == Role.LEADER
    return node


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_step(kind: int) -> None:
    storage = StoredLog(snapshot=Snapshot(1, 1, ConfState((1,))))
    node = RawNode(new_config(1, storage))
    if IS_LOCAL[kind]:
        with pytest.raises(LocalMessageError, match="raft: cannot step raft local message"):
            node.step(Message(kind))
    elif IS_RESPONSE[kind]:
        with pytest.raises(PeerNotFoundError, match="raft: cannot step as peer not found"):
            node.step(Message(kind))
    elif kind == MessageType.PROP:
        with pytest.raises(ProposalDroppedError, match="raft proposal dropped"):
            node.step(Message(kind))
    else:
        node.step(Message(kind))


def test_which_messages_are_local_and_which_responses() -> None:
    local = [kind for kind in MESSAGE_TYPES if IS_LOCAL[kind]]
    response = [kind for kind in MESSAGE_TYPES if IS_RESPONSE[kind]]
    assert local == [0, 1, 10, 11, 12, 19, 20, 21, 22]
    assert response == [4, 6, 9, 10, 16, 18, 20, 22]


ADD_2 = Change(ChangeType.ADD_NODE, 2)
LEARN_2 = Change(ChangeType.ADD_LEARNER_NODE, 2)
MANY = (ADD_2, Change(ChangeType.ADD_LEARNER_NODE, 1), Change(ChangeType.ADD_LEARNER_NODE, 3))
IMPLICIT, EXPLICIT = Transition.JOINT_IMPLICIT, Transition.JOINT_EXPLICIT


@pytest.mark.parametrize(
    ("change", "state", "final"),
    [
        (ConfChange(*ADD_2), ConfState((1, 2)), None),
        (ConfChangeV2(changes=(ADD_2,)), ConfState((1, 2)), None),
        (ConfChangeV2(changes=(LEARN_2,)), ConfState((1,), (2,)), None),
        (
            ConfChangeV2(EXPLICIT, (LEARN_2,)),
            ConfState((1,), (2,), (1,)),
            ConfState((1,), (2,)),
        ),
        (
            ConfChangeV2(IMPLICIT, (LEARN_2,)),
            ConfState((1,), (2,), (1,), auto_leave=True),
            ConfState((1,), (2,)),
        ),
        (
            ConfChangeV2(changes=MANY),
            ConfState((2,), (3,), (1,), (1,), True),
            ConfState((2,), (1, 3)),
        ),
        (
            ConfChangeV2(EXPLICIT, MANY),
            ConfState((2,), (3,), (1,), (1,)),
            ConfState((2,), (1, 3)),
        ),
        (
            ConfChangeV2(IMPLICIT, MANY),
            ConfState((2,), (3,), (1,), (1,), True),
            ConfState((2,), (1, 3)),
        ),
    ],
)
def test_propose_and_conf_change(
    change: ConfChange | ConfChangeV2, state: ConfState, final: ConfState | None
) -> None:
    node = single_leader()
    node.propose(b"somedata")
    node.propose_conf_change(change)
    do(node)
    storage = storage_of(node.raft)
    last = storage.last_index()
    kind, data = encode_conf_change(change)
    stored = storage.entries(last - 1, last + 1, NO_LIMIT)
    assert [(each.type, each.data) for each in stored] == [(0, b"somedata"), (kind, data)]
    ready = node.ready()
    assert ready.committed_entries[-1] == stored[-1]
    persist(node, ready)
    assert node.apply_conf_change(change) == state
    node.advance()
    assert node.raft.pending_conf_index == last + (1 if state.auto_leave else 0)
    ready = node.ready()
    if state.auto_leave:
        assert [(each.type, each.data) for each in ready.entries] == [(2, b"")]
        leave: ConfChangeV2 = ConfChangeV2()
    else:
        assert ready.entries == []
        if final is None:
            return
        persist(node, ready)
        node.advance()
        leave = ConfChangeV2(context=b"manual")
        node.propose_conf_change(leave)
        ready = node.ready()
        assert [each.data for each in ready.entries] == [encode_conf_change(leave)[1]]
    assert node.apply_conf_change(leave) == final


def test_a_new_leader_leaves_a_joint_configuration() -> None:
    node = single_leader()
    change = ConfChangeV2(IMPLICIT, (LEARN_2,))
    node.propose_conf_change(change)
    do(node)
    ready = node.ready()
    persist(node, ready)
    # Before the change is applied the node loses its leadership.
    node.raft.step(Message(MessageType.HEARTBEAT_RESP, to=1, sender=1, term=node.raft.term + 1))
    assert node.apply_conf_change(change).auto_leave
    node.advance()
    assert (node.raft.role, node.raft.pending_conf_index) == (Role.FOLLOWER, 0)
    assert do(node).entries == []
    node.campaign()
    for _ in range(3):
        do(node)
    ready = node.ready()
    assert [(each.type, each.data) for each in ready.entries] == [(2, b"")]
    assert node.apply_conf_change(ConfChangeV2()) == ConfState((1,), (2,))


def test_the_same_change_again() -> None:
    node = single_leader()
    changes = [ConfChange(ChangeType.ADD_NODE, each) for each in (1, 1, 2)]
    for change in changes:
        node.propose_conf_change(change)
        settle(node)
    storage = storage_of(node.raft)
    last = storage.last_index()
    data = [entry.data for entry in storage.entries(last - 2, last + 1, NO_LIMIT)]
    assert data == [encode_conf_change(change)[1] for change in changes]


def test_read_states_are_handed_out_once() -> None:
    node = single_leader()
    node.raft.read_states = [ReadState(1, b"somedata")]
    assert node.has_ready()
    assert do(node).read_states == [ReadState(1, b"somedata")]
    assert node.raft.read_states == []
    assert not node.has_ready()
    node.read_index(b"ctx")
    assert do(node).read_states == [ReadState(node.raft.log.committed, b"ctx")]


def test_start() -> None:
    node = RawNode(new_config(1, StoredLog(snapshot=Snapshot(1, 0, ConfState((1,))))))
    assert not node.has_ready()
    node.campaign()
    do(node)
    node.propose(b"foo")
    ready = do(node)
    expected = [Entry(0, 1, 2), Entry(0, 1, 3, b"foo")]
    assert (ready.entries, ready.must_sync) == (expected, True)
    ready = do(node)
    assert (ready.entries, ready.must_sync) == ([], False)
    assert ready.hard_state == HardState(1, 1, 3)
    assert ready.committed_entries == expected
    assert not node.has_ready()


def test_restart() -> None:
    storage = StoredLog(1, 1, hard_state=HardState(1, 0, 1))
    node = new_raw_node(1, storage=storage)
    ready = do(node)
    assert ready.committed_entries == entries(1, 1)
    assert (ready.hard_state, ready.must_sync) == (None, False)
    assert not node.has_ready()


def test_restart_from_a_snapshot() -> None:
    storage = StoredLog(
        1, snapshot=Snapshot(2, 1, ConfState((1, 2))), hard_state=HardState(1, 0, 3)
    )
    node = RawNode(new_config(1, storage))
    assert do(node).committed_entries == entries(3, 1)
    assert not node.has_ready()


def test_status() -> None:
    node = new_raw_node(1)
    assert node.status().progress == {}
    node.campaign()
    settle(node)
    status = node.status()
    assert (status.soft_state.lead, status.soft_state.role) == (1, Role.LEADER)
    assert list(status.progress) == [1]
    assert str(status.config) == "voters=(1)"
    assert node.basic_status().hard_state == status.hard_state


def test_committed_entries_have_no_gap_after_a_restart() -> None:
    class Generous(StoredLog):
        """Gives more than was asked for, as storages did that wrote the commit."""

        def entries(self, low: int, high: int, _size_max: int) -> list[Entry]:
            return super().entries(low, high, NO_LIMIT)

    storage = Generous(hard_state=HardState(1, 0, 10))
    log = [Entry(0, 1, index, b"a") for index in range(1, 11)]
    storage.append([*log, Entry(0, 1, 11, b"boom")])
    node = new_raw_node(1, storage=storage, message_size_max=encoded_size(log) - log[-1].size - 1)
    highest = 0
    while highest < 11:
        ready = node.ready()
        handed_out = [entry.index for entry in ready.committed_entries]
        assert handed_out == list(range(highest + 1, highest + 1 + len(handed_out)))
        assert handed_out, "an empty batch"
        if ready.hard_state is not None:
            assert ready.hard_state.commit >= 10
        highest = handed_out[-1]
        node.advance()
        node.step(Message(MessageType.HEARTBEAT, to=1, sender=2, term=1, commit=11))


def test_the_log_does_not_grow_without_a_quorum() -> None:
    node = new_raw_node(1, uncommitted_size_max=16 * 8)
    node.campaign()
    settle(node)
    dropped = 0
    for _ in range(1024):
        try:
            node.propose(b"testdata")
        except ProposalDroppedError:
            dropped += 1
    assert (node.raft.uncommitted_size, dropped) == (128, 1024 - 16)
    assert len(do(node).entries) == 16
    assert node.raft.uncommitted_size == 128
    assert len(do(node).committed_entries) == 16
    assert node.raft.uncommitted_size == 0


def test_looking_at_a_ready_does_not_take_it() -> None:
    node = new_raw_node(1, (1, 2))
    node.raft.messages.append(Message(MessageType.APP, to=2, sender=1))
    assert node.peek_ready().messages == node.raft.messages
    assert len(node.raft.messages) == 1
    ready = node.ready()
    assert (len(ready.messages), node.raft.messages) == (1, [])
    node.raft.messages.append(Message(MessageType.HEARTBEAT, to=2, sender=1))
    node.advance()
    assert [message.type for message in node.raft.messages] == [MessageType.HEARTBEAT]


def test_a_ready_must_be_advanced_before_the_next() -> None:
    node = new_raw_node(1)
    node.campaign()
    node.ready()
    with pytest.raises(FatalError, match="two accepted Ready structs without call to Advance"):
        node.ready()


def test_nothing_is_advanced_with_asynchronous_writes() -> None:
    node = new_raw_node(1, async_storage_writes=True)
    with pytest.raises(FatalError, match="Advance must not be called when using AsyncStorage"):
        node.advance()


def test_committed_entries_are_paginated() -> None:
    node = single_leader(committed_size_max=2048)
    for _ in range(3):
        node.propose(bytes(1000))
    assert len(do(node).entries) == 3
    assert [len(do(node).committed_entries) for _ in range(2)] == [2, 1]


def finish(node: RawNode, message: Message) -> list[Message]:
    """Do the work of a storage thread; return the messages that go to peers."""
    storage = storage_of(node.raft)
    if message.type == MessageType.STORAGE_APPEND:
        if message.snapshot is not None:
            storage.apply_snapshot(message.snapshot)
        storage.append(message.entries)
    for response in message.responses:
        if response.to == node.raft.id:
            node.step(response)
    return [response for response in message.responses if response.to != node.raft.id]


def test_asynchronous_commits_are_paginated() -> None:
    storage = StoredLog(snapshot=Snapshot(1, 1, ConfState((1,))))
    node = RawNode(new_config(1, storage, async_storage_writes=True, committed_size_max=2048))
    node.campaign()
    while node.has_ready():
        for message in node.ready().messages:
            finish(node, message)
    applying: list[Message] = []

    def pump() -> None:
        while node.has_ready():
            for message in node.ready().messages:
                if message.to == APPLY_THREAD:
                    applying.append(message)
                else:
                    finish(node, message)

    for _ in range(3):
        node.propose(bytes(1024))
        pump()
    # The first two fill the limit; the third waits until one of them was applied.
    assert [len(message.entries) for message in applying] == [1, 1]
    finish(node, applying[0])
    pump()
    assert [len(message.entries) for message in applying] == [1, 1, 1]


def test_bootstrap() -> None:
    node = RawNode(new_config(1, StoredLog()))
    with pytest.raises(BootstrapError, match="must provide at least one peer to Bootstrap"):
        node.bootstrap([])
    node.bootstrap([(1, b"one"), (2, b"two")])
    ready = node.ready()
    assert ready.hard_state == HardState(1, 0, 2)
    changes = [decode_conf_change(entry) for entry in ready.entries]
    assert changes == [ConfChange(0, 1, b"one"), ConfChange(0, 2, b"two")]
    assert ready.committed_entries == ready.entries
    assert ready.must_sync
    assert node.raft.log.applied == 0
    stored = new_raw_node(1, storage=StoredLog(1))
    with pytest.raises(BootstrapError, match="can't bootstrap a nonempty Storage"):
        stored.bootstrap([(1, b"")])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": 0}, "cannot use none as id"),
        ({"id": APPEND_THREAD}, "cannot use local target as id"),
        ({"id": APPLY_THREAD}, "cannot use local target as id"),
        ({"heartbeat_ticks": 0}, "heartbeat tick must be greater than 0"),
        ({"election_ticks": 1}, "election tick must be greater than heartbeat tick"),
        ({"storage": None}, "storage cannot be nil"),
        ({"inflight_messages_max": 0}, "max inflight messages must be greater than 0"),
        (
            {"inflight_bytes_max": 10, "message_size_max": 11},
            "max inflight bytes must be >= max message size",
        ),
        ({"message_size_max": 0}, "nothing could ever be applied"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(new_config(1, StoredLog()), **options).validate()


def test_lease_reads_need_the_check_of_the_quorum() -> None:
    from kvorum.raft.config import ReadOnlyOption

    option = ReadOnlyOption.LEASE_BASED
    with pytest.raises(ValueError, match="CheckQuorum must be enabled when ReadOnlyOption is"):
        new_config(1, StoredLog(), read_only_option=option).validate()
    new_config(1, StoredLog(), read_only_option=option, check_quorum=True).validate()


def test_what_the_protocol_ignores_never_raises() -> None:
    """Reports and requests about nodes that do not exist, on a follower and on a leader."""
    for node in (new_raw_node(1, (1, 2)), single_leader()):
        before = node.basic_status()
        node.report_unreachable(77)
        node.report_snapshot(77, failed=True)
        node.transfer_leader(77)
        node.read_index(b"")
        node.forget_leader()
        assert node.basic_status() == before


def test_batches_are_proposed_at_once() -> None:
    node = single_leader()
    node.propose_batch([b"a", b"b", b"c"])
    assert [entry.data for entry in do(node).entries] == [b"a", b"b", b"c"]
    follower = new_raw_node(2, (1, 2))
    with pytest.raises(ProposalDroppedError):
        follower.propose_batch([b"a"])
    follower.raft.become_follower(1, 1)
    follower.propose_batch([b"a", b"b"])
    (forwarded,) = follower.ready().messages
    assert (forwarded.type, forwarded.to, forwarded.sender, forwarded.term) == (2, 1, 2, 0)
    assert [entry.data for entry in forwarded.entries] == [b"a", b"b"]


def test_nothing_that_is_dropped_holds_a_cycle() -> None:
    """The server runs without the cyclic collector, so nothing may be left for it."""
    node = single_leader()
    gc.collect()
    gc.disable()
    try:
        for number in range(50):
            node.propose(b"data")
            node.read_index(b"ctx")
            node.transfer_leader(1)
            settle(node)
            if number == 25:
                node.raft.become_follower(node.raft.term, 0)
                with pytest.raises(ProposalDroppedError):
                    node.propose(b"dropped")
                node.campaign()
                settle(node)
        storage_of(node.raft).compact(node.raft.log.applied)
        assert gc.collect() <= 20, "of the test's own exception"
    finally:
        gc.enable()


def test_errors_have_their_texts() -> None:
    for kind in RaftError.__subclasses__():
        assert str(kind()) == kind.text
    core = new_core(1)
    with pytest.raises(FatalError, match="over"):
        core.stop("over")
