"""`get` and `put` start at once, because they load what they need and nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.network.edge import edge_name
from tests.tools.ctl.store import Store

SCRIPT = Path(__file__).parents[3] / "bin" / "kvorumctl"
COSTLY = {
    "asyncio",
    "base64",
    "cryptography",
    "csv",
    "dataclasses",
    "datetime",
    "email",
    "google.protobuf",
    "hpack",
    "importlib.resources",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "pkgutil",
    "random",
    "rich",
    "ssl",
    "subprocess",
    "tempfile",
    "urllib.parse",
    "uvloop",
    "zlib",
}
"""Each takes a millisecond or more, or brings something that does."""
OURS_MAX = 50
"""How many modules of Kvorum one of these commands may load; each takes a third of a millisecond.

Whoever raises this measures `make bench-ctl` before and after.
"""


@pytest.mark.parametrize(
    "words",
    [
        ("put", "start", "value"),
        ("get", "start"),
        ("get", "--prefix", "sta", "--limit=1", "--sort-by=VALUE"),
        ("del", "start"),
        ("--user=", "--dial-timeout=1s", "--command-timeout=9s", "put", "start", "value"),
    ],
)
def test_a_short_command_loads_little(store: Store, words: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        str(SCRIPT),
        f"--endpoints={store.address}",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip() for line in lines}
    assert "kvorum.client.core" in loaded
    # The pure edge compresses headers in ways that only hpack can read.
    needed = {"hpack", "logging"} if edge_name() == "python" else set()
    assert loaded & COSTLY <= needed
    assert len([name for name in loaded if name.startswith("kvorum")]) <= OURS_MAX


def test_an_interruption_before_there_is_a_command_leaves_no_traceback(tmp_path: Path) -> None:
    # The script loads this in place of the tool, and is interrupted in the middle of that.
    (tmp_path / "kvorum" / "tools" / "ctl").mkdir(parents=True)
    for name in ("kvorum", "kvorum/tools", "kvorum/tools/ctl"):
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "kvorum" / "tools" / "ctl" / "main.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise AssertionError('alive')\n"
    )
    environ = {**environment(), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, env=environ, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def environment() -> dict[str, str]:
    """Return the environment without what would change the command."""
    kept = ("PATH", "PYTHONPATH", "LANG")
    return {name: os.environ[name] for name in kept if name in os.environ}
