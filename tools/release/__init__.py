"""Build and check the artefacts of a release: where they are, and for which Pythons.

The variable PYTHONS lists interpreters; if it is empty, those of PATH count. An interpreter without
its headers, for which no core can be compiled, does not count.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DIST = REPOSITORY / "dist"
MINORS = range(11, 16)
PROBE = """
import ensurepip, sys, sysconfig
from pathlib import Path
assert Path(sysconfig.get_path("include"), "Python.h").exists()
print(f"3.{sys.version_info.minor}")
"""


def _version() -> str:
    text = (REPOSITORY / "src" / "kvorum" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.M)
    assert found is not None
    return found[1]


def _pythons() -> Iterator[tuple[str, Path]]:
    listed = os.environ.get("PYTHONS", "").split()
    on_path = filter(None, (shutil.which(f"python3.{minor}") for minor in MINORS))
    for name in listed or on_path:
        done = subprocess.run([name, "-c", PROBE], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield done.stdout.strip(), Path(name)
        elif listed:
            raise SystemExit(f"{name} cannot build a wheel:\n{done.stderr}")


VERSION = _version()
PYTHONS = dict(_pythons())
"""The interpreters to build for, by their versions, such as `3.11`."""
