"""One rule, one test: writes, applying and reads.

The mutations of `mutate.py` break these rules one at a time; every one must be noticed.
"""

from kvorum.raft.config import ReadOnlyOption
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    HardState,
    Message,
    MessageType,
)
from tests.raft.cores import (
    StoredLog,
    entries,
    lead,
    lines_of,
    new_core,
    new_raw_node,
    read,
    replicating_leader,
)

APP = MessageType.APP
VOTE, VOTE_RESP = MessageType.VOTE, MessageType.VOTE_RESP
HEARTBEAT, HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP
THREE = (1, 2, 3)


# Storage and application.


def test_a_stale_write_of_entries_is_not_believed() -> None:
    node = new_raw_node(1, THREE, async_storage_writes=True)
    node.step(Message(APP, to=1, sender=2, term=1, entries=entries(1, 1, 1)))
    (write,) = [each for each in node.ready().messages if each.to == APPEND_THREAD]
    (done,) = [each for each in write.responses if each.to == 1]
    node.step(Message(APP, to=1, sender=3, term=2, entries=entries(1, 2, 2)))
    node.step(done)
    assert node.raft.log.unstable.offset == 1
    assert lines_of(node.raft).lines[-1] == (
        "INFO 1 [term: 2] ignored entry appends from a MsgStorageAppendResp message with lower "
        "term [term: 1]"
    )


def test_entries_that_were_replaced_are_written_again() -> None:
    node = new_raw_node(1, THREE, async_storage_writes=True)
    node.step(Message(APP, to=1, sender=2, term=1, entries=entries(1, 1, 1)))
    node.ready()
    node.step(Message(APP, to=1, sender=3, term=2, entries=entries(1, 2)))
    assert list(node.ready().entries) == entries(1, 2)


def test_every_write_names_the_end_of_the_log() -> None:
    node = new_raw_node(1, THREE, async_storage_writes=True)
    node.step(Message(APP, to=1, sender=2, term=1, entries=entries(1, 1, 1)))
    node.ready()
    # Nothing new to write but the term; the entries are still on their way.
    node.step(Message(HEARTBEAT, to=1, sender=3, term=2))
    (write,) = [each for each in node.ready().messages if each.to == APPEND_THREAD]
    assert write.entries == []
    (done,) = [each for each in write.responses if each.to == 1]
    assert (done.term, done.log_term, done.index) == (2, 1, 2)


def test_only_what_is_stable_here_is_applied_with_asynchronous_writes() -> None:
    node = new_raw_node(1, THREE, async_storage_writes=True)
    node.step(Message(APP, to=1, sender=2, term=1, entries=entries(1, 1, 1), commit=2))
    ready = node.ready()
    assert node.raft.log.committed == 2
    assert ready.committed_entries == []
    assert APPLY_THREAD not in [message.to for message in ready.messages]
    assert not node.has_ready()
    (write,) = [each for each in ready.messages if each.to == APPEND_THREAD]
    storage = node.raft.log.storage
    assert isinstance(storage, StoredLog)
    storage.append(write.entries)
    for response in write.responses:
        if response.to == 1:
            node.step(response)
    assert [entry.index for entry in node.ready().committed_entries] == [1, 2]


def test_committed_entries_wait_while_too_much_is_being_applied() -> None:
    one = Entry(EntryType.NORMAL, 1, 1, bytes(100))
    node = new_raw_node(1, THREE, committed_size_max=2 * one.size)
    sent = [Entry(EntryType.NORMAL, 1, index, bytes(100)) for index in range(1, 6)]
    node.step(Message(APP, to=1, sender=2, term=1, entries=sent, commit=5))
    batches = []
    while node.has_ready():
        ready = node.ready()
        batches.append([entry.index for entry in ready.committed_entries])
        storage = node.raft.log.storage
        assert isinstance(storage, StoredLog)
        storage.append(ready.entries)
        node.advance()
    assert batches == [[1, 2], [3, 4], [5]]


def test_what_was_applied_before_a_restart_is_not_applied_again() -> None:
    storage = StoredLog(1, 1, 1, 1, hard_state=HardState(1, 0, 4))
    node = new_raw_node(1, THREE, storage=storage, applied=3)
    assert node.raft.log.applied == 3
    assert [entry.index for entry in node.ready().committed_entries] == [4]


def test_only_a_vote_a_term_or_entries_must_be_synced() -> None:
    node = new_raw_node(1, THREE)
    node.step(Message(APP, to=1, sender=2, term=1, entries=entries(1, 1)))
    ready = node.ready()
    assert ready.must_sync
    storage = node.raft.log.storage
    assert isinstance(storage, StoredLog)
    storage.append(ready.entries)
    node.advance()
    node.step(Message(HEARTBEAT, to=1, sender=2, term=1, commit=1))
    ready = node.ready()
    assert (ready.hard_state, ready.must_sync) == (HardState(1, 0, 1), False)
    node.advance()
    node.step(Message(VOTE, to=1, sender=3, term=2, log_term=1, index=1))
    ready = node.ready()
    assert (ready.hard_state, ready.must_sync) == (HardState(2, 3, 1), True)


def test_a_vote_in_the_term_that_is_known_must_be_synced() -> None:
    node = new_raw_node(1, THREE, storage=StoredLog(hard_state=HardState(2, 0, 0)))
    node.step(Message(VOTE, to=1, sender=3, term=2, log_term=1, index=1))
    ready = node.ready()
    assert (ready.hard_state, ready.must_sync) == (HardState(2, 3, 0), True)


def test_promises_leave_after_the_write_they_depend_on() -> None:
    node = new_raw_node(1, THREE, async_storage_writes=True)
    node.step(Message(VOTE, to=1, sender=2, term=1, log_term=1, index=1))
    (write,) = node.ready().messages
    assert (write.to, write.term, write.vote) == (APPEND_THREAD, 1, 2)
    assert [(each.type, each.to) for each in write.responses] == [(VOTE_RESP, 2)]


# Reads.


def test_a_read_waits_for_a_quorum_of_echoes() -> None:
    core = replicating_leader(1, (1, 2, 3, 4, 5))
    request = Entry(EntryType.NORMAL, 0, 0, b"ctx")
    core.step(Message(MessageType.READ_INDEX, to=1, entries=[request]))
    context = read(core)[0].context
    assert context
    for node, count in ((2, 0), (2, 0), (3, 1)):
        core.step(Message(HEARTBEAT_RESP, to=1, sender=node, term=1, context=context))
        assert len(core.read_states) == count


def test_a_lease_based_leader_counts_no_echoes() -> None:
    core = lead(new_core(1, THREE, check_quorum=True, read_only_option=ReadOnlyOption.LEASE_BASED))
    core.read_only.add(Message(MessageType.READ_INDEX, entries=[Entry(0, 0, 0)]), 1, 1)
    context = core.read_only.context()
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2, term=1, context=context))
    assert core.read_states == []


def test_a_new_leadership_starts_with_no_reads() -> None:
    core = replicating_leader()
    core.step(Message(MessageType.READ_INDEX, to=1, entries=[Entry(0, 0, 0, b"ctx")]))
    assert core.read_only.unconfirmed
    core.become_follower(2, 2)
    assert not core.read_only.unconfirmed
    assert core.read_only.confirmed == 0
