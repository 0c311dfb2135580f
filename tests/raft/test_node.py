"""Node: queues around a RawNode, driven by a loop of the embedder's."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.errors import (
    BootstrapError,
    BusyError,
    FatalError,
    ProposalDroppedError,
    RaftError,
    StoppedError,
)
from kvorum.raft.messages import (
    IS_LOCAL,
    MESSAGE_TYPES,
    ConfState,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.node import (
    MESSAGES_MAX,
    PROPOSALS_MAX,
    TICKS_MAX,
    Node,
    restart_node,
    start_node,
)
from kvorum.raft.ready import Ready
from kvorum.raft.status import Status
from kvorum.raft.storage import MemoryStorage
from kvorum.raft.wire import decode_conf_change, encode_conf_change
from tests.raft.cores import Lines, StoredLog, entries, new_config
from tests.waiting import WAIT_SECONDS_MAX


def nothing() -> None:
    """Wake nobody."""


class Driven:
    """A node whose loop runs when a test says so."""

    def __init__(self, make: Callable[[], Node], storage: MemoryStorage) -> None:
        self.node = make()
        self.storage = storage
        self.applied: list[Entry] = []
        self.conf_state = ConfState()

    def do(self) -> Ready | None:
        ready = self.node.poll()
        if ready is None:
            return None
        if ready.snapshot is not None:
            self.storage.apply_snapshot(ready.snapshot)
        if ready.hard_state is not None:
            self.storage.set_hard_state(ready.hard_state)
        self.storage.append(ready.entries)
        for entry in ready.committed_entries:
            self.applied.append(entry)
            if entry.type != EntryType.NORMAL:
                self.conf_state = self.node.apply_conf_change(decode_conf_change(entry))
        self.node.advance()
        return ready

    def settle(self) -> None:
        while self.do() is not None:
            pass


def started(**options: Any) -> Driven:
    storage = StoredLog()
    config = new_config(1, storage, **options)
    return Driven(lambda: start_node(config, [(1, b"")], nothing), storage)


def elected(**options: Any) -> Driven:
    driven = started(**options)
    driven.settle()
    driven.node.campaign()
    driven.settle()
    return driven


class Outcome:
    """Waits for what becomes of a proposal."""

    def __init__(self) -> None:
        self.results: list[RaftError | None] = []

    def __call__(self, error: RaftError | None) -> None:
        self.results.append(error)


def test_start() -> None:
    driven = started()
    first = driven.do()
    assert first is not None
    assert first.hard_state == HardState(1, 0, 1)
    assert first.entries == first.committed_entries
    assert [entry.type for entry in first.entries] == [EntryType.CONF_CHANGE]
    assert first.must_sync
    driven.node.campaign()
    vote, empty = driven.do(), driven.do()
    assert vote is not None and empty is not None
    driven.node.propose(b"foo")
    third = driven.do()
    assert third is not None
    assert third.hard_state == HardState(2, 1, 2)
    assert third.entries == [Entry(0, 2, 3, b"foo")]
    assert third.committed_entries == [Entry(0, 2, 2)]
    assert third.must_sync
    fourth = driven.do()
    assert fourth is not None
    assert fourth.hard_state == HardState(2, 1, 3)
    assert fourth.committed_entries == [Entry(0, 2, 3, b"foo")]
    assert not fourth.must_sync
    assert driven.do() is None


def test_restart() -> None:
    storage = StoredLog(1, 1, hard_state=HardState(1, 0, 1))
    storage.set_members((1,))
    driven = Driven(lambda: restart_node(new_config(1, storage), nothing), storage)
    ready = driven.do()
    assert ready is not None
    assert (ready.committed_entries, ready.hard_state) == (entries(1, 1), None)
    assert driven.do() is None


def test_restart_from_a_snapshot() -> None:
    storage = StoredLog(
        1, snapshot=Snapshot(2, 1, ConfState((1, 2))), hard_state=HardState(1, 0, 3)
    )
    driven = Driven(lambda: restart_node(new_config(1, storage), nothing), storage)
    ready = driven.do()
    assert ready is not None
    assert ready.committed_entries == entries(3, 1)
    assert driven.do() is None


def test_proposals_wait_for_a_leader() -> None:
    driven = started()
    driven.settle()
    outcome = Outcome()
    driven.node.propose(b"somedata", outcome)
    driven.settle()
    assert outcome.results == []
    driven.node.campaign()
    driven.settle()
    assert outcome.results == [None]
    assert driven.applied[-1].data == b"somedata"


def test_a_dropped_proposal_is_reported() -> None:
    driven = elected(uncommitted_size_max=1)
    outcome = Outcome()
    for _ in range(3):
        driven.node.propose(b"data", outcome)
    driven.node.poll()
    assert [type(result) for result in outcome.results] == [
        type(None),
        ProposalDroppedError,
        ProposalDroppedError,
    ]


def test_a_proposal_can_be_withdrawn() -> None:
    driven = started()
    driven.settle()
    outcome = Outcome()
    proposal = driven.node.propose(b"somedata", outcome)
    assert proposal.cancel()
    assert not proposal.cancel()
    driven.node.campaign()
    driven.settle()
    assert outcome.results == []
    assert b"somedata" not in [entry.data for entry in driven.applied]


def test_changes_of_the_membership() -> None:
    driven = elected()
    changes = [
        ConfChange(ChangeType.ADD_NODE, 1),
        ConfChange(ChangeType.ADD_NODE, 1),
        ConfChange(ChangeType.ADD_LEARNER_NODE, 2),
    ]
    before = len(driven.applied)
    for change in changes:
        driven.node.propose_conf_change(change)
        driven.settle()
    applied = [entry.data for entry in driven.applied[before:]]
    assert applied == [encode_conf_change(change)[1] for change in changes]
    assert driven.conf_state == ConfState((1,), (2,))


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_step(kind: int) -> None:
    driven = elected()
    driven.node.step(Message(kind, to=1, sender=5, entries=[Entry(0, 0, 0, b"x")]))
    assert len(driven.node._proposals) == (kind == MessageType.PROP)
    expected = 0 if IS_LOCAL[kind] or kind == MessageType.PROP else 1
    assert len(driven.node._calls) == expected
    driven.settle()


def test_the_rest_of_what_can_be_asked() -> None:
    driven = elected()
    driven.node.read_index(b"ctx")
    ready = driven.do()
    assert ready is not None
    assert [state.context for state in ready.read_states] == [b"ctx"]
    for ask in (
        driven.node.forget_leader,
        lambda: driven.node.transfer_leader(1),
        lambda: driven.node.report_unreachable(9),
        lambda: driven.node.report_snapshot(9, failed=True),
    ):
        ask()
    driven.settle()
    assert driven.node.status().soft_state.lead == 1


def test_ticks_pass() -> None:
    driven = started()
    driven.settle()
    for _ in range(19):
        driven.node.tick()
    driven.settle()
    assert driven.node.status().soft_state.lead == 1


def test_too_many_ticks_are_lost() -> None:
    driven = started()
    for _ in range(TICKS_MAX + 1):
        driven.node.tick()
    logger = driven.node._node.raft.logger
    assert isinstance(logger, Lines)
    assert logger.lines[-1] == "WARN 1 A tick missed to fire. Node blocks too long!"
    assert len(driven.node._ticks) == TICKS_MAX


def test_too_much_else_is_refused() -> None:
    driven = started()
    for _ in range(PROPOSALS_MAX):
        driven.node.propose(b"")
    with pytest.raises(BusyError):
        driven.node.propose(b"")
    for _ in range(MESSAGES_MAX):
        driven.node.campaign()
    with pytest.raises(BusyError):
        driven.node.campaign()


def test_one_ready_at_a_time() -> None:
    driven = started()
    assert driven.node.poll() is not None
    driven.node.campaign()
    assert driven.node.poll() is None


def test_asynchronous_writes_need_no_advance() -> None:
    storage = StoredLog(snapshot=Snapshot(1, 1, ConfState((1,))))
    config = new_config(1, storage, async_storage_writes=True)
    node = restart_node(config, nothing)
    node.campaign()
    done = []
    while (ready := node.poll()) is not None:
        for message in ready.messages:
            storage.append(message.entries if message.to == (1 << 64) - 1 else [])
            done.append(message.type)
            for response in message.responses:
                node.step(response)
    assert node.status().applied == 2
    assert MessageType.STORAGE_APPEND in done and MessageType.STORAGE_APPLY in done


def test_leader_changes_are_said() -> None:
    driven = elected()
    logger = driven.node._node.raft.logger
    assert isinstance(logger, Lines)
    for message in (
        Message(MessageType.HEARTBEAT, to=1, sender=2, term=3),
        Message(MessageType.HEARTBEAT, to=1, sender=3, term=4),
        Message(MessageType.VOTE, to=1, sender=2, term=5),
    ):
        driven.node.step(message)
        driven.settle()
    said = [line for line in logger.lines if "raft.node" in line]
    assert said == [
        "INFO raft.node: 1 elected leader 1 at term 2",
        "INFO raft.node: 1 changed leader from 1 to 2 at term 3",
        "INFO raft.node: 1 changed leader from 2 to 3 at term 4",
        "INFO raft.node: 1 lost leader 3 at term 5",
    ]


def test_a_removed_node_takes_no_proposals() -> None:
    driven = elected()
    driven.node.propose_conf_change(ConfChange(ChangeType.ADD_NODE, 2))
    driven.settle()
    driven.node.apply_conf_change(ConfChange(ChangeType.REMOVE_NODE, 1))
    outcome = Outcome()
    driven.node.propose(b"late", outcome)
    driven.settle()
    assert outcome.results == []
    driven.node.apply_conf_change(ConfChange(ChangeType.ADD_NODE, 1))
    driven.settle()
    assert outcome.results == [None]


def test_stop() -> None:
    driven = started()
    driven.settle()
    outcome = Outcome()
    driven.node.propose(b"waits", outcome)
    driven.node.stop()
    driven.node.stop()
    assert [type(result) for result in outcome.results] == [StoppedError]
    assert driven.node.status() == Status()
    assert driven.node.poll() is None
    driven.node.advance()
    driven.node.tick()
    for ask in (lambda: driven.node.propose(b""), driven.node.campaign):
        with pytest.raises(StoppedError, match="raft: stopped"):
            ask()


def test_what_stops_the_core_stops_the_node() -> None:
    driven = started()
    driven.settle()
    outcome = Outcome()
    driven.node.propose(b"waits", outcome)
    driven.node.step(Message(MessageType.HEARTBEAT, to=1, sender=2, term=3, commit=99))
    with pytest.raises(FatalError, match="tocommit"):
        driven.node.poll()
    assert [type(result) for result in outcome.results] == [StoppedError]
    assert driven.node.poll() is None


def test_starting_needs_peers_and_an_empty_storage() -> None:
    with pytest.raises(BootstrapError, match="no peers given; use RestartNode instead"):
        start_node(new_config(1, StoredLog()), [], nothing)
    config = new_config(1, StoredLog(1))
    start_node(config, [(1, b"")], nothing)
    assert isinstance(config.logger, Lines)
    assert config.logger.lines[-1] == (
        "WARN error occurred during starting a new node: can't bootstrap a nonempty Storage"
    )


def test_a_loop_in_a_thread() -> None:
    """Other threads put in; the loop sleeps until it is woken."""
    storage = StoredLog()
    awake = threading.Event()
    driven = Driven(lambda: start_node(new_config(1, storage), [(1, b"")], awake.set), storage)
    finished = threading.Event()

    def loop() -> None:
        while not finished.is_set():
            awake.wait()
            awake.clear()
            driven.settle()

    driven.settle()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    driven.node.campaign()
    left = [100]
    all_done = threading.Event()

    def done(error: RaftError | None) -> None:
        assert error is None
        left[0] -= 1
        if not left[0]:
            all_done.set()

    for number in range(100):
        driven.node.propose(b"%d" % number, done)
    assert all_done.wait(WAIT_SECONDS_MAX)
    finished.set()
    awake.set()
    thread.join()
    driven.settle()
    assert [entry.data for entry in driven.applied][-100:] == [b"%d" % i for i in range(100)]
