"""The client, tried as on systems where no server runs: `make smoke-client` there, once here."""

import subprocess
import sys
from pathlib import Path

SMOKE = Path(__file__).parents[2] / "tools" / "client_smoke.py"


def test_the_client_calls_a_stub_without_the_packages_of_a_server() -> None:
    done = subprocess.run(
        [sys.executable, SMOKE], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"works as a client on {sys.platform}" in done.stdout
