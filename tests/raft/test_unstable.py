"""The unstable part of the log, table by table and against a plain list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.raft.entries import NO_LIMIT, Entry
from kvorum.raft.log import RaftLog
from kvorum.raft.messages import Snapshot
from kvorum.raft.storage import MemoryStorage
from kvorum.raft.unstable import Unstable
from tests.raft.cores import Lines, StoredLog, entries

SNAPSHOT = Snapshot(4, 1)


def unstable(
    offset: int, *terms: int, in_progress: int | None = None, snapshot: Snapshot | None = None
) -> Unstable:
    part = Unstable(offset, Lines())
    part.entries = entries(offset, *terms)
    part.offset_in_progress = offset if in_progress is None else in_progress
    part.snapshot = snapshot
    return part


@pytest.mark.parametrize("terms", [(1,), ()])
@pytest.mark.parametrize("snapshot", [None, SNAPSHOT])
def test_first_and_last_index(terms: tuple[int, ...], snapshot: Snapshot | None) -> None:
    log = RaftLog(StoredLog(1, 1, 1, 1), Lines())
    log.unstable = unstable(5, *terms, snapshot=snapshot)
    assert log.first_index() == (5 if snapshot else 1)
    assert log.last_index() == (5 if terms else 4)


@pytest.mark.parametrize(
    ("terms", "snapshot", "index", "term"),
    [
        ((1,), None, 5, 1),
        ((1,), None, 6, None),
        ((1,), None, 4, None),
        ((1,), SNAPSHOT, 5, 1),
        ((1,), SNAPSHOT, 6, None),
        ((1,), SNAPSHOT, 4, 1),
        ((1,), SNAPSHOT, 3, None),
        ((), SNAPSHOT, 5, None),
        ((), SNAPSHOT, 4, 1),
        ((), None, 5, None),
    ],
)
def test_term(
    terms: tuple[int, ...], snapshot: Snapshot | None, index: int, term: int | None
) -> None:
    assert unstable(5, *terms, snapshot=snapshot).term(index) == term


def test_restore() -> None:
    part = unstable(5, 1, in_progress=6, snapshot=SNAPSHOT)
    part.snapshot_in_progress = True
    part.restore(Snapshot(6, 2))
    assert (part.offset, part.offset_in_progress, part.entries) == (7, 7, [])
    assert part.snapshot == Snapshot(6, 2)
    assert not part.snapshot_in_progress


@pytest.mark.parametrize(
    ("in_progress", "expected"), [(5, entries(5, 1, 1)), (6, entries(6, 1)), (7, [])]
)
def test_next_entries(in_progress: int, expected: list[Entry]) -> None:
    part = unstable(5, 1, 1, in_progress=in_progress)
    assert part.next_entries() == expected
    assert part.has_next_entries() is bool(expected)


def test_next_snapshot() -> None:
    assert unstable(5).next_snapshot() is None
    part = unstable(5, snapshot=SNAPSHOT)
    assert part.next_snapshot() == SNAPSHOT
    part.snapshot_in_progress = True
    assert part.next_snapshot() is None


@pytest.mark.parametrize(
    ("terms", "before", "after"),
    [((), 5, 5), ((1,), 5, 6), ((1, 1), 5, 7), ((1, 1), 6, 7), ((1, 1), 7, 7)],
)
@pytest.mark.parametrize("snapshot", [None, SNAPSHOT])
@pytest.mark.parametrize("in_progress", [False, True])
def test_accept_in_progress(
    terms: tuple[int, ...], before: int, after: int, snapshot: Snapshot | None, in_progress: bool
) -> None:
    part = unstable(5, *terms, in_progress=before, snapshot=snapshot)
    part.snapshot_in_progress = in_progress and snapshot is not None
    part.accept_in_progress()
    assert part.offset_in_progress == after
    assert part.snapshot_in_progress is (snapshot is not None)


@pytest.mark.parametrize(
    ("offset", "terms", "in_progress", "snapshot", "index", "term", "expected"),
    [
        (0, (), 0, None, 5, 1, (0, 0, 0)),
        (5, (1,), 6, None, 5, 1, (6, 6, 0)),
        (5, (1, 1), 6, None, 5, 1, (6, 6, 1)),
        (5, (1, 1), 7, None, 5, 1, (6, 7, 1)),
        (6, (2,), 7, None, 6, 1, (6, 7, 1)),
        (5, (1,), 6, None, 4, 1, (5, 6, 1)),
        (5, (1,), 6, None, 4, 2, (5, 6, 1)),
        (5, (1,), 6, SNAPSHOT, 5, 1, (6, 6, 0)),
        (5, (1, 1), 6, SNAPSHOT, 5, 1, (6, 6, 1)),
        (5, (1, 1), 7, SNAPSHOT, 5, 1, (6, 7, 1)),
        (6, (2,), 7, Snapshot(5, 1), 6, 1, (6, 7, 1)),
        (5, (1,), 6, SNAPSHOT, 4, 1, (5, 6, 1)),
        (5, (2,), 6, Snapshot(4, 2), 4, 1, (5, 6, 1)),
    ],
)
def test_stable_to(
    offset: int,
    terms: tuple[int, ...],
    in_progress: int,
    snapshot: Snapshot | None,
    index: int,
    term: int,
    expected: tuple[int, int, int],
) -> None:
    part = unstable(offset, *terms, in_progress=in_progress, snapshot=snapshot)
    part.stable_to(term, index)
    assert (part.offset, part.offset_in_progress, len(part.entries)) == expected


def test_what_is_ignored_is_said() -> None:
    part = unstable(5, 2, snapshot=SNAPSHOT)
    logger = part._logger
    assert isinstance(logger, Lines)
    part.stable_to(1, 9)
    part.stable_to(1, 4)
    part.stable_to(1, 5)
    assert logger.take() == [
        "INFO entry at index 9 missing from unstable log; ignoring",
        "INFO entry at index 4 matched unstable snapshot; ignoring",
        "INFO entry at (index,term)=(5,1) mismatched with entry at (5,2) in unstable log; ignoring",
    ]


@pytest.mark.parametrize(
    ("terms", "before", "first", "appended", "offset", "after", "whole"),
    [
        ((1,), 5, 6, (1, 1), 5, 5, (1, 1, 1)),
        ((1,), 6, 6, (1, 1), 5, 6, (1, 1, 1)),
        ((1,), 5, 5, (2, 2), 5, 5, (2, 2)),
        ((1,), 5, 4, (2, 2, 2), 4, 4, (2, 2, 2)),
        ((1,), 6, 5, (2, 2), 5, 5, (2, 2)),
        ((1, 1, 1), 5, 6, (2,), 5, 5, (1, 2)),
        ((1, 1, 1), 5, 7, (2, 2), 5, 5, (1, 1, 2, 2)),
        ((1, 1, 1), 6, 6, (2,), 5, 6, (1, 2)),
        ((1, 1, 1), 7, 6, (2,), 5, 6, (1, 2)),
    ],
)
def test_truncate_and_append(
    terms: tuple[int, ...],
    before: int,
    first: int,
    appended: tuple[int, ...],
    offset: int,
    after: int,
    whole: tuple[int, ...],
) -> None:
    part = unstable(5, *terms, in_progress=before)
    handed_out = part.slice(5, 5 + len(terms), NO_LIMIT)
    part.truncate_and_append(entries(first, *appended))
    assert (part.offset, part.offset_in_progress) == (offset, after)
    assert part.entries == entries(offset, *whole)
    assert handed_out == entries(5, *terms), "what was handed out has changed"


# Steps of a log that is appended to, truncated, handed out and acknowledged.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.just("accept"), st.just(0), st.just(0)),
        st.tuples(st.just("stable"), st.integers(0, 5), st.integers(0, 1)),
    ),
    max_size=30,
)


@given(steps)
def test_against_a_list(given_steps: list[tuple[str, int, int]]) -> None:
    log = RaftLog(MemoryStorage(), Lines())
    model: list[int] = []  # the term of every entry
    stable = in_progress = term = 0
    for name, first, second in given_steps:
        if name == "append":
            term += 1
            start = max(len(model) - first, 0)
            model[start:] = [term] * second
            stable, in_progress = min(stable, start), min(in_progress, start)
            log.append(entries(start + 1, *[term] * second))
        elif name == "accept":
            new = log.unstable.next_entries()
            assert new == entries(in_progress + 1, *model[in_progress:])
            log.unstable.accept_in_progress()
            in_progress = len(model)
        else:
            index = in_progress - first
            if index <= stable:
                continue
            # A write of another term says nothing about what is here now.
            log.unstable.stable_to(model[index - 1] + second, index)
            if second == 0:
                storage = log.storage
                assert isinstance(storage, MemoryStorage)
                storage.append(entries(stable + 1, *model[stable:index]))
                stable = index
        assert log.unstable.offset == stable + 1
        assert log.unstable.offset_in_progress == in_progress + 1
        assert log.unstable.entries == entries(stable + 1, *model[stable:])
        assert log.last_index() == len(model)
        for index in range(stable + 1, len(model) + 2):
            expected = model[index - 1] if index <= len(model) else None
            assert log.unstable.term(index) == expected
