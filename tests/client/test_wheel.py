"""The client where there is neither a compiler nor cargo: it is built and installed, and works."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kvorum import running_kvorum

REPOSITORY = Path(__file__).parents[2]
FILES = ["LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
PROGRAM = """
import sys
import kvorum
with kvorum.Client(sys.argv[1], timeout=60) as client:
    client.put("installed", kvorum.__file__)
    print(client.get("installed").text)
"""


@pytest.mark.long
def test_a_wheel_that_is_built_without_compilers_has_a_working_client(tmp_path: Path) -> None:
    source, built, installed = tmp_path / "source", tmp_path / "built", tmp_path / "installed"
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "target", "*.egg-info")
    for name in ("bin", "distributions", "src", "rust"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=leave_out)
    for name in FILES:
        shutil.copy(REPOSITORY / name, source / name)
    (tmp_path / "nothing").mkdir()
    environment = {"PATH": str(tmp_path / "nothing")}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, built],
        cwd=source,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "stays pure Python, because there is no cargo" in done.stderr
    assert "stays Python, because there is no C compiler" in done.stderr
    (wheel,) = built.iterdir()
    with zipfile.ZipFile(wheel) as content:
        content.extractall(installed)
    assert not list(installed.rglob("*.so"))
    assert not (installed / "kvorum" / "sim" / "planted").exists()
    with running_kvorum(tmp_path / "data") as server:
        told = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.address],
            env={**os.environ, "PYTHONPATH": str(installed)},
            check=True,
            capture_output=True,
            text=True,
        )
    assert Path(told.stdout.strip()).is_relative_to(installed)
