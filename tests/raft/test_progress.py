"""One peer's progress and its window of messages, table by table."""

import pytest

from kvorum.raft.errors import FatalError
from kvorum.raft.inflights import Inflights
from kvorum.raft.progress import Progress, ProgressState

PROBE, REPLICATE, SNAPSHOT = ProgressState.PROBE, ProgressState.REPLICATE, ProgressState.SNAPSHOT


def filled(window: Inflights, first: int, last: int) -> Inflights:
    for index in range(first, last):
        window.add(index, 100 + index)
    return window


def test_window_add() -> None:
    window = filled(Inflights(10), 0, 5)
    assert (len(window), window.bytes) == (5, 510)
    filled(window, 5, 10)
    assert (len(window), window.bytes) == (10, 1045)


def test_window_free() -> None:
    window = filled(Inflights(10), 0, 10)
    for index, left, size in [(0, 9, 945), (4, 5, 535), (8, 1, 109)]:
        window.free_up_to(index)
        assert (len(window), window.bytes) == (left, size)
    filled(window, 10, 15)
    window.free_up_to(12)
    assert (len(window), window.bytes) == (2, 227)
    window.free_up_to(14)
    assert (len(window), window.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("messages_max", "bytes_max", "full_at", "freed", "full_again_at"),
    [
        (0, 0, 0, 0, 0),
        (1, 0, 1, 1, 2),
        (1, 10, 1, 1, 2),
        (15, 0, 15, 6, 22),
        (8, 400, 4, 2, 7),
        (8, 406, 4, 3, 8),
        (15, 408, 5, 1, 6),
    ],
)
def test_window_full(
    messages_max: int, bytes_max: int, full_at: int, freed: int, full_again_at: int
) -> None:
    window = Inflights(messages_max, bytes_max)

    def fill(first: int, last: int) -> None:
        for index in range(first, last):
            assert not window.full(), f"full at {index}"
            window.add(index, 100 + index)
        assert window.full()

    fill(0, full_at)
    window.free_up_to(freed)
    if full_again_at:
        fill(full_at, full_again_at)
    with pytest.raises(FatalError, match="cannot add into a Full inflights"):
        window.add(100, 1024)


def test_window_reset() -> None:
    window = Inflights(10, 1000)
    index = 0
    for _ in range(100):
        window.reset()
        for _ in range(5):
            assert not window.full()
            index += 1
            window.add(index, 16)
        window.free_up_to(index - 2)
        assert not window.full()
        assert len(window) == 2


def progress(
    state: int = PROBE, match: int = 0, next_index: int = 1, window: Inflights | None = None
) -> Progress:
    peer = Progress(match, next_index, window or Inflights(256))
    peer.state = state
    return peer


def test_text() -> None:
    peer = progress(SNAPSHOT, 1, 2, filled(Inflights(1), 1, 2))
    peer.pending_snapshot = 123
    peer.is_learner = peer.flow_paused = True
    assert str(peer) == (
        "StateSnapshot match=1 next=2 learner paused pendingSnap=123 inactive inflight=1[full]"
    )


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("state", [PROBE, REPLICATE, SNAPSHOT])
def test_is_paused(state: int, paused: bool) -> None:
    peer = progress(state)
    peer.flow_paused = paused
    assert peer.is_paused() is (paused or state == SNAPSHOT)


def test_resume() -> None:
    peer = progress(PROBE, 0, 2)
    peer.flow_paused = True
    assert peer.maybe_decrease(1, 1)
    assert not peer.flow_paused
    peer.flow_paused = True
    assert peer.maybe_update(2)
    assert not peer.flow_paused


@pytest.mark.parametrize(
    ("state", "pending", "next_index"), [(REPLICATE, 0, 2), (SNAPSHOT, 10, 11), (SNAPSHOT, 0, 2)]
)
def test_become_probe(state: int, pending: int, next_index: int) -> None:
    peer = progress(state, 1, 5)
    peer.pending_snapshot = pending
    peer.flow_paused = True
    peer.become_probe()
    assert (peer.state, peer.match, peer.next) == (PROBE, 1, next_index)
    assert not peer.flow_paused


def test_become_replicate() -> None:
    peer = progress(PROBE, 1, 5)
    peer.become_replicate()
    assert (peer.state, peer.match, peer.next) == (REPLICATE, 1, 2)


def test_become_snapshot() -> None:
    peer = progress(PROBE, 1, 5)
    peer.become_snapshot(10)
    assert (peer.state, peer.match, peer.next) == (SNAPSHOT, 1, 11)
    assert (peer.pending_snapshot, peer.sent_commit) == (10, 10)


@pytest.mark.parametrize(
    ("index", "updated", "match", "next_index"),
    [(2, False, 3, 5), (3, False, 3, 5), (4, True, 4, 5), (5, True, 5, 6)],
)
def test_maybe_update(index: int, updated: bool, match: int, next_index: int) -> None:
    peer = progress(PROBE, 3, 5)
    assert peer.maybe_update(index) is updated
    assert (peer.match, peer.next) == (match, next_index)


@pytest.mark.parametrize(
    ("state", "match", "next_index", "rejected", "hint", "decreased", "after"),
    [
        (REPLICATE, 5, 10, 5, 5, False, 10),
        (REPLICATE, 5, 10, 4, 4, False, 10),
        (REPLICATE, 5, 10, 9, 9, True, 6),
        (PROBE, 0, 0, 0, 0, False, 0),
        (PROBE, 0, 10, 5, 5, False, 10),
        (PROBE, 0, 10, 9, 9, True, 9),
        (PROBE, 0, 2, 1, 1, True, 1),
        (PROBE, 0, 1, 0, 0, True, 1),
        (PROBE, 0, 10, 9, 2, True, 3),
        (PROBE, 0, 10, 9, 0, True, 1),
        (PROBE, 4, 10, 9, 2, True, 5),
    ],
)
def test_maybe_decrease(
    state: int, match: int, next_index: int, rejected: int, hint: int, decreased: bool, after: int
) -> None:
    peer = progress(state, match, next_index)
    assert peer.maybe_decrease(rejected, hint) is decreased
    assert (peer.match, peer.next) == (match, after)


def test_sending_nothing_is_impossible_while_a_snapshot_is_awaited() -> None:
    with pytest.raises(FatalError, match="sending append in unhandled state StateSnapshot"):
        progress(SNAPSHOT).sent_entries(1, 1)


@pytest.mark.parametrize(
    ("commit", "sent_commit", "next_index", "worth_it"),
    [(5, 4, 6, True), (5, 5, 7, False), (4, 5, 7, False), (9, 5, 6, False), (9, 4, 6, True)],
)
def test_can_bump_commit(commit: int, sent_commit: int, next_index: int, worth_it: bool) -> None:
    peer = progress(REPLICATE, 1, next_index)
    peer.sent_commit = sent_commit
    assert peer.can_bump_commit(commit) is worth_it


def test_a_copy_shares_nothing() -> None:
    peer = progress(REPLICATE, 3, 5)
    peer.is_learner = peer.recent_active = peer.flow_paused = True
    peer.sent_commit = peer.pending_snapshot = 2
    other = peer.copy()
    assert str(other) == str(peer)
    assert other.sent_commit == 2
    peer.sent_entries(2, 10)
    assert (other.next, len(other.inflights)) == (5, 0)
