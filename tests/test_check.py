"""`make check`: which tests a change concerns, and that a run ends when its time is over."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.check import RULES, changed_files, concerned_tests

REPOSITORY = Path(__file__).parents[1]


def write(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with two rooms."""
    for name in RULES:
        write(tmp_path, f"tests/{name}")
    write(tmp_path, "src/kvorum/raft/log.py")
    write(tmp_path, "src/kvorum/raft/node.py")
    write(tmp_path, "src/kvorum/client/core.py")
    write(tmp_path, "tests/raft/test_log.py")
    write(tmp_path, "tests/raft/test_other.py")
    write(tmp_path, "tests/member/test_entries.py", "from kvorum.raft import entries, log\n")
    write(tmp_path, "tests/member/test_full.py", "from kvorum.raft.log import Log\n")
    write(tmp_path, "tests/member/test_logging.py", "from kvorum.raft.logs import Log\n")
    write(tmp_path, "tests/client/test_core.py", "from tests.client.harness import run\n")
    write(tmp_path, "tests/client/harness.py")
    git = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "begin"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def chosen(checkout: Path) -> list[str]:
    tests = concerned_tests(changed_files(checkout), checkout)
    names = [str(path.relative_to(checkout / "tests")) for path in tests]
    return [name for name in names if name not in RULES]


def test_a_module_concerns_its_tests_its_importers_and_its_room(checkout: Path) -> None:
    write(checkout, "src/kvorum/raft/log.py", "x = 1\n")
    assert chosen(checkout) == [
        "raft/test_log.py",
        "member/test_entries.py",
        "member/test_full.py",
        "raft/test_other.py",
    ]


def test_tests_that_changed_come_first_and_harnesses_have_importers(checkout: Path) -> None:
    write(checkout, "tests/raft/test_new.py")
    write(checkout, "tests/client/harness.py", "x = 1\n")
    tests = concerned_tests(changed_files(checkout), checkout)
    assert tests[0] == checkout / "tests/raft/test_new.py"
    assert chosen(checkout) == ["raft/test_new.py", "client/test_core.py"]


def test_pages_and_deleted_modules_concern_no_test(checkout: Path) -> None:
    write(checkout, "README.md", "Hello.\n")
    (checkout / "src/kvorum/client/core.py").unlink()
    assert chosen(checkout) == []


def test_no_test_begins_when_the_time_is_over(tmp_path: Path) -> None:
    write(tmp_path, "test_some.py", "def test_one(): pass\ndef test_two(): pass\n")
    script = f"""
import pytest
from tools.check import Deadline
over = Deadline(0.0)
options = ["-q", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir={tmp_path}"]
code = pytest.main([*options, "{tmp_path}/test_some.py"], plugins=[over])
print(code.name, over.is_over)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "INTERRUPTED True" in done.stdout and "1 passed" in done.stdout
