"""How much goes out at once: windows, sizes, pauses, and the limit of what is uncommitted."""

import pytest

from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry, EntryType, payload_size
from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.progress import ProgressState
from kvorum.raft.replication import maybe_send_append
from tests.raft.cores import (
    Net,
    StoredLog,
    beat,
    flush,
    hup,
    lead,
    lines_of,
    new_core,
    next_entries,
    prop,
    propose,
    read,
)

APP, APP_RESP = MessageType.APP, MessageType.APP_RESP
HEARTBEAT_RESP = MessageType.HEARTBEAT_RESP


def leader_of_two(**options: int) -> Raft:
    return lead(new_core(1, (1, 2), election_ticks=5, **options))  # type: ignore[arg-type]


def test_the_leaders_own_progress() -> None:
    core = leader_of_two()
    core.tracker.progress[2].become_replicate()
    for _ in range(5):
        propose(core, b"foo")
    assert core.tracker.progress[1].match == 0
    unstable = core.log.unstable.next_entries()
    assert (len(unstable), unstable[0].data, unstable[5].data) == (6, b"", b"foo")
    flush(core)
    own = core.tracker.progress[1]
    assert (own.match, own.next) == (6, 7)


def test_a_heartbeat_response_resumes() -> None:
    core = leader_of_two()
    peer = core.tracker.progress[2]
    peer.flow_paused = True
    core.step(beat(1))
    assert peer.flow_paused
    peer.become_replicate()
    assert not peer.flow_paused
    peer.flow_paused = True
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2))
    assert not peer.flow_paused


def test_a_probed_peer_gets_one_message() -> None:
    core = leader_of_two()
    for _ in range(3):
        propose(core)
    assert len(read(core)) == 1


def test_windows_by_count_and_bytes() -> None:
    core = leader_of_two(inflight_messages_max=3, message_size_max=2048, inflight_bytes_max=9000)
    read(core)
    core.tracker.progress[2].become_probe()
    for number in range(22):
        propose(core, bytes(5000 if 10 <= number < 16 else 1000))
    (first,) = read(core)
    assert [len(entry.data) for entry in first.entries] == [0, 1000]

    def acknowledge(message: Message) -> list[Message]:
        index = message.entries[-1].index
        core.step(Message(APP_RESP, to=1, sender=2, index=index))
        return read(core)

    sent, counts = [first], []
    while True:
        sent = [message for message in acknowledge(sent[-1]) if message.entries]
        if not sent:
            break
        counts.append([len(message.entries) for message in sent])
    assert counts == [[2, 2, 2], [2, 1, 1], [1, 1], [1, 1], [1, 2, 2], [2]]


def reduce_uncommitted(core: Raft, payload: int) -> None:
    """Apply entries of so many bytes."""
    entry = Entry(EntryType.NORMAL, 1, core.log.applied, bytes(payload))
    core.step(Message(MessageType.STORAGE_APPLY_RESP, to=1, sender=(1 << 64) - 2, entries=[entry]))


def test_the_limit_of_what_is_uncommitted() -> None:
    data = b"testdata"
    core = lead(new_core(1, (1, 2, 3), uncommitted_size_max=1024 * 8, inflight_messages_max=2048))
    read(core)
    assert core.uncommitted_size == 0
    for node in (2, 3):
        core.tracker.progress[node].become_replicate()
    for _ in range(1024):
        propose(core, data)
    with pytest.raises(ProposalDroppedError):
        propose(core, data)
    assert lines_of(core).lines[-1] == (
        "WARN 1 appending new entries to log would exceed uncommitted entry size limit; "
        "dropping proposal"
    )
    assert len(read(core)) == 2048
    reduce_uncommitted(core, 1024 * 8)
    assert core.uncommitted_size == 0
    # On an empty tail even a proposal above the limit is taken.
    batch = [Entry(EntryType.NORMAL, 0, 0, data) for _ in range(2048)]
    core.step(Message(MessageType.PROP, to=1, sender=1, entries=batch))
    assert core.uncommitted_size == 2048 * 8
    with pytest.raises(ProposalDroppedError):
        propose(core, data)
    propose(core, b"")
    assert len(read(core)) == 4
    reduce_uncommitted(core, 2048 * 8)
    assert core.uncommitted_size == 0


@pytest.mark.parametrize(("state", "next_index"), [("replicate", 6), ("probe", 2)])
def test_next_grows_only_in_replication(state: str, next_index: int) -> None:
    storage = StoredLog()
    core = new_core(1, (1, 2), storage=storage)
    core.log.append([Entry(EntryType.NORMAL, term, term) for term in (1, 2, 3)])
    lead(core)
    peer = core.tracker.progress[2]
    if state == "replicate":
        peer.become_replicate()
    peer.next = 2
    propose(core)
    assert peer.next == next_index


