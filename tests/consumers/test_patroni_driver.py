"""Patroni's driver for etcd v3 by itself: the leader's key, leases, watches, other members."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.members import MAKES, running_cluster
from tests.consumers import environment

pytestmark = pytest.mark.timeout(180)


def python() -> str:
    """Return an interpreter that has Patroni; skips the test where there is none."""
    if importlib.util.find_spec("patroni"):
        return sys.executable
    environment.require()
    return str(environment.program("python"))


@pytest.mark.parametrize(
    "make", [pytest.param(make, marks=[pytest.mark.campaign] * (make == "etcd")) for make in MAKES]
)
def test_walk(make: str, tmp_path: Path) -> None:
    interpreter = python()
    with running_cluster(tmp_path, make) as cluster:
        program = Path(__file__).with_name("patroni_walk.py")
        words = [interpreter, str(program), *(member.address for member in cluster)]
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as walk:
            try:
                assert walk.stdout is not None
                asked = walk.stdout.readline().strip()
                for member in cluster:
                    if asked == f"http://{member.address}":
                        member.kill()
                _, errors = walk.communicate("\n", timeout=120)
            finally:
                walk.kill()
        assert walk.returncode == 0, errors
        assert [member.is_running for member in cluster].count(False) == 1
