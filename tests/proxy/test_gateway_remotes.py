"""The choice of a gateway's remotes: priorities, weights, turns, and those that failed."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvorum.proxy.remotes import WEIGHTLESS_ONE_IN, ForwardTarget, Remotes

RETRY_SECONDS = 10.0

remotes_with_states = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=3),
        st.integers(min_value=0, max_value=20),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def made(rows: list[tuple[int, int, bool]], seed: int = 1) -> tuple[list[ForwardTarget], Remotes]:
    """Make remotes of these priorities and weights; those that are not active have failed at 0."""
    members = [ForwardTarget("h", port, row[0], row[1]) for port, row in enumerate(rows)]
    remotes = Remotes(members, RETRY_SECONDS, random.Random(seed).randrange)
    for member, (_, _, is_active) in zip(members, rows, strict=True):
        if not is_active:
            remotes.fail(member, 0.0)
    return members, remotes


@given(remotes_with_states, st.integers())
def test_only_active_remotes_of_the_lowest_priority_are_picked(
    rows: list[tuple[int, int, bool]], seed: int
) -> None:
    members, remotes = made(rows, seed)
    active = [each for each in members if each.is_active]
    for _ in range(20):
        picked = remotes.pick()
        if not active:
            assert picked is None
        else:
            assert picked in active
            assert picked.priority == min(each.priority for each in active)


@given(st.integers(min_value=1, max_value=8), st.data())
def test_remotes_without_weights_are_picked_in_turn(count: int, data: st.DataObject) -> None:
    states = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    members, remotes = made([(0, 0, state) for state in states])
    active = [each for each in members if each.is_active]
    picked = Counter(remotes.pick() for _ in range(5 * len(active)))
    assert all(picked[each] == 5 for each in active)


@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=5))
def test_weights_share_connections_exactly(weights: list[int]) -> None:
    """With every outcome of the dice once, each is picked as often as its weight says."""
    outcomes = iter(range(sum(weights)))
    members = [ForwardTarget("h", port, 0, weight) for port, weight in enumerate(weights)]
    remotes = Remotes(members, RETRY_SECONDS, lambda _: next(outcomes))
    picked = Counter(remotes.pick() for _ in range(sum(weights)))
    assert [picked[each] for each in members] == weights


def test_one_without_a_weight_is_rarely_picked_beside_others() -> None:
    weightless, weighted = ForwardTarget("h", 1, 0, 0), ForwardTarget("h", 2, 0, 5)
    outcomes = iter(value for first in range(WEIGHTLESS_ONE_IN) for value in (first, 0))
    remotes = Remotes([weightless, weighted], RETRY_SECONDS, lambda _: next(outcomes))
    assert remotes.pick() is weightless
    next(outcomes)
    assert {remotes.pick() for _ in range(WEIGHTLESS_ONE_IN - 1)} == {weighted}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "try", "succeed"]),
            st.integers(min_value=0, max_value=3),
            st.floats(min_value=0, max_value=2 * RETRY_SECONDS),
        )
    )
)
def test_one_that_failed_is_tried_once_after_the_delay(
    steps: list[tuple[str, int, float]],
) -> None:
    members, remotes = made([(0, 0, True)] * 4)
    failed_at: dict[int, float] = {}
    tried: set[int] = set()
    now = 0.0
    for action, place, seconds in steps:
        now += seconds
        if action == "fail":
            assert remotes.fail(members[place], now) == (place not in failed_at)
            failed_at[place] = now
            tried.discard(place)
        elif action == "succeed":
            assert remotes.succeed(members[place]) == (place in failed_at)
            failed_at.pop(place, None)
            tried.discard(place)
        else:
            waiting = {
                each: moment + RETRY_SECONDS
                for each, moment in failed_at.items()
                if each not in tried
            }
            assert remotes.wake_at() == min(waiting.values(), default=float("inf"))
            due = {each.port for each in remotes.due(now)}
            assert due == {each for each, moment in waiting.items() if moment <= now}
            tried |= due
            assert not remotes.due(now)
