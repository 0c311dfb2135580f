"""Leaders compare hashes in some runs; an alarm that nothing explains is noticed."""

import dataclasses

import pytest

from kvorum.member import corruption
from kvorum.member.hashing import Hashed
from kvorum.member.questions import parse_hash
from sim.plan import draw_plan
from sim.run import simulate_plan

SEED = 300000


def another_hash(body: bytes) -> Hashed:
    """Return what no member has said."""
    said = parse_hash(body)
    return said._replace(found=said.found._replace(hash=said.found.hash ^ 1))


@pytest.mark.parametrize("option", ["corrupt_check_seconds", "compact_hash_check_seconds"])
def test_some_runs_compare_hashes_but_none_where_bits_flip(option: str) -> None:
    plans = [draw_plan(seed, 3) for seed in range(100)]
    assert any(plan.options.get(option) for plan in plans)
    assert not any(plan.options.get(option) for plan in plans if plan.faults.flip_gap)


def test_an_alarm_without_damage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = draw_plan(SEED, 3)
    plan = dataclasses.replace(plan, options=plan.options | {"corrupt_check_seconds": 0.2})
    assert not plan.faults.flip_gap
    monkeypatch.setattr(corruption, "parse_hash", another_hash)
    assert simulate_plan(plan).guarantee == "members are equal by HashKV"
