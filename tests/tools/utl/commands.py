"""The tools as users run them: `kvorumutl`, and etcd's own beside it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.etcd import binary
from tests.waiting import WAIT_SECONDS_MAX


def run(program: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run `kvorumutl`, `etcdutl` or `etcdctl` to its end."""
    path = Path(sys.executable).parent / program if program == "kvorumutl" else binary(program)
    return subprocess.run(
        [str(path), *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_SECONDS_MAX
    )


def done(program: str, *arguments: str | Path) -> str:
    """Run a command that succeeds; return what it printed."""
    outcome = run(program, *arguments)
    assert outcome.returncode == 0, outcome
    return outcome.stdout


def answer(program: str, *arguments: str | Path) -> Any:
    """Run a command that succeeds; return its answer as JSON."""
    return json.loads(done(program, *arguments, "--write-out=json"))


def refusal(*arguments: str | Path) -> tuple[int, str]:
    """Run `kvorumutl` with something it refuses; return its exit code and what it said."""
    outcome = run("kvorumutl", *arguments)
    hint, is_told, error = outcome.stderr.rpartition("Error: ")
    assert outcome.returncode and is_told and (not hint or hint.startswith("Hint: ")), outcome
    return outcome.returncode, error.strip()
