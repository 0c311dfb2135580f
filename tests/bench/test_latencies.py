"""The arithmetic of `bench.latencies`: dues, percentiles, pauses, each against a naive twin."""

import math

from hypothesis import given
from hypothesis import strategies as st

from bench.latencies import (
    NANOS,
    Activity,
    Schedule,
    by_activity,
    by_second,
    pauses,
    percentile,
    percentiles,
    running,
)

RATES = st.integers(1, 100_000)
LATENCIES = st.lists(st.floats(0, 10) | st.just(math.inf), max_size=60)
ACTIVITIES = st.lists(
    st.builds(
        lambda name, begin, length: Activity(name, begin, begin + length),
        st.sampled_from(["compaction", "snapshot", "defragment"]),
        st.floats(0, 10),
        st.floats(0.001, 3),
    ),
    max_size=5,
)


@given(RATES, st.integers(0, 100 * NANOS))
def test_exactly_the_calls_that_are_due_are_counted(rate: int, now: int) -> None:
    schedule = Schedule(rate)
    count = schedule.due_count(now)
    assert schedule.due_nanos(count - 1) <= now < schedule.due_nanos(count)


@given(RATES, st.integers(1, 100))
def test_the_rate_is_kept_over_whole_seconds(rate: int, seconds: int) -> None:
    assert Schedule(rate).due_nanos(rate * seconds) == seconds * NANOS
    assert Schedule(rate).due_count(seconds * NANOS - 1) == rate * seconds


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 10_000))
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(
    values: list[float], part: int
) -> None:
    found = percentile(sorted(values), part)
    enough = [
        each
        for each in values
        if sum(other <= each for other in values) * 10_000 >= part * len(values)
    ]
    assert found == min(enough)


@given(LATENCIES)
def test_percentiles_are_in_order_and_end_with_the_longest(latencies: list[float]) -> None:
    found = percentiles(latencies)
    assert found.count == len(latencies)
    assert found.median <= found.p99 <= found.p999 <= found.longest
    assert found.longest == max(latencies, default=0.0)


@given(st.integers(10, 1_000), st.integers(1, 2_000), st.integers(100, 500))
def test_a_pause_counts_for_every_call_that_was_due_in_it(
    rate: int, pause_millis: int, begin_millis: int
) -> None:
    # A server that answers at once, but not between these times.
    begin, end = begin_millis * NANOS // 1_000, (begin_millis + pause_millis) * NANOS // 1_000
    schedule = Schedule(rate)
    dues = [schedule.due_nanos(call) for call in range(rate * 4)]
    latencies = [(end - due) / NANOS if begin <= due < end else 0.0 for due in dues]
    seconds = [due / NANOS for due in dues]
    found = pauses(seconds, latencies, 0.0, [])
    paused = [due for due in dues if begin <= due < end]
    assert sum(each.calls for each in found) == len(paused)
    if paused:
        (only,) = found
        assert only.longest == (end - paused[0]) / NANOS
        assert math.isclose(only.end, end / NANOS)


@given(LATENCIES, st.floats(0, 5), ACTIVITIES)
def test_slow_calls_that_were_under_way_together_are_one_pause(
    latencies: list[float], limit: float, activities: list[Activity]
) -> None:
    dues = [call / 10 for call in range(len(latencies))]
    found = pauses(dues, latencies, limit, activities)
    longest = [each.longest for each in found]
    assert longest == sorted(longest, reverse=True)
    slow = {call for call, latency in enumerate(latencies) if latency > limit}
    told = {call for each in found for call in slow if each.begin <= dues[call] <= each.end}
    assert told == slow and sum(each.calls for each in found) == len(slow)
    for each in found:
        calls = [call for call in slow if each.begin <= dues[call] <= each.end]
        ends = {call: dues[call] + latencies[call] for call in calls}
        assert each.longest == max(latencies[call] for call in calls)
        assert (each.begin, each.end) == (dues[min(calls)], max(ends.values()))
        assert each.meanwhile == running(activities, each.begin, each.end)
        # Each but the first began while an earlier one was under way.
        for call in set(calls) - {min(calls)}:
            assert any(before < call and ends[before] >= dues[call] for before in calls)


@given(ACTIVITIES, st.floats(0, 10), st.floats(0, 10))
def test_what_ran_is_what_has_time_in_common(
    activities: list[Activity], begin: float, length: float
) -> None:
    end = begin + length
    common = {each.name for each in activities if min(end, each.end) > max(begin, each.begin)}
    assert set(running(activities, begin, end)) == common


@given(LATENCIES, ACTIVITIES)
def test_calls_are_listed_with_all_that_ran_or_with_nothing(
    latencies: list[float], activities: list[Activity]
) -> None:
    dues = [call / 10 for call in range(len(latencies))]
    found = by_activity(dues, latencies, activities)
    for name, listed in found.items():
        assert listed == [
            latency
            for due, latency in zip(dues, latencies, strict=True)
            if (name in running(activities, due, due + latency))
            or (not name and not running(activities, due, due + latency))
        ]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.integers(1, 20))
def test_every_call_is_told_of_in_the_second_in_which_it_was_due(
    latencies: list[float], rate: int
) -> None:
    dues = [call / rate for call in range(len(latencies))]
    seconds = math.floor(dues[-1]) + 1
    found = by_second(dues, latencies, seconds)
    assert sum(each.count for each in found) == len(latencies)
    assert max(each.longest for each in found) == max(latencies)
