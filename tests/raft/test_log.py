"""The whole log: what is where, what conflicts, what is handed out and acknowledged."""

from typing import Any

import pytest

from kvorum.raft.entries import NO_LIMIT, Entry, EntryType, encoded_size
from kvorum.raft.errors import CompactedError, FatalError, RaftError, UnavailableError
from kvorum.raft.log import RaftLog
from kvorum.raft.messages import Snapshot
from kvorum.raft.storage import MemoryStorage
from tests.raft.cores import Lines, StoredLog, entries


def log_of(storage: MemoryStorage, size_max: int = NO_LIMIT) -> RaftLog:
    return RaftLog(storage, Lines(), size_max)


def indexes(found: list[Entry]) -> list[int]:
    return [entry.index for entry in found]


def terms_of(log: RaftLog) -> list[int]:
    found = log.slice(log.first_index(), log.last_index() + 1, NO_LIMIT)
    return [entry.term for entry in found]


@pytest.mark.parametrize(
    ("first", "terms", "conflict"),
    [
        (1, (), 0),
        (1, (1, 2, 3), 0),
        (2, (2, 3), 0),
        (3, (3,), 0),
        (1, (1, 2, 3, 4, 4), 4),
        (2, (2, 3, 4, 5), 4),
        (3, (3, 4, 4), 4),
        (4, (4, 4), 4),
        (1, (4, 4), 1),
        (2, (1, 4, 4), 2),
        (3, (1, 2, 4, 4), 3),
    ],
)
def test_find_conflict(first: int, terms: tuple[int, ...], conflict: int) -> None:
    log = log_of(MemoryStorage())
    log.append(entries(1, 1, 2, 3))
    assert log.find_conflict(entries(first, *terms)) == conflict


BASE_0 = [
    (100, 2, 100),
    (5, 6, 5),
    (5, 5, 5),
    (5, 4, 2),
    (5, 2, 2),
    (5, 1, 0),
    (1, 2, 1),
    (1, 1, 0),
    (0, 0, 0),
]
BASE_10 = [
    (30, 3, 30),
    (14, 9, 14),
    (14, 4, 14),
    (14, 3, 12),
    (14, 2, 9),
    (11, 5, 11),
    (10, 5, 10),
    (10, 3, 10),
    (10, 2, 9),
    (9, 2, 9),
    (4, 2, 4),
    (0, 0, 0),
]


@pytest.mark.parametrize(
    ("base", "terms", "index", "term", "found"),
    [(Snapshot(0, 0), (2, 2, 5, 5, 5), *row) for row in BASE_0]
    + [(Snapshot(10, 3), (3, 3, 4, 4, 4), *row) for row in BASE_10],
)
def test_find_conflict_by_term(
    base: Snapshot, terms: tuple[int, ...], index: int, term: int, found: int
) -> None:
    log = log_of(StoredLog(snapshot=base))
    log.append(entries(base.index + 1, *terms))
    assert log.find_conflict_by_term(index, term) == (log.term_or_zero(found), found)


@pytest.mark.parametrize(
    ("term", "index", "up_to_date"),
    [
        (4, 2, True),
        (4, 3, True),
        (4, 4, True),
        (2, 2, False),
        (2, 3, False),
        (2, 4, False),
        (3, 2, False),
        (3, 3, True),
        (3, 4, True),
    ],
)
def test_is_up_to_date(term: int, index: int, up_to_date: bool) -> None:
    assert log_of(StoredLog(1, 2, 3)).is_up_to_date(term, index) is up_to_date


@pytest.mark.parametrize(
    ("first", "appended", "last", "whole", "offset"),
    [
        (3, (), 2, [1, 2], 3),
        (3, (2,), 3, [1, 2, 2], 3),
        (1, (2,), 1, [2], 1),
        (2, (3, 3), 3, [1, 3, 3], 2),
    ],
)
def test_append(
    first: int, appended: tuple[int, ...], last: int, whole: list[int], offset: int
) -> None:
    log = log_of(StoredLog(1, 2))
    assert log.append(entries(first, *appended)) == last
    assert terms_of(log) == whole
    assert log.unstable.offset == offset


def test_append_below_the_commit_stops_the_node() -> None:
    log = log_of(StoredLog(1, 2))
    log.commit_to(2)
    with pytest.raises(FatalError, match=r"after\(1\) is out of range \[committed\(2\)\]"):
        log.append(entries(2, 3))


