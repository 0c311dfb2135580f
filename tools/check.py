"""Check the changes since the last commit, within a minute: `make check`, after every edit.

The script checks style and types of everything, then runs tests, the most relevant first: changed
tests, tests of the repository's own rules, tests named for a changed module, tests that import one,
and the other tests of its package. It stops starting tests when time is up; `make test` runs all.

Tests run on the Python sources, because compiling the core takes longer than a minute.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SECONDS_MAX = 55.0
"""No test starts later than this after the script."""
PROCESSES = 2
RULES = ("test_style.py", "test_layers.py", "test_left_out.py")


def changed_files(repository: Path) -> list[Path]:
    """Return the existing files that differ from the last commit, new files included."""
    commands = (
        ["git", "diff", "--name-only", "--relative", "HEAD"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    names: set[str] = set()
    for command in commands:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
        names.update(done.stdout.splitlines())
    return [repository / name for name in sorted(names) if (repository / name).is_file()]


def importers(names: Iterable[str], files: Iterable[Path]) -> list[Path]:
    """Return the files that import one of these modules."""
    parts = [name.rpartition(".") for name in names]
    patterns = [rf"\b{re.escape(f'{room}.{module}')}\b" for room, _, module in parts]
    patterns += [
        rf"from {re.escape(room)} import [^\n]*\b{re.escape(module)}\b" for room, _, module in parts
    ]
    pattern = re.compile("|".join(patterns) or "(?!)")
    return [file for file in files if pattern.search(file.read_text())]


def concerned_tests(changed: list[Path], repository: Path) -> list[Path]:
    """Return the test files that are affected by changes, the most relevant first."""
    tests = repository / "tests"
    every = sorted(tests.rglob("test_*.py"))
    python = [path.relative_to(repository) for path in changed if path.suffix == ".py"]
    modules = [path.relative_to("src") for path in python if path.parts[0] == "src"]
    helpers = [path for path in python if path.parts[0] in ("tests", "tools", "bench")]
    names = [".".join(path.with_suffix("").parts) for path in (*modules, *helpers)]
    rooms = [tests / Path(*path.parts[1:-1]) for path in modules]
    closest = [path for path in every if path in changed]
    closest += [tests / name for name in RULES if python]
    for room, module in zip(rooms, modules, strict=True):
        closest += [path for path in every if path.parent == room and module.stem in path.stem]
    closest += importers(names, every)
    rooms = [room for room in rooms if room != tests]
    closest += [path for path in every if any(path.is_relative_to(room) for room in rooms)]
    return list(dict.fromkeys(path for path in closest if path in every))


class Deadline:
    """A pytest plugin that ends the run at a moment, so that no further test starts."""

    def __init__(self, end: float) -> None:
        self._end = end
        self.is_over = False
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session so that it can be ended."""
        self._session = session

    def pytest_runtest_logfinish(self) -> None:
        """End the run when the time is up."""
        assert self._session is not None
        if time.monotonic() >= self._end:
            self.is_over = True
            self._session.shouldstop = "the minute is over; 'make test' runs the other tests"


def main() -> int:
    """Run all checks that fit into the time; return 0 if none failed."""
    end = time.monotonic() + SECONDS_MAX
    changed = changed_files(REPOSITORY)
    commands = [["ruff", "check", "--quiet"], ["ruff", "format", "--check", "--quiet"], ["mypy"]]
    code = 0
    for command in commands:
        program = str(Path(sys.executable).with_name(command[0]))
        code |= subprocess.run([program, *command[1:]], cwd=REPOSITORY, check=False).returncode
    tests = concerned_tests(changed, REPOSITORY)
    if code or not tests:
        print("no test was run" if code else "no test concerns what changed")
        return code
    os.environ["KVORUM_COMPILED"] = "0"
    options = [f"--numprocesses={PROCESSES}", "--dist=worksteal", "-qq", "--exitfirst"]
    chosen = ["-m", "not campaign and not long", *map(str, tests)]
    deadline = Deadline(end)
    found = pytest.main([*options, *chosen], plugins=[deadline])
    is_clean = found in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return 0 if is_clean or (deadline.is_over and found == pytest.ExitCode.INTERRUPTED) else 1


if __name__ == "__main__":
    sys.exit(main())
