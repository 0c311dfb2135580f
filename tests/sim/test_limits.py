"""A run draws small limits for its members; each exists, differs from production's, and is read."""

import ast
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.sim.faults import without_faults
from kvorum.sim.limits import CHOICES, draw_limits, work_limits
from kvorum.sim.plan import draw_plan
from kvorum.sim.run import Run, simulate_plan
from kvorum.sim.shrink import _cuts
from kvorum.sim.trace import Trace
from kvorum.sim.workloads import ETCD

SOURCE = Path(__file__).parents[2] / "src" / "kvorum"
DEFINITION = SOURCE / "api" / "limits.py"
NAMES = [field.name for field in fields(WorkLimits)]


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules that work within limits, without the definition and the simulator."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if path != DEFINITION and not name.startswith(("sim/", "api/pb/")):
            yield name, ast.parse(path.read_text())


TREES = dict(trees())


def production_reads(node: ast.AST) -> set[str]:
    """Return the limits that a piece of source reads from `PRODUCTION`."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "PRODUCTION"
    }


@pytest.mark.parametrize("name", NAMES)
def test_small_values_differ_from_productions_and_have_its_type(name: str) -> None:
    usual = getattr(PRODUCTION, name)
    assert usual not in CHOICES[name], "that would be no change"
    assert {type(choice) for choice in CHOICES[name]} == {type(usual)}
    for choice in CHOICES[name]:
        assert getattr(work_limits({name: choice}), name) == choice


def test_runs_draw_every_limit_and_no_other() -> None:
    assert list(CHOICES) == NAMES


def test_every_limit_is_read() -> None:
    """From a value that a caller passed in; the defaults of tools do not count."""
    read = {
        node.attr
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id == "PRODUCTION")
    }
    assert set(NAMES) - read == set()


def test_no_limit_is_a_constant_of_a_module_as_well() -> None:
    """A constant made of production's limit would not be small in a run, so each has a reason."""
    made_of_limits = {
        f"{module}: {ast.unparse(target)}"
        for module, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and production_reads(node)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    assert made_of_limits == {
        # What an item or an operation counts for, whatever the length of a slice.
        "state/apply/transactions.py: OPERATION_BYTES",
        "state/mvcc/ranges.py: ITEM_BYTES",
        # The pace at which a new leader spreads the ends of leases.
        "state/lease/lessor.py: _EXPIRIES_PER_SECOND",
    }
    constants = {
        target.id.lower().lstrip("_")
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    # HTTP bodies have slices of their own, which are as long in all runs.
    assert constants & set(NAMES) == {"slice_bytes"}


def test_members_and_servers_have_no_limits_but_those_of_their_configuration() -> None:
    """Only defaults for tools and tests, and constants, may name production's limits there."""
    found = {
        module
        for module, tree in TREES.items()
        if module.startswith(("member/", "server/", "state/", "storage/"))
        and any(isinstance(node, ast.Name) and node.id == "PRODUCTION" for node in ast.walk(tree))
    }
    assert found == {
        "member/config.py",
        # All slices of a check run at once, so their length does not matter.
        "server/rpc/checks.py",
        "state/apply/transactions.py",
        "state/lease/lessor.py",
        "state/mvcc/ranges.py",
        # The offline tools open, export and install databases as well.
        "storage/backend/opening.py",
        "storage/backend/transfer.py",
    }


def test_some_runs_have_the_limits_of_production() -> None:
    drawn = [draw_limits(Random(f"{seed}/limits")) for seed in range(200)]
    assert 20 < sum(not each for each in drawn) < 80
    assert {name for each in drawn for name in each} == set(NAMES)
    assert all(value in CHOICES[name] for each in drawn for name, value in each.items())
    assert work_limits({}) == PRODUCTION


@pytest.mark.parametrize("limits", [{}, {"slice_keys": 1, "purge_seconds": 0.1}])
def test_members_receive_the_limits_of_their_run(limits: dict[str, float], tmp_path: Path) -> None:
    run = Run(replace(draw_plan(3, 3), limits=limits), str(tmp_path), None)
    expected = work_limits(limits)
    for machine in run.cluster.machines.values():
        assert machine.config.limits == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("mark", "limits"),
    [
        ("apply lags behind commit", {"apply_entries_per_clock_check": 1}),
        ("read served over several turns", {"slice_keys": 1, "range_first_read_rows": 1}),
        ("entry applied over several turns", {"slice_keys": 1, "slice_bytes": 1}),
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
    limits = {"apply_entries_per_clock_check": 2, "slice_keys": 3}
    plan = replace(draw_plan(1, 1), limits=limits)
    assert f"limits {limits}" in plan.lines()
    trace = Trace()
    simulate_plan(replace(plan, fault_seconds=0.1), trace)
    assert f"limits {limits}" in trace.text()
    left = [cut(plan).limits for cut in _cuts(plan)]
    assert {} in left
    assert {"apply_entries_per_clock_check": 2} in left
    assert {"slice_keys": 3} in left