@pytest.mark.parametrize(
    ("previous", "commit", "first", "appended", "last_new", "committed"),
    [
        ((2, 3), 3, 4, (4,), None, 1),
        ((3, 4), 3, 5, (4,), None, 1),
        ((3, 3), 3, 4, (), 3, 3),
        ((3, 3), 4, 4, (), 3, 3),
        ((3, 3), 2, 4, (), 3, 2),
        ((3, 3), 0, 4, (), 3, 1),
        ((0, 0), 3, 1, (), 0, 1),
        ((3, 3), 3, 4, (4,), 4, 3),
        ((3, 3), 4, 4, (4,), 4, 4),
        ((3, 3), 5, 4, (4,), 4, 4),
        ((3, 3), 5, 4, (4, 4), 5, 5),
        ((2, 2), 3, 3, (4,), 3, 3),
        ((1, 1), 3, 2, (4,), 2, 2),
        ((1, 1), 3, 2, (4, 4), 3, 3),
    ],
)
def test_maybe_append(
    previous: tuple[int, int],
    commit: int,
    first: int,
    appended: tuple[int, ...],
    last_new: int | None,
    committed: int,
) -> None:
    log = log_of(MemoryStorage())
    log.append(entries(1, 1, 2, 3))
    log.commit_to(1)
    new = entries(first, *appended)
    assert log.maybe_append(previous, new, commit) == last_new
    assert log.committed == committed
    if last_new is not None and new:
        assert log.slice(first, log.last_index() + 1, NO_LIMIT) == new


def test_maybe_append_never_rewrites_what_is_committed() -> None:
    log = log_of(MemoryStorage())
    log.append(entries(1, 1, 2, 3))
    log.commit_to(1)
    with pytest.raises(FatalError, match=r"entry 1 conflict with committed entry \[committed\(1"):
        log.maybe_append((0, 0), entries(1, 4), 3)


def test_compaction_leaves_the_rest_as_it_is() -> None:
    storage = StoredLog(*range(1, 751))
    log = log_of(storage)
    log.append(entries(751, *range(751, 1001)))
    assert log.maybe_commit(1000, 1000)
    log.applied_to(1000, 0)
    storage.compact(500)
    assert log.last_index() == 1000
    assert all(log.term(index) == index for index in range(500, 1001))
    assert all(log.matches(index, index) for index in range(500, 1001))
    assert indexes(log.unstable.next_entries()) == list(range(751, 1001))
    log.append(entries(1001, 1001))
    assert log.last_index() == 1001
    assert indexes(log.entries_from(1001, NO_LIMIT)) == [1001]


def partly_stable_log(size_max: int = NO_LIMIT) -> RaftLog:
    """A snapshot at 3, entries 4 to 6, of which 4 is stable, committed up to 5."""
    storage = StoredLog(1, snapshot=Snapshot(3, 1))
    log = log_of(storage, size_max)
    log.append(entries(4, 1, 1, 1))
    log.unstable.stable_to(1, 4)
    log.maybe_commit(1, 5)
    return log


@pytest.mark.parametrize(
    ("applied", "applying", "allow_unstable", "handed_out"),
    [
        (3, 3, True, [4, 5]),
        (3, 4, True, [5]),
        (3, 5, True, []),
        (4, 4, True, [5]),
        (4, 5, True, []),
        (5, 5, True, []),
        (3, 3, False, [4]),
        (3, 4, False, []),
        (3, 5, False, []),
        (4, 4, False, []),
        (4, 5, False, []),
        (5, 5, False, []),
    ],
)
@pytest.mark.parametrize("hindrance", ["", "paused", "snapshot"])
def test_next_committed(
    applied: int, applying: int, allow_unstable: bool, handed_out: list[int], hindrance: str
) -> None:
    log = partly_stable_log()
    log.applied_to(applied, 0)
    log.accept_applying(applying, 0, allow_unstable)
    log.applying_paused = hindrance == "paused"
    if hindrance == "snapshot":
        log.restore(Snapshot(4, 1))
    expected = [] if hindrance else handed_out
    assert indexes(log.next_committed(allow_unstable)) == expected
    assert log.has_next_committed(allow_unstable) is bool(expected)


@pytest.mark.parametrize("allow_unstable", [True, False])
@pytest.mark.parametrize("size", [99, 100, 101])
@pytest.mark.parametrize("index", [3, 4, 5])
def test_accept_applying(index: int, size: int, allow_unstable: bool) -> None:
    log = partly_stable_log(100)
    log.applied_to(3, 0)
    log.accept_applying(index, size, allow_unstable)
    cut_short = index < (5 if allow_unstable else 4)
    assert log.applying_paused is (size >= 100 or cut_short)


@pytest.mark.parametrize(
    ("index", "size", "left", "paused"),
    [
        (4, 4, 101, True),
        (5, 4, 101, True),
        (4, 5, 100, True),
        (5, 5, 100, True),
        (4, 6, 99, False),
        (5, 6, 99, False),
        (4, 105, 0, False),
        (4, 106, 0, False),
    ],
)
def test_applied_to(index: int, size: int, left: int, paused: bool) -> None:
    log = partly_stable_log(100)
    log.applied_to(3, 0)
    log.accept_applying(5, 105, allow_unstable=True)
    log.applied_to(index, size)
    assert (log.applied, log.applying) == (index, 5)
    assert (log.applying_size, log.applying_paused) == (left, paused)


