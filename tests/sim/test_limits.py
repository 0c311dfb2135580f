"""Limits that a run draws take effect where they are used, on both cores, and only in that run."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from kvorum.sim.faults import without_faults
from kvorum.sim.limits import LIMITS, Limit, draw_limits, limited
from kvorum.sim.plan import draw_plan
from kvorum.sim.run import simulate_plan
from kvorum.sim.shrink import _cuts
from kvorum.sim.trace import Trace
from kvorum.sim.workloads import ETCD

SOURCE = Path(__file__).parents[2] / "src" / "kvorum"
# Made of a limit when their module is imported: what an item counts as, and limits of their own.
MADE_OF_LIMITS = {
    "ITEM_BYTES",
    "KEYS_PER_STEP",
    "OPERATION_BYTES",
    "ROWS_PER_STEP",
    "_EXPIRIES_PER_SECOND",
}
NAMES = [limit.name for limit in LIMITS]


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text())


TREES = dict(trees())


def test_every_importer_is_known() -> None:
    of = {(limit.module, limit.variable): limit for limit in LIMITS}
    found: dict[str, list[str]] = {limit.name: [] for limit in LIMITS}
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    limit = of.get((node.module.removeprefix("kvorum."), alias.name))
                    if limit is not None:
                        assert alias.asname is None, f"{module} renames {limit.name}"
                        found[limit.name].append(module)
    assert found == {limit.name: list(limit.importers) for limit in LIMITS}


@pytest.mark.parametrize("limit", LIMITS, ids=NAMES)
def test_a_limit_is_read_when_it_is_used(limit: Limit) -> None:
    """It is not compiled in, not a default of an argument, and not part of another constant."""
    for module in (limit.module, *limit.importers):
        body = TREES[module].body
        early: list[ast.AST] = [
            node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        early += [
            default
            for node in ast.walk(TREES[module])
            if isinstance(node, ast.FunctionDef)
            for default in (*node.args.defaults, *node.args.kw_defaults)
            if default is not None
        ]
        for statement in early:
            assert not (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.target.id == limit.variable
            ), f"{limit.name} is annotated: a Final is compiled in"
            reads = {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            }
            if limit.variable in reads:
                assert isinstance(statement, ast.Assign | ast.AnnAssign)
                made = {
                    node.id
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
                assert made <= MADE_OF_LIMITS


@pytest.mark.parametrize("limit", LIMITS, ids=NAMES)
def test_a_limit_is_set_everywhere_and_restored(limit: Limit) -> None:
    places = [import_module(f"kvorum.{each}") for each in (limit.module, *limit.importers)]
    usual = getattr(places[0], limit.variable)
    assert usual not in limit.choices, "that would be no change"
    assert {type(choice) for choice in limit.choices} == {type(usual)}
    for choice in limit.choices:
        with limited({limit.name: choice}):
            assert [getattr(place, limit.variable) for place in places] == [choice] * len(places)
        assert [getattr(place, limit.variable) for place in places] == [usual] * len(places)


def test_limits_are_restored_when_a_run_fails() -> None:
    limit = LIMITS[0]
    usual = getattr(limit.places()[0], limit.variable)
    with pytest.raises(ValueError, match="the run"), limited({limit.name: limit.choices[0]}):
        raise ValueError("the run")
    assert getattr(limit.places()[0], limit.variable) == usual


def test_some_runs_have_the_limits_of_production() -> None:
    drawn = [draw_limits(Random(f"{seed}/limits")) for seed in range(200)]
    assert 20 < sum(not each for each in drawn) < 80
    assert {name for each in drawn for name in each} == set(NAMES)
    choices = {limit.name: limit.choices for limit in LIMITS}
    assert all(value in choices[name] for each in drawn for name, value in each.items())


@pytest.mark.long
@pytest.mark.parametrize(
    ("mark", "limits"),
    [
        ("apply lags behind commit", {"member.apply.ENTRIES_PER_CLOCK_CHECK": 1}),
        (
            "read served over several turns",
            {"state.mvcc.slices.KEYS_PER_SLICE": 1, "state.mvcc.ranges.FIRST_READ_ROWS": 1},
        ),
        (
            "entry applied over several turns",
            {"state.mvcc.slices.KEYS_PER_SLICE": 1, "state.mvcc.slices.BYTES_PER_SLICE": 1},
        ),
    ],
)
def test_small_limits_divide_the_work(mark: str, limits: dict[str, float]) -> None:
    """On the compiled core too, where a constant might be compiled in."""

    def reached(limits: dict[str, float]) -> int:
        """Return how often a few quiet runs with busy clients reach the mark."""
        found = 0
        for seed in range(4):
            plan = draw_plan(seed, 1)
            # With a slow log, several entries are committed at once.
            faults = replace(
                without_faults(),
                log_time=(0.05, 0.1),
                turn_budget=(0.0003, 0.0003),
                clock_step=0.0001,
            )
            workload = replace(plan.workload, shapes=(ETCD,) * 8, keys=12, think=0.02)
            run = replace(plan, faults=faults, workload=workload, fault_seconds=2.0, limits=limits)
            outcome = simulate_plan(run)
            assert not outcome.guarantee, outcome.violation
            found += outcome.coverage.get(mark, 0)
        return found

    assert reached(limits) > reached({})


def test_limits_are_in_the_trace_and_are_shrunk_one_by_one() -> None:
    limits = {"member.apply.ENTRIES_PER_CLOCK_CHECK": 2, "state.mvcc.slices.KEYS_PER_SLICE": 3}
    plan = replace(draw_plan(1, 1), limits=limits)
    assert f"limits {limits}" in plan.lines()
    trace = Trace()
    simulate_plan(replace(plan, fault_seconds=0.1), trace)
    assert f"limits {limits}" in trace.text()
    left = [cut(plan).limits for cut in _cuts(plan)]
    assert {} in left
    assert {"member.apply.ENTRIES_PER_CLOCK_CHECK": 2} in left
    assert {"state.mvcc.slices.KEYS_PER_SLICE": 3} in left