def append_and_send(core: Raft) -> None:
    last = core.log.last_index()
    core.log.append([Entry(EntryType.NORMAL, core.term, last + 1, b"somedata")])
    maybe_send_append(core, 2, core.tracker.progress[2], send_if_empty=True)


def test_probing() -> None:
    core = leader_of_two()
    read(core)
    peer = core.tracker.progress[2]
    peer.become_probe()
    for round_number in range(3):
        if round_number == 0:
            append_and_send(core)
            (sent,) = read(core)
            assert (sent.type, sent.index) == (APP, 0)
        assert peer.flow_paused
        for _ in range(10):
            append_and_send(core)
            assert read(core) == []
        core.tick()
        (sent,) = read(core)
        assert sent.type == MessageType.HEARTBEAT
        assert peer.flow_paused
    core.step(Message(HEARTBEAT_RESP, to=1, sender=2))
    (sent,) = read(core)
    assert (sent.type, sent.index) == (APP, 0)
    assert peer.flow_paused


def test_replicating() -> None:
    core = leader_of_two()
    read(core)
    core.tracker.progress[2].become_replicate()
    for _ in range(10):
        append_and_send(core)
        assert len(read(core)) == 1


def test_nothing_is_sent_while_a_snapshot_is_awaited() -> None:
    core = leader_of_two()
    read(core)
    core.tracker.progress[2].become_snapshot(10)
    for _ in range(10):
        append_and_send(core)
        assert read(core) == []


def test_unreachable() -> None:
    core = lead(new_core(1, (1, 2), storage=StoredLog(1, 2, 3)))
    read(core)
    peer = core.tracker.progress[2]
    peer.match = 3
    peer.become_replicate()
    peer.next = 6
    core.step(Message(MessageType.UNREACHABLE, to=1, sender=2))
    assert (peer.state, peer.next) == (ProgressState.PROBE, 4)


def test_an_acknowledgement_lifts_the_pause_of_its_sender_only() -> None:
    core = lead(new_core(1, (1, 2, 3), election_ticks=5))
    for node in (2, 3):
        maybe_send_append(core, node, core.tracker.progress[node], send_if_empty=True)
    next_entries(core)
    core.step(Message(APP_RESP, to=1, sender=2, index=1))
    assert core.log.committed == 1
    read(core)
    propose(core)
    (sent,) = read(core)
    assert (sent.to, [entry.index for entry in sent.entries]) == (2, [2])
    core.step(Message(APP_RESP, to=1, sender=3, index=1))
    (sent,) = [message for message in read(core) if message.entries]
    assert (sent.to, [entry.index for entry in sent.entries]) == (3, [2])


def leader_with_full_window() -> Raft:
    core = leader_of_two()
    core.tracker.progress[2].become_replicate()
    read(core)
    for _ in range(256):
        propose(core)
        assert len(read(core)) == 1
    return core


def test_a_full_window_pauses() -> None:
    core = leader_with_full_window()
    assert core.tracker.progress[2].is_paused()
    for _ in range(10):
        propose(core)
        assert read(core) == []


def test_a_window_moves_forward() -> None:
    core = leader_with_full_window()
    peer = core.tracker.progress[2]
    for index in range(2, 256):
        core.step(Message(APP_RESP, to=1, sender=2, index=index))
        read(core)
        propose(core)
        (sent,) = read(core)
        assert sent.type == APP
        assert peer.is_paused()
        for older in range(index):
            core.step(Message(APP_RESP, to=1, sender=2, index=older))
            assert peer.is_paused()


def test_a_heartbeat_response_lets_one_empty_append_through_a_full_window() -> None:
    core = leader_with_full_window()
    peer = core.tracker.progress[2]
    for times in range(1, 5):
        for _ in range(times):
            core.step(Message(HEARTBEAT_RESP, to=1, sender=2))
            (sent,) = read(core)
            assert (sent.type, list(sent.entries)) == (APP, [])
            assert peer.is_paused()
        for _ in range(10):
            propose(core)
            assert read(core) == []
        core.step(Message(HEARTBEAT_RESP, to=1, sender=2))
        read(core)


def test_appends_are_paginated() -> None:
    sizes: list[int] = []

    def note(message: Message) -> bool:
        if message.type == APP:
            sizes.append(payload_size(message.entries))
        return True

    net = Net.of(3, message_size_max=2048)
    net.send(hup(1))
    net.isolate(1)
    for _ in range(5):
        net.send(prop(1, bytes(1000)))
    net.recover()
    net.hook = note
    net.send(beat(1))
    assert max(sizes) <= 2048
    assert max(sizes) > 1024
