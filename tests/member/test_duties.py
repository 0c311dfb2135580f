"""When duties are done: with ticks where those are often enough, and otherwise in time."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.member import duties
from kvorum.member.config import MemberConfig
from kvorum.member.duties import Duty, Schedule
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.member import member_config

TICKS = 60
NOBODY: Any = None
seconds = st.integers(1, 400).map(lambda hundredths: hundredths / 100)


class Recorder:
    """Duties at these intervals, and when each was done."""

    def __init__(self, intervals: list[float]) -> None:
        self.intervals = intervals
        self.done: list[list[float]] = [[0.0] for _ in intervals]

    def schedule(self, tick: float) -> Schedule:
        def regular(number: int) -> Duty:
            return Duty("", self.intervals[number], lambda _, now: self.done[number].append(now))

        def table(_: MemberConfig) -> tuple[Duty, ...]:
            asked = tuple(Duty("", lambda _: inf, lambda *_: None) for _ in range(2))
            return (*asked, *map(regular, range(len(self.intervals))))

        config = member_config(make_config({}), "d")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(duties, "_make_duties", table)
            return Schedule(0.0, replace(config, heartbeat_seconds=tick))


@pytest.mark.sources
@given(seconds, st.lists(seconds, min_size=1, max_size=4), st.lists(st.floats(0, 0.2), min_size=1))
def test_a_duty_is_done_in_time_and_wakes_nobody_between_frequent_ticks(
    tick: float, intervals: list[float], lateness: list[float]
) -> None:
    recorder = Recorder(intervals)
    schedule = recorder.schedule(tick)
    now, wakes = 0.0, 0
    for number in range(1, TICKS + 1):
        # A tick may be late; the next one is not, because of that.
        moment = tick * (number + lateness[number % len(lateness)])
        while (due := schedule.next_moment(NOBODY)) < moment:
            assert due > now, "woken for nothing"
            now, wakes = due, wakes + 1
            schedule.run(NOBODY, now)
        now, schedule.has_ticked = moment, True
        schedule.run(NOBODY, now)
        # Turns that no tick begins do nothing early.
        before = [len(each) for each in recorder.done]
        schedule.run(NOBODY, now)
        assert before == [len(each) for each in recorder.done]
    assert not wakes or min(intervals) < tick
    for interval, done in zip(intervals, recorder.done, strict=True):
        done.append(now)
        gaps = [after - before for before, after in pairwise(done)]
        latest = interval if interval < tick else interval + 0.7 * tick
        assert max(gaps) <= latest + 1e-9
        assert min(gaps[:-1], default=inf) >= interval - 0.5 * tick - 1e-9