@pytest.mark.parametrize("index", [2, 6])
def test_applied_to_out_of_range_stops_the_node(index: int) -> None:
    log = partly_stable_log()
    with pytest.raises(FatalError, match=rf"applied\({index}\) is out of range"):
        log.applied_to(index, 0)


def test_accept_applying_above_the_commit_stops_the_node() -> None:
    with pytest.raises(FatalError, match=r"applying\(6\) is out of range"):
        partly_stable_log().accept_applying(6, 0, allow_unstable=True)


def test_handing_out_without_budget_stops_the_node() -> None:
    log = partly_stable_log(100)
    log.applying_size = 100
    with pytest.raises(FatalError, match=r"applying entry size \(100-100\)=0 not positive"):
        log.next_committed(allow_unstable=True)


def test_next_unstable() -> None:
    stored = log_of(StoredLog(1, 2))
    assert stored.unstable.next_entries() == []
    log = log_of(MemoryStorage())
    log.append(entries(1, 1, 2))
    assert log.unstable.next_entries() == entries(1, 1, 2)
    log.unstable.stable_to(2, 2)
    assert log.unstable.offset == 3


@pytest.mark.parametrize(("index", "committed"), [(3, 3), (1, 2)])
def test_commit_to(index: int, committed: int) -> None:
    log = log_of(StoredLog(1, 2, 3))
    log.commit_to(2)
    log.commit_to(index)
    assert log.committed == committed


def test_commit_beyond_the_log_stops_the_node() -> None:
    log = log_of(StoredLog(1, 2, 3))
    with pytest.raises(FatalError, match=r"tocommit\(4\) is out of range \[lastIndex\(3\)\]\. Was"):
        log.commit_to(4)


@pytest.mark.parametrize(("index", "term", "offset"), [(1, 1, 2), (2, 2, 3), (2, 1, 1), (3, 1, 1)])
def test_stable_to(index: int, term: int, offset: int) -> None:
    log = log_of(MemoryStorage())
    log.append(entries(1, 1, 2))
    log.unstable.stable_to(term, index)
    assert log.unstable.offset == offset


@pytest.mark.parametrize("index", [6, 5, 4])
@pytest.mark.parametrize("term", [2, 3])
@pytest.mark.parametrize("new", [(), (2,)])
def test_stable_to_with_snapshot(index: int, term: int, new: tuple[int, ...]) -> None:
    log = log_of(StoredLog(snapshot=Snapshot(5, 2)))
    log.append(entries(6, *new))
    log.unstable.stable_to(term, index)
    assert log.unstable.offset == (7 if new and (index, term) == (6, 2) else 6)


def test_restore_from_storage() -> None:
    log = log_of(StoredLog(snapshot=Snapshot(1000, 1000)))
    assert log.last_index() == 1000
    assert (log.first_index(), log.committed, log.unstable.offset) == (1001, 1000, 1001)
    assert log.term(1000) == 1000


@pytest.mark.parametrize("low", [99, 100])
def test_slice_below_the_log(low: int) -> None:
    log = log_of(StoredLog(*range(101, 201), snapshot=Snapshot(100, 100)))
    with pytest.raises(CompactedError):
        log.slice(low, 102, NO_LIMIT)


@pytest.mark.parametrize("index", [101, 151, 200, 201])
def test_empty_slice(index: int) -> None:
    log = log_of(StoredLog(*range(101, 201), snapshot=Snapshot(100, 100)))
    assert log.slice(index, index, NO_LIMIT) == []


@pytest.mark.parametrize(("low", "high"), [(201, 202), (202, 202)])
def test_slice_above_the_log_stops_the_node(low: int, high: int) -> None:
    log = log_of(StoredLog(*range(101, 201), snapshot=Snapshot(100, 100)))
    with pytest.raises(FatalError, match="out of bound"):
        log.slice(low, high, NO_LIMIT)


def test_term() -> None:
    log = log_of(StoredLog(*range(1, 100), snapshot=Snapshot(100, 1)))
    with pytest.raises(CompactedError):
        log.term(99)
    assert [log.term(index) for index in (100, 150, 199)] == [1, 50, 99]
    with pytest.raises(UnavailableError):
        log.term(200)


def test_term_with_unstable_snapshot() -> None:
    log = log_of(StoredLog(snapshot=Snapshot(100, 1)))
    log.restore(Snapshot(105, 1))
    for index in (100, 101, 104):
        with pytest.raises(CompactedError):
            log.term(index)
    assert log.term(105) == 1
    with pytest.raises(UnavailableError):
        log.term(106)


