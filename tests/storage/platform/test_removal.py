"""A server without the calls of Linux, on the pure edge and the sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.network.edge import RUST

HERE = Path(__file__).parent
REPOSITORY = RUST.parent
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="not meant for other systems than Linux"),
]


def run_without_linux(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without Linux's calls; programs that it starts have none either."""
    path = [str(HERE / "removal"), str(RUST.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KVORUM_", "PYTEST_"))
    }
    environment |= {
        "KVORUM_COMPILED": "0",
        "KVORUM_EDGE": "python",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_calls_are_gone() -> None:
    script = """
        import ctypes, os, select
        from kvorum.storage.platform import files, readiness
        assert readiness.Poller.__module__ == readiness.__name__
        assert files.HAS_DRIVE_CACHE and files.sync_data is files.sync_all is not os.fsync
        assert not hasattr(os, 'fdatasync') and not hasattr(ctypes.CDLL(None), 'prctl')
    """
    done = run_without_linux("-c", "if True:" + script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "storage/platform/test_smoke.py",
        "storage/files/test_files.py",
        "embed/test_lending.py",
        "network/edge/test_ends.py",
        "network/edge/test_upstream_ends.py",
    ],
)
def test_tests_pass_without_them(name: str) -> None:
    done = run_without_linux("-m", "pytest", "-q", "-m", "not campaign", f"tests/{name}")
    assert done.returncode == 0, done.stdout + done.stderr
