"""A call in steps: others work at its pauses, one thread at a time, and it can be ended there."""

from collections.abc import Callable

import pytest

from kvorum.sim.steps import Stepped


class End(BaseException):
    pass


def make(work: Callable[[Stepped], object]) -> Stepped:
    stepped: Stepped
    stepped = Stepped(lambda: work(stepped))
    return stepped


def test_other_things_happen_at_pauses() -> None:
    happened: list[str] = []

    def work(stepped: Stepped) -> str:
        for number in range(3):
            happened.append(f"step {number}")
            stepped.pause()
        return "done"

    stepped = make(work)
    while not stepped.has_ended:
        stepped.advance()
        happened.append("other")
    assert happened == ["step 0", "other", "step 1", "other", "step 2", "other", "other"]
    assert stepped.result() == "done"


def test_a_pause_that_is_not_wanted_is_none() -> None:
    stepped = make(lambda stepped: stepped.pause(is_wanted=False))
    stepped.advance()
    assert stepped.has_ended


def test_what_it_raises_is_its_result() -> None:
    def work(stepped: Stepped) -> None:
        stepped.pause()
        raise ValueError("no")

    stepped = make(work)
    stepped.advance()
    stepped.advance()
    with pytest.raises(ValueError, match="no"):
        stepped.result()


def test_it_ends_at_its_pause_and_gets_no_further_on_its_way_out() -> None:
    happened: list[str] = []

    def work(stepped: Stepped) -> None:
        try:
            stepped.pause()
            happened.append("after its end")
        finally:
            happened.append("on its way out")
            stepped.pause(is_wanted=False)
            happened.append("beyond")

    stepped = make(work)
    stepped.advance()
    stepped.end(End())
    assert stepped.has_ended
    assert happened == ["on its way out"]
    with pytest.raises(End):
        stepped.result()


def test_a_call_that_has_not_started_never_does() -> None:
    happened: list[str] = []
    stepped = make(lambda _: happened.append("begun"))
    stepped.end(End())
    assert happened == []
