"""Members compact by themselves in some runs, and never what they are to keep."""

import dataclasses

import pytest

from kvorum.member import autocompaction
from kvorum.member.member import Member
from kvorum.member.waits import Steps
from kvorum.sim.plan import Plan, draw_plan
from kvorum.sim.run import simulate_plan

SEED = 3
BY_AGE = {"retention_seconds": 1.0}
BY_REVISION = {"retention_revisions": 5, "retention_check_seconds": 0.2}


def drawn(**options: object) -> Plan:
    plan = draw_plan(SEED, 3)
    return dataclasses.replace(plan, options=plan.options | options)


def test_some_runs_forget_by_age_and_some_by_revision() -> None:
    plans = [draw_plan(seed, 3) for seed in range(100)]
    by_age = [plan for plan in plans if plan.options.get("retention_seconds")]
    by_revision = [plan for plan in plans if plan.options.get("retention_revisions")]
    assert by_age and by_revision and len(by_age) + len(by_revision) < 50


@pytest.mark.parametrize("options", [BY_AGE, BY_REVISION], ids=["by age", "by revision"])
def test_a_run_forgets_what_is_old(options: dict[str, object]) -> None:
    outcome = simulate_plan(drawn(**options))
    assert outcome.guarantee == ""
    assert outcome.coverage["auto compaction"]


@pytest.mark.parametrize("options", [BY_AGE, BY_REVISION], ids=["by age", "by revision"])
def test_forgetting_too_much_is_noticed(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    by_revision = autocompaction.by_revision

    def eager(member: Member, *_: object) -> Steps:
        return by_revision(member, 0, 0.2)

    monkeypatch.setattr(autocompaction, "by_age", eager)
    monkeypatch.setattr(autocompaction, "by_revision", eager)
    assert simulate_plan(drawn(**options)).guarantee == "history is kept"
