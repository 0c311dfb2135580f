"""What happens to a process that stands still happens in its order when it goes on."""

from hypothesis import given
from hypothesis import strategies as st

from kvorum.sim.standstill import Standstill
from kvorum.sim.world import World


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 2.0) | st.none()), max_size=20))
def test_what_waits_keeps_its_order_however_often_it_stands_still(
    happenings: list[tuple[float, float | None]],
) -> None:
    world = World(0)
    standstill = Standstill(world)
    asked: list[int] = []
    happened: list[int] = []

    def happen(number: int) -> None:
        if not standstill.later(happen, number):
            assert standstill.until <= world.now
            happened.append(number)

    def ask(number: int) -> None:
        asked.append(number)
        happen(number)

    moment = 0.0
    for number, (gap, seconds) in enumerate(happenings):
        moment += gap
        if seconds is None:
            world.at(moment, ask, number)
        else:
            world.at(moment, standstill.pause_for, seconds)
    world.run_until(moment + 3.0)
    assert happened == asked
