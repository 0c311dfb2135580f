"""The heap of deadlines against a table that is searched through; and sorting in slices."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.state.lease.deadlines import Deadlines
from kvorum.state.lease.sorting import sorted_in_slices
from tests.state.lease.model import finish

SLICE = PRODUCTION.lease_slice_items
MOMENTS = st.integers(0, 20).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.integers(1, 6), MOMENTS),
        st.tuples(st.just("disarm"), st.integers(1, 6), st.just(0.0)),
        st.tuples(st.just("take"), st.just(0), MOMENTS),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_agrees_with_a_table(steps: list[tuple[str, int, float]]) -> None:
    deadlines, table = Deadlines(PRODUCTION), dict[int, float]()
    for step, identity, moment in steps:
        if step == "arm":
            deadlines.arm(identity, moment)
            table[identity] = min(moment, table.get(identity, moment))
        elif step == "disarm":
            deadlines.disarm(identity)
            table.pop(identity, None)
        else:
            due = [(at, each) for each, at in table.items() if at <= moment]
            taken = deadlines.take(moment)
            assert taken == (min(due)[1] if due else None)
            if taken is not None:
                del table[taken]
        assert len(deadlines) == len(table)
        # It may wake up for nothing, but never too late.
        assert deadlines.first <= min(table.values(), default=float("inf"))


@settings(deadline=None)
@given(st.dictionaries(st.integers(), MOMENTS), st.integers(1, 6), MOMENTS)
def test_replaced_entries_come_up_in_order(
    table: dict[int, float], identity: int, moment: float
) -> None:
    deadlines = Deadlines(PRODUCTION)
    deadlines.arm(identity, moment)
    entries = sorted((at, each) for each, at in table.items())
    finish(deadlines.replace(entries))
    taken = [deadlines.take(float("inf")) for _ in range(len(table) + 1)]
    assert taken == [each for _, each in entries] + [None]


def test_stale_entries_are_bounded() -> None:
    deadlines = Deadlines(PRODUCTION)
    for moment in range(5000, 0, -1):
        deadlines.arm(moment % 7, float(moment))
        deadlines.arm(-moment, 0.5)
        deadlines.disarm(-moment)
        assert deadlines.entry_count <= 3 * len(deadlines) + 64
    assert len(deadlines) == 7


def test_ids_that_go_take_their_entries_with_them() -> None:
    deadlines, random = Deadlines(PRODUCTION), Random(1)
    moments = {identity: random.random() for identity in range(3000)}
    for identity, moment in moments.items():
        deadlines.arm(identity, moment)
    left = sorted(moments, key=moments.__getitem__)
    while left:
        # The first by time, or any: a heap in retirement is asked as any other.
        if random.random() < 0.3:
            assert deadlines.take(2.0) == left.pop(0)
        else:
            deadlines.disarm(left.pop(random.randrange(len(left))))
        assert len(deadlines) == len(left)
        assert deadlines.entry_count <= 3 * len(left) + 64
    assert deadlines.take(2.0) is None


@pytest.mark.parametrize("count", [0, 1, SLICE - 1, SLICE, SLICE + 1, 4 * SLICE + 7])
def test_sorting_in_slices_is_sorting(count: int) -> None:
    random = Random(count)
    items = [random.randrange(1000) for _ in range(count)]
    ordered, suspensions = finish(sorted_in_slices(items, SLICE))
    assert ordered == sorted(items)
    assert suspensions >= count // SLICE
