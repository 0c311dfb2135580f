"""The storage in memory, table by table."""

import pytest

from kvorum.raft.entries import NO_LIMIT, encoded_size, payload_size, take_within
from kvorum.raft.errors import (
    CompactedError,
    FatalError,
    SnapshotOutOfDateError,
    UnavailableError,
)
from kvorum.raft.messages import ConfState, HardState, Snapshot
from kvorum.raft.storage import ENTRY_OVERHEAD_BYTES
from tests.raft.cores import StoredLog, entries


def storage(*terms: int) -> StoredLog:
    return StoredLog(*terms, snapshot=Snapshot(3, 3))


def terms_of(log: StoredLog) -> list[int]:
    dummy = log.first_index() - 1
    return [log.term(index) for index in range(dummy, log.last_index() + 1)]


def memory_of(log: StoredLog) -> int:
    """Return what the entries take, counted anew."""
    first, last = log.first_index(), log.last_index()
    kept = log.entries(first, last + 1, NO_LIMIT) if first <= last else []
    return encoded_size(kept) + ENTRY_OVERHEAD_BYTES * len(kept)


def test_what_the_entries_take_is_known() -> None:
    log = storage(4, 5, 6)
    assert log.memory_bytes == memory_of(log) > 0
    log.append(entries(5, 7, 7, 7))
    assert log.memory_bytes == memory_of(log)
    # The first of them is compacted already.
    log.append(entries(3, 3, 7))
    assert log.memory_bytes == memory_of(log)
    log.append(entries(5, 8, 8, 8))
    log.compact(5)
    assert log.memory_bytes == memory_of(log) > 0
    log.apply_snapshot(Snapshot(20, 9))
    assert log.memory_bytes == memory_of(log) == 0


def test_the_lowest_index_within_a_limit() -> None:
    log = storage(4, 5, 6)
    one = log.memory_bytes // 3
    assert log.memory_bytes == 3 * one
    limits = (4 * one, 3 * one, 3 * one - 1, 2 * one, 2 * one - 1, 0)
    assert [log.index_within(limit) for limit in limits] == [3, 3, 4, 4, 5, 6]


def test_term() -> None:
    log = storage(4, 5)
    with pytest.raises(CompactedError):
        log.term(2)
    assert [log.term(index) for index in (3, 4, 5)] == [3, 4, 5]
    with pytest.raises(UnavailableError):
        log.term(6)


SIZES = [encoded_size(entries(4, *terms)) for terms in ((4,), (4, 5), (4, 5, 6))]


