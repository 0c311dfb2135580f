"""`make flakes`: every test that failed even once is named, with what it printed."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FLAKY = """
from pathlib import Path

import pytest

def count(name):
    file = Path(__file__).with_name(name)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())

class TestSome:
    @pytest.mark.parametrize("seed", [7])
    def test_flaky(self, seed):
        print(f"the seed is {seed}")
        assert count("calls") != 2, "it was the second time"

@pytest.fixture
def broken():
    assert count("set up") != 3, "nothing to test with"

def test_with_a_fixture(broken):
    pass

def test_steady():
    pass
"""


def flakes(directory: Path, runs: int, *command: str) -> tuple[int, str]:
    tool = [sys.executable, "-m", "tools.flakes", f"--runs={runs}", f"--directory={directory}"]
    done = subprocess.run(
        [*tool, "--", *command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def pytest_of(test: Path) -> list[str]:
    options = ["-rfE", "-p", "no:cacheprovider", f"--rootdir={test.parent}", "-c", "/dev/null"]
    return [sys.executable, "-m", "pytest", *options, str(test)]


def test_tests_that_fail_once_are_listed_with_their_output(tmp_path: Path) -> None:
    test = tmp_path / "test_some.py"
    test.write_text(FLAKY)
    code, output = flakes(tmp_path / "logs", 4, *pytest_of(test))
    assert code == 1
    summary, _, rest = output.partition("2 of 4 runs are green.")
    assert len(re.findall("(?m)^run .* green", summary)) == 2
    first, second = re.split(r"\n(?=\S*test_some.py::test_with_a_fixture\n)", rest)
    assert "test_some.py::TestSome::test_flaky[7]\nfailed in 1 of 4 runs" in first
    assert "run-2.log" in first and "the seed is 7" in first and "it was the second time" in first
    assert "run-3.log" in second and "nothing to test with" in second
    assert "nothing to test with" not in first and "test_steady" not in output


def test_runs_that_fail_without_a_test_show_how_they_ended(tmp_path: Path) -> None:
    code, output = flakes(tmp_path / "logs", 1, "sh", "-c", "echo no compiler here; exit 3")
    assert code == 1
    assert "RED (exit code 3)" in output and "no test ran" in output
    assert "no compiler here" in output.partition("0 of 1 runs are green")[2]


def test_green_runs_are_green(tmp_path: Path) -> None:
    test = tmp_path / "test_some.py"
    test.write_text("def test_steady():\n    pass\n")
    code, output = flakes(tmp_path / "logs", 2, *pytest_of(test))
    assert code == 0 and "2 of 2 runs are green." in output and "1 passed" in output
