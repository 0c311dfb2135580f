"""Where `make consumers` installs what it runs; tests that need it are skipped before that."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DIRECTORY = REPOSITORY / ".venv" / "consumers"
INSTALLED = DIRECTORY / ".installed"
"""Present once everything is there, Debian's packages too."""


def require() -> None:
    """Skip the test if the consumers are not installed."""
    if not INSTALLED.exists():
        pytest.skip("the consumers are not installed: 'make consumers' does that")


def program(name: str) -> Path:
    """Return the path of a program of the consumers' environment."""
    return DIRECTORY / "bin" / name


def run_unittest(module: str, **variables: str) -> None:
    """Run a consumer's own tests, which variables tell where the server is.

    All that apply must pass; those that do not are skipped by themselves, and printed.
    """
    done = subprocess.run(
        [program("python"), "-m", "unittest", "--verbose", module],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-20_000:]
    skipped = [line for line in done.stderr.splitlines() if " ... skipped " in line]
    summary = re.search(r"^Ran (\d+) tests", done.stderr, re.M)
    assert summary is not None
    print("\n".join([*skipped, f"{summary[0]}, {len(skipped)} skipped"]))  # noqa: T201
    assert int(summary[1]) > 2 * len(skipped)