@pytest.mark.parametrize(
    ("low", "high", "size_max", "expected"),
    [
        (4, 5, NO_LIMIT, (4,)),
        (4, 6, NO_LIMIT, (4, 5)),
        (4, 7, NO_LIMIT, (4, 5, 6)),
        (4, 7, 0, (4,)),
        (4, 7, SIZES[1], (4, 5)),
        (4, 7, SIZES[1] + SIZES[0] // 2, (4, 5)),
        (4, 7, SIZES[2] - 1, (4, 5)),
        (4, 7, SIZES[2], (4, 5, 6)),
    ],
)
def test_entries(low: int, high: int, size_max: int, expected: tuple[int, ...]) -> None:
    assert storage(4, 5, 6).entries(low, high, size_max) == entries(4, *expected)


@pytest.mark.parametrize(("low", "high"), [(2, 6), (3, 4)])
def test_entries_compacted(low: int, high: int) -> None:
    with pytest.raises(CompactedError):
        storage(4, 5, 6).entries(low, high, NO_LIMIT)


def test_entries_out_of_bound() -> None:
    with pytest.raises(FatalError, match=r"entries' hi\(8\) is out of bound lastindex\(6\)"):
        storage(4, 5, 6).entries(4, 8, NO_LIMIT)
    with pytest.raises(UnavailableError):
        storage().entries(4, 4, NO_LIMIT)


def test_first_and_last_index() -> None:
    log = storage(4, 5)
    assert (log.first_index(), log.last_index()) == (4, 5)
    log.append(entries(6, 5))
    assert log.last_index() == 6
    log.compact(4)
    assert log.first_index() == 5


@pytest.mark.parametrize(("index", "left"), [(4, [4, 5]), (5, [5])])
def test_compact(index: int, left: list[int]) -> None:
    log = storage(4, 5)
    log.compact(index)
    assert terms_of(log) == left


@pytest.mark.parametrize("index", [2, 3])
def test_compact_again(index: int) -> None:
    log = storage(4, 5)
    with pytest.raises(CompactedError):
        log.compact(index)
    assert terms_of(log) == [3, 4, 5]


def test_compact_of_a_long_log() -> None:
    log = StoredLog(*range(1, 1001))
    with pytest.raises(FatalError, match=r"compact 1001 is out of bound lastindex\(1000\)"):
        log.compact(1001)
    for index, left in [(300, 700), (500, 500), (800, 200), (900, 100)]:
        log.compact(index)
        assert len(log.entries(index + 1, 1001, NO_LIMIT)) == left
    with pytest.raises(CompactedError):
        log.compact(899)


@pytest.mark.parametrize("index", [4, 5])
def test_create_snapshot(index: int) -> None:
    log = storage(4, 5)
    members = ConfState((1, 2, 3))
    expected = Snapshot(index, index, members, b"data")
    assert log.create_snapshot(index, members, b"data") == expected
    assert log.snapshot() == expected
    assert terms_of(log) == [3, 4, 5]
    with pytest.raises(SnapshotOutOfDateError):
        log.create_snapshot(index, members, b"data")


def test_create_snapshot_keeps_the_members() -> None:
    log = StoredLog(4, 5, snapshot=Snapshot(3, 3, ConfState((7,))))
    assert log.create_snapshot(4, None, b"").conf_state == ConfState((7,))
    with pytest.raises(FatalError, match=r"snapshot 6 is out of bound lastindex\(5\)"):
        log.create_snapshot(6, None, b"")


@pytest.mark.parametrize(
    ("first", "new", "expected"),
    [
        (1, (1, 2), [3, 4, 5]),
        (3, (3, 4, 5), [3, 4, 5]),
        (3, (3, 6, 6), [3, 6, 6]),
        (3, (3, 4, 5, 5), [3, 4, 5, 5]),
        (2, (3, 3, 5), [3, 5]),
        (4, (5,), [3, 5]),
        (6, (5,), [3, 4, 5, 5]),
        (6, (), [3, 4, 5]),
    ],
)
def test_append(first: int, new: tuple[int, ...], expected: list[int]) -> None:
    log = storage(4, 5)
    log.append(entries(first, *new))
    assert terms_of(log) == expected


def test_append_with_a_gap() -> None:
    with pytest.raises(FatalError, match=r"missing log entry \[last: 5, append at: 7\]"):
        storage(4, 5).append(entries(7, 5))


def test_apply_snapshot() -> None:
    log = StoredLog()
    log.apply_snapshot(Snapshot(0, 0, ConfState((1, 2))))
    assert log.initial_state() == (HardState(), ConfState((1, 2)))
    log.apply_snapshot(Snapshot(4, 4))
    assert (log.first_index(), log.last_index(), log.term(4)) == (5, 4, 4)
    with pytest.raises(SnapshotOutOfDateError):
        log.apply_snapshot(Snapshot(3, 3))


@pytest.mark.parametrize(
    ("size_max", "count"),
    [
        (NO_LIMIT, 3),
        (0, 1),
        (SIZES[1], 2),
        (SIZES[1] + SIZES[0] // 2, 2),
        (SIZES[2] - 1, 2),
        (SIZES[2], 3),
    ],
)
def test_take_within(size_max: int, count: int) -> None:
    whole = entries(4, 4, 5, 6)
    assert take_within(whole, 0, 3, size_max) == whole[:count]


@pytest.mark.parametrize("count", [511, 512, 513, 1024, 1025, 3000])
def test_take_within_a_long_list(count: int) -> None:
    whole = entries(1, *[1] * 3000)
    size = encoded_size(whole[:count])
    assert take_within(whole, 0, 3000, size) == whole[:count]
    assert take_within(whole, 0, 3000, size - 1) == whole[: count - 1]


def test_the_payload_of_an_empty_entry_is_nothing() -> None:
    assert payload_size(entries(1, 1)) == 0
