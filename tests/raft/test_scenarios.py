"""Every scenario file, to the letter: the field's own and ours.

The field's files are looked for in KVORUM_RAFT_SCENARIOS. Ours are the documentation of this
library; KVORUM_RAFT_REWRITE=1 writes what happens into them, to be reviewed as a change.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.raft import datadriven, quorum_driver
from tests.raft.changer_driver import ChangerDriver
from tests.raft.datadriven import Case
from tests.raft.interaction import Interaction

REPOSITORY = Path(__file__).parents[2]
GIVEN = Path(os.environ.get("KVORUM_RAFT_SCENARIOS", REPOSITORY.parent / "shared/conformance/raft"))
OURS = Path(__file__).parent / "scenarios"
REWRITE = os.environ.get("KVORUM_RAFT_REWRITE") == "1"


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.txt") if not path.name.startswith((".", "#")))


def handler_for(path: Path) -> Callable[[Case], str]:
    first = next((part for part in datadriven.read_cases(path) if isinstance(part, Case)), None)
    command = first.command if first else ""
    if command in ("committed", "vote"):
        return quorum_driver.handle
    if command in ("simple", "enter-joint", "leave-joint"):
        return ChangerDriver().handle
    return Interaction().handle


def parameters(folder: Path, where_to_get_them: str) -> list[ParameterSet]:
    missing = pytest.mark.skip(reason=f"no scenario files below {folder}; {where_to_get_them}")
    found = [pytest.param(path, id=str(path.relative_to(folder))) for path in files_below(folder)]
    return found or [pytest.param(folder, id="none", marks=missing)]


@pytest.mark.parametrize("path", parameters(GIVEN, "set KVORUM_RAFT_SCENARIOS to their folder"))
def test_scenario_of_the_field(path: Path) -> None:
    datadriven.run(path, handler_for(path))


@pytest.mark.parametrize("path", parameters(OURS, "they are part of this repository"))
def test_scenario_of_ours(path: Path) -> None:
    datadriven.run(path, handler_for(path), rewrite=REWRITE)
