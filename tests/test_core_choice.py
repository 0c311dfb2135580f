"""Which core runs, how it says so, and that an extension of other sources is never taken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.compiled import MODULES
from kvorum.compiled.extension import PACKAGE, core_name, library, source_hash

REPOSITORY = Path(__file__).parents[1]
needs_compiled = pytest.mark.skipif(
    not library(PACKAGE).exists(), reason="no core is compiled from these sources"
)


def python(code: str, compiled: str | None, package: Path = PACKAGE) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "KVORUM_COMPILED"}
    if compiled is not None:
        environment["KVORUM_COMPILED"] = compiled
    environment["PYTHONPATH"] = str(package.parent)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


VERSION = "from kvorum.process.settings.help import version_text; print(version_text())"
FILE = f"""
from importlib import import_module
for name in {MODULES!r}:
    module = import_module(name)
    assert module.__name__ == name == module.__spec__.name
    print(module.__file__.endswith('.so'))
"""


def test_the_core_that_runs_is_the_one_that_was_asked_for() -> None:
    wanted = os.environ["KVORUM_COMPILED"]
    assert core_name() == {"0": "python", "1": "compiled"}[wanted]
    assert python(FILE, wanted).splitlines() == [str(wanted == "1")] * len(MODULES)


def test_version_names_the_core() -> None:
    assert "core: python" in python(VERSION, "0").splitlines()


@needs_compiled
def test_the_compiled_core_is_taken_where_it_fits() -> None:
    assert "core: compiled" in python(VERSION, None).splitlines()
    assert "core: compiled" in python(VERSION, "1").splitlines()


def test_a_core_nobody_knows_is_an_error() -> None:
    assert "KVORUM_COMPILED is 'yes'; expected '0' or '1'" in python("import kvorum", "yes")


@needs_compiled
def test_a_stale_extension_is_not_taken(tmp_path: Path) -> None:
    changed = tmp_path / "kvorum"
    shutil.copytree(PACKAGE, changed)
    core = "from kvorum.compiled.extension import core_name; print(core_name())"
    assert python(core, None, changed) == "compiled\n"
    # Not compiled itself, but what is compiled holds a constant of it.
    with (changed / "state" / "mvcc" / "pins.py").open("a") as file:
        file.write("\n")
    assert python(core, None, changed) == "python\n"
    assert "no extension is built from these sources" in python(core, "1", changed)


def test_a_new_source_file_changes_the_hash(tmp_path: Path) -> None:
    changed = tmp_path / "kvorum"
    shutil.copytree(PACKAGE, changed)
    assert source_hash(changed) == source_hash(PACKAGE)
    (changed / "state" / "mvcc" / "more.py").write_text('"""More."""\n')
    assert source_hash(changed) != source_hash(PACKAGE)


@needs_compiled
@pytest.mark.parametrize(
    ("seed", "members"), [(0, 1), (4, 3), pytest.param(7, 5, marks=pytest.mark.long)]
)
def test_both_cores_make_the_same_history(seed: int, members: int) -> None:
    """Everything a cluster under faults does, byte for byte."""
    traces = [
        subprocess.run(
            [sys.executable, "-m", "kvorum.sim", "--replay", str(seed), "--members", str(members)],
            cwd=REPOSITORY,
            env={**os.environ, "KVORUM_COMPILED": compiled},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for compiled in ("0", "1")
    ]
    assert len(traces[0].splitlines()) > 300
    assert traces[0] == traces[1]
