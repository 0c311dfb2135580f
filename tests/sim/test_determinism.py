"""One seed, one history: byte for byte, whatever the interpreter's hash seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def trace_of(seed: int, members: int, hash_seed: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "sim", "--replay", str(seed), "--members", str(members)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr
    return run.stdout


@pytest.mark.parametrize(("seed", "members"), [(0, 1), (4, 3), (7, 5)])
def test_a_seed_gives_one_trace_under_two_hash_seeds(seed: int, members: int) -> None:
    first = trace_of(seed, members, "1")
    assert len(first.splitlines()) > 300
    assert trace_of(seed, members, "2") == first