def typed_entries(low: int, high: int) -> list[Entry]:
    """Entries whose encoding has a type: 6 bytes below index 128, 8 above."""
    return [Entry(EntryType.CONF_CHANGE_V2, index, index) for index in range(low, high)]


def half_stable_log() -> RaftLog:
    storage = StoredLog(snapshot=Snapshot(100, 100))
    storage.append(typed_entries(101, 150))
    log = log_of(storage)
    log.append(typed_entries(150, 200))
    return log


SIZE = 8


@pytest.mark.parametrize(
    ("low", "high", "size_max", "until"),
    [
        *[
            (low, high, NO_LIMIT, high)
            for low, high in [
                (101, 101),
                (101, 149),
                (101, 150),
                (101, 151),
                (101, 200),
                (149, 150),
                (149, 151),
                (149, 200),
                (150, 151),
                (150, 200),
                (199, 200),
            ]
        ],
        (101, 200, 0, 102),
        (149, 151, 0, 150),
        (150, 200, 0, 151),
        (151, 200, 0, 152),
        *[
            (low, high, size, low + 1)
            for size in (SIZE - 1, SIZE, SIZE + 1)
            for low, high in [(101, 200), (149, 151), (150, 200)]
        ],
        (101, 200, 2 * SIZE, 103),
        (148, 151, 2 * SIZE, 150),
        (149, 151, 2 * SIZE, 151),
        (150, 200, 2 * SIZE, 152),
        (148, 151, 3 * SIZE - 1, 150),
        (149, 152, 3 * SIZE, 152),
    ],
)
def test_slice(low: int, high: int, size_max: int, until: int) -> None:
    log = half_stable_log()
    assert encoded_size(log.slice(150, 151, NO_LIMIT)) == SIZE
    assert log.slice(low, high, size_max) == typed_entries(low, until)


@pytest.mark.parametrize("low", [99, 100])
def test_slice_of_what_was_compacted(low: int) -> None:
    with pytest.raises(CompactedError):
        half_stable_log().slice(low, 101, NO_LIMIT)


@pytest.mark.parametrize(("low", "high"), [(150, 149), (200, 201)])
def test_slice_that_cannot_be(low: int, high: int) -> None:
    with pytest.raises(FatalError):
        half_stable_log().slice(low, high, NO_LIMIT)


@pytest.mark.parametrize("page_size", [0, 1, 10, 100, SIZE, SIZE + 1])
def test_scan(page_size: int) -> None:
    storage = StoredLog(snapshot=Snapshot(47, 47))
    storage.append(typed_entries(48, 57))
    log = log_of(storage)
    log.append(typed_entries(57, 67))
    for low in range(48, 67):
        for high in range(low, 68):
            pages = list(log.scan(low, high, page_size))
            assert all(len(page) == 1 or encoded_size(page) <= page_size for page in pages)
            assert [entry for page in pages for entry in page] == log.slice(low, high, NO_LIMIT)


def test_scan_fills_its_pages() -> None:
    log = log_of(MemoryStorage())
    log.append(typed_entries(1, 11))
    assert [len(page) for page in log.scan(1, 11, 2 * 6)] == [2, 2, 2, 2, 2]


def test_scan_of_a_storage_that_gives_nothing() -> None:
    class Empty(StoredLog):
        def entries(self, low: int, high: int, size_max: int) -> list[Entry]:
            return super().entries(low, high, size_max)[:0]

    with pytest.raises(RaftError, match=r"got 0 entries in \[1, 3\)"):
        list(log_of(Empty(1, 1)).scan(1, 3, 100))


def test_a_storage_that_lost_entries_stops_the_node() -> None:
    class Lossy(StoredLog):
        def entries(self, *_: int) -> list[Entry]:
            raise UnavailableError

        def term(self, _index: int) -> int:
            raise UnavailableError

    log = log_of(Lossy(1, 1))
    with pytest.raises(FatalError, match=r"entries\[1:3\) is unavailable from storage"):
        log.slice(1, 3, NO_LIMIT)
    with pytest.raises(FatalError, match="unexpected error when getting the last term at 2"):
        log.last_entry_id()


def test_reading_does_not_depend_on_the_length_of_the_log() -> None:
    class Counting(list[Entry]):
        touched = 0

        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            Counting.touched += len(found) if isinstance(found, list) else 1
            return found

    log = log_of(MemoryStorage())
    log.append(entries(1, *[1] * 100_000))
    log.unstable.entries = Counting(log.unstable.entries)
    assert len(log.entries_from(2, 1000)) > 100
    assert Counting.touched < 2000
