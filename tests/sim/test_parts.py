"""What docs/simulation.md says of every module: whether its code runs in a run, and what drives it.

The test makes runs of each kind in a process of its own, which notes which modules run. A module
that the table calls real, or driven by simulated executors, must have run; a bypassed one must not.
A module that only declares types, constants and errors has run when it was imported.
"""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from kvorum.sim.campaign import size_of
from kvorum.sim.plan import draw_plan
from tests.sim.ran import functions_of

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "kvorum"
PAGE = (REPOSITORY / "docs" / "simulation.md").read_text()
HEADING = "## What of production runs"
REAL, DRIVEN, BYPASSED = "real", "simulated executors", "bypassed"
# Seeds that are known to reach everything, by the number of members and by whether they speak the
# peer protocol; where the code has changed since, others follow.
SEEDS = {(1, True): 45, (1, False): 53, (3, True): 2, (3, False): 0}
SEEDS_MAX = 120


class Row(NamedTuple):
    """A row of the table."""

    names: list[str]
    """Modules, or rooms as `raft/*`: all of their modules that no other row names."""
    status: str
    why: str


class Ran(NamedTuple):
    """What happened in the runs."""

    imported: set[str]
    ran: set[str]
    made: list[list[int]]


def rows() -> list[Row]:
    _, found, rest = PAGE.partition(f"\n{HEADING}\n")
    assert found, f"there is no heading {HEADING}"
    lines = [line for line in rest.split("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [Row(re.findall(r"`([\w/]+(?:\.py|/\*))`", first), *more) for first, *more in cells]


ROWS = rows()
NAMED = {name: row for row in ROWS for name in row.names}


def tree_of(module: str) -> ast.AST:
    return ast.parse((SOURCE / module).read_text())


def modules() -> list[str]:
    """Return every module outside the simulator that is not generated and does not only open."""
    found = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.glob("**/*.py"))
    return [
        name
        for name in found
        if not name.startswith(("api/pb/", "sim/"))
        and (not name.endswith("__init__.py") or functions_of(tree_of(name)))
    ]


MODULES = modules()


def name_in_table(module: str) -> str | None:
    """Return the name in the table that stands for a module: its own, or the closest room's."""
    if module in NAMED:
        return module
    rooms = [f"{parent}/*" for parent in Path(module).parents]
    return next((room for room in rooms if room in NAMED), None)


def dotted(module: str) -> str:
    return ".".join(Path("kvorum", module).with_suffix("").parts).removesuffix(".__init__")


def runs() -> list[tuple[int, int, bool]]:
    """Return runs: seed, members, and whether it is made in any case."""
    needed = [
        (
            next(
                seed
                for seed in (first, *range(SEEDS_MAX))
                if draw_plan(seed, members).faults.frames == frames
            ),
            members,
        )
        for (members, frames), first in SEEDS.items()
    ]
    # What is rare has to do with damage, changes of the members, users, JSON, rare calls, the
    # library, proxies, and backups.
    others = [(seed, size_of(seed)) for seed in range(SEEDS_MAX)]
    rare = [run for run in others if has_rare_faults(*run)]
    return [*((*run, True) for run in needed), *((*run, False) for run in rare)]


def has_rare_faults(seed: int, members: int) -> bool:
    plan = draw_plan(seed, members)
    faults = plan.faults
    return bool(
        faults.flip_gap
        or faults.change_gap
        or faults.quorum_loss
        or plan.workload.inspectors
        or plan.realm
        or plan.dialects
        or plan.library
        or plan.tier
        or plan.backups
    )


@pytest.fixture(scope="module")
def ran() -> Ran:
    wanted = [
        dotted(module)
        for module in MODULES
        if NAMED[name_in_table(module) or ""].status != BYPASSED and has_functions(module)
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.sim.ran"],
        cwd=REPOSITORY,
        input=json.dumps({"wanted": wanted, "runs": runs()}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    return Ran(set(told["imported"]), set(told["ran"]), told["made"])


def has_functions(module: str) -> bool:
    """Return whether a module does more than declare; what errors say of themselves is rare."""
    return not module.endswith("errors.py") and bool(functions_of(tree_of(module)))


def has_run(module: str, ran: Ran) -> bool:
    return dotted(module) in (ran.ran if has_functions(module) else ran.imported)


def test_every_module_is_in_the_table_once() -> None:
    names = [name for row in ROWS for name in row.names]
    assert sorted(names) == sorted(set(names)), "some are named twice"
    assert [name for name in names if name.endswith(".py") and name not in MODULES] == []
    standing = [name_in_table(module) for module in MODULES]
    missing = [module for module, name in zip(MODULES, standing, strict=True) if name is None]
    assert missing == []
    assert [name for name in names if name not in standing] == [], "these stand for nothing"


def test_every_row_says_what_and_why() -> None:
    for row in ROWS:
        assert row.names and row.why, row
        assert row.status in (REAL, DRIVEN, BYPASSED), row


def test_the_tests_that_the_table_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", " ".join(row.why for row in ROWS))
    assert named and [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.mark.long
def test_what_is_called_real_or_driven_has_run(ran: Ran) -> None:
    called = [each for each in MODULES if NAMED[name_in_table(each) or ""].status != BYPASSED]
    assert [each for each in called if not has_run(each, ran)] == [], ran.made


@pytest.mark.long
def test_what_is_called_bypassed_has_not_run(ran: Ran) -> None:
    called = [each for each in MODULES if NAMED[name_in_table(each) or ""].status == BYPASSED]
    assert [each for each in called if has_run(each, ran)] == [], ran.made
    # A run imports no module of a process but its settings and discovery, and no socket.
    needless = re.compile(r"kvorum\.(process\.(?!settings\b|discovery\b)|network\.edge\.pure\b)")
    assert [name for name in ran.imported if needless.match(name)] == []
