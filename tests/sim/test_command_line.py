"""The command line: a summary last, an exit code, and what it says of a seed that fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# Runs the command line with a bug in place.
WITH_A_BUG = """
import sys
from kvorum.sim.__main__ import main
from kvorum.sim.planted import index_ahead_of_effects
sys.argv = ["sim", *sys.argv[1:]]
with index_ahead_of_effects():
    sys.exit(main())
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_summary_is_the_last_line() -> None:
    ended = run("-m", "kvorum.sim", "--seeds", "3", "--first-seed", "4", "--members", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("3 seeds from 4 in ") and last.endswith("; 0 violations")
    assert " virtual hours; faults: " in last and " operations, " in last
    assert ended.stderr == "", "a bar is for terminals"


@pytest.mark.long
def test_seeds_without_proxies_can_be_left_out() -> None:
    ended = run("-m", "kvorum.sim", "--seeds", "2", "--proxies", "--members", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    happened = next(line for line in ended.stdout.splitlines() if line.startswith("happened: "))
    found = re.search(r"(\d+) calls through proxies", happened)
    assert found and int(found[1]) > 20, happened


@pytest.mark.sources
def test_a_failing_seed_says_what_and_how_to_see_it_again() -> None:
    ended = run("-c", WITH_A_BUG, "--seeds", "8", "--members", "1")
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    failed = [line for line in lines if line.startswith("failed: seed ")]
    assert failed
    found = re.fullmatch(r"failed: seed (\d+), 1 members: (.+)", failed[0])
    assert found
    seed, guarantee = found.groups()
    told = re.compile(rf"seed {seed} with 1 members at commit \S+ violates: {guarantee}")
    assert any(told.fullmatch(line) for line in lines)
    assert f"replay: python -m kvorum.sim --replay {seed} --members 1" in lines
    assert f"picture: python -m kvorum.sim --replay {seed} --members 1 --plot" in lines
    assert any(f" !!! {guarantee}: " in line for line in lines), "the trace ends with it"
    assert not any("depends on more than the seed" in line for line in lines)
    assert lines[-1].endswith(f" {len(failed)} violations")
