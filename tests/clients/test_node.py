"""The npm client `etcd3`: a walk through everything it does, in its own language."""

import shutil
import subprocess
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parent / "node"


def test_walk(server: str) -> None:
    node = shutil.which("node")
    if node is None or not (DIRECTORY / "node_modules").exists():
        pytest.skip("no Node.js, or `make clients` was not run: the npm client is not installed")
    done = subprocess.run(
        [node, "walk.js", server], cwd=DIRECTORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
