"""Steps told from milestones: they fill the time of a request, whatever is known of it."""

from itertools import accumulate, pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.server.telemetry.milestones import Milestones, Row, Way

# Members here are stand-ins, which compiled code does not take.
pytestmark = pytest.mark.sources
MOVES = st.lists(
    st.tuples(
        st.floats(0.0, 0.01),
        *[st.integers(0, 2)] * 6,
        st.sampled_from([0, 0, 0, 5]),
    ),
    max_size=30,
)


def rows_of(moves: list[tuple[float, int, int, int, int, int, int, int]]) -> list[Row]:
    """Return rows in which nothing ever goes back."""
    columns = [list(accumulate(move[column] for move in moves)) for column in range(7)]
    return [
        (columns[0][at], *(columns[column][at] for column in range(1, 7)), moves[at][7])  # type: ignore[misc]
        for at in range(len(moves))
    ]


@given(MOVES, st.sampled_from(Way), st.floats(0.0, 0.2), st.floats(0.0, 0.2), st.booleans())
def test_steps_follow_each_other_from_the_arrival_to_the_end(
    moves: list[tuple[float, int, int, int, int, int, int, int]],
    way: Way,
    arrived: float,
    took: float,
    is_done: bool,
) -> None:
    milestones = noted(*rows_of(moves))
    steps = milestones.steps(way, arrived, arrived + took, is_done=is_done)
    assert steps[0][:2] == ("queue", arrived)
    assert steps[-1][2] == arrived + took
    assert all(began <= ended for _, began, ended in steps)
    assert all(one[2] == other[1] for one, other in pairwise(steps))
    names = [part for name, _, _ in steps for part in name.split("+")]
    assert len(names) == len(set(names))


def noted(*rows: Row) -> Milestones:
    """Return milestones of turns that left these rows."""
    milestones = Milestones(are_exact=True)
    for row in rows:
        note(milestones, row)
    return milestones


def note(milestones: Milestones, row: Row) -> None:
    now, proposed, durable, committed, applied, asked, confirmed, unserved = row
    unstable = SimpleNamespace(offset=durable + 1)
    log = SimpleNamespace(last_index=lambda: proposed, unstable=unstable, committed=committed)
    replica: Any = SimpleNamespace(
        node=SimpleNamespace(raft=SimpleNamespace(log=log)),
        reads=SimpleNamespace(rounds_started=asked, rounds_ended=confirmed),
        state=SimpleNamespace(applied=applied),
    )
    milestones.note(replica, unserved, now)


def test_a_write_among_others() -> None:
    milestones = noted(
        (0.0, 10, 10, 10, 10, 0, 0, 0),
        (1.0, 14, 10, 10, 10, 0, 0, 0),  # it arrived here, at 0.9
        (2.0, 20, 14, 10, 10, 0, 0, 0),
        (3.0, 20, 20, 14, 10, 0, 0, 0),
        (4.0, 30, 20, 20, 14, 0, 0, 0),
    )
    assert milestones.steps(Way.WRITE, 0.9, 4.5) == [
        ("queue", 0.9, 0.9),
        ("propose", 0.9, 1.0),
        ("durable", 1.0, 2.0),
        ("commit", 2.0, 3.0),
        ("apply", 3.0, 4.0),
        ("reply", 4.0, 4.5),
    ]


def test_a_disk_that_a_quorum_does_not_wait_for() -> None:
    milestones = noted(
        (0.0, 10, 10, 10, 10, 0, 0, 0),
        (1.0, 11, 10, 10, 10, 0, 0, 0),
        (2.0, 11, 10, 11, 11, 0, 0, 0),
    )
    names = [name for name, _, _ in milestones.steps(Way.WRITE, 1.0, 2.0)]
    assert names == ["queue", "propose", "commit", "apply", "reply"]


def test_a_read_that_waits_for_the_round_before() -> None:
    milestones = noted(
        (0.0, 10, 10, 10, 10, 5, 4, 0),
        (1.0, 11, 10, 10, 10, 5, 4, 0),  # it arrived here; a round is running
        (2.0, 11, 11, 11, 11, 6, 5, 0),
        (3.0, 11, 11, 11, 11, 6, 6, 0),
    )
    assert milestones.steps(Way.READ, 1.0, 3.5) == [
        ("queue", 1.0, 1.0),
        ("wait", 1.0, 2.0),
        ("confirm", 2.0, 3.0),
        ("read", 3.0, 3.0),
        ("reply", 3.0, 3.5),
    ]


def test_a_request_that_is_not_served_at_once() -> None:
    milestones = noted(
        (0.0, 10, 10, 10, 10, 0, 0, 0),
        (1.0, 10, 10, 10, 10, 0, 0, 7),
        (2.0, 10, 10, 10, 10, 0, 0, 3),
        (3.0, 11, 10, 10, 10, 0, 0, 0),
        (4.0, 11, 11, 11, 11, 0, 0, 0),
    )
    assert milestones.steps(Way.WRITE, 1.0, 4.0)[:2] == [("queue", 1.0, 3.0), ("propose", 3.0, 3.0)]


def test_what_came_before_all_rows_is_not_told_apart() -> None:
    milestones = noted((5.0, 20, 20, 15, 10, 0, 0, 0), (6.0, 30, 30, 20, 20, 0, 0, 0))
    names = [name for name, _, _ in milestones.steps(Way.WRITE, 1.0, 6.5)]
    assert names == ["queue", "propose+durable+commit+apply", "reply"]


@given(MOVES, st.sampled_from([0.0, 0.001, 0.02]))
def test_rows_that_are_close_are_merged(
    moves: list[tuple[float, int, int, int, int, int, int, int]], merged_seconds: float
) -> None:
    milestones = Milestones()
    milestones.merged_seconds = merged_seconds
    given = rows_of(moves)
    for row in given:
        note(milestones, row)
    kept = milestones.rows()
    moved = [row for at, row in enumerate(given) if not at or row[1:] != given[at - 1][1:]]
    assert kept[-1:] == moved[-1:]
    # What is left out came shortly after something that is kept.
    last = -inf
    for row in moved:
        if row in kept:
            last = row[0]
        else:
            assert row[0] - last < merged_seconds
