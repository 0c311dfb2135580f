"""Install each artefact of dist/ where there is no compiler, and try it: `make release-check`.

Each environment is new and empty, and its PATH has neither a compiler nor cargo. The installer may
get what our distributions depend on from its index; what is ours comes from dist/ alone.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

from tools.release import DIST, PYTHONS, VERSION

SMOKE = Path(__file__).with_name("smoke.py")
CLIENT = f"kvorum_client-{VERSION}-py3-none-any.whl"
ETCD = f"kvorum_etcd-{VERSION}-py3-none-any.whl"
PURE = f"kvorum-{VERSION}-py3-none-any.whl"
SOURCES = f"kvorum-{VERSION}.tar.gz"
OF_THE_CLIENT = {"hpack", "kvorum-client", "pip", "protobuf"}


def native(version: str) -> str:
    """Return the pattern of the wheel for a version of Python on this machine."""
    tag = f"cp{version.replace('.', '')}"
    return f"kvorum-{VERSION}-{tag}-{tag}-*manylinux_2_28_{platform.machine()}.whl"


def find(pattern: str) -> Path:
    """Return the artefact of this name; end if there is not exactly one."""
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        sys.exit(f"dist/ has {len(found)} files like {pattern}, expected 1; run 'make wheels'")
    return found[0]


def check_files() -> None:
    """Check that no file is in two distributions: installing one would overwrite the other's."""
    client, etcd = names(find(CLIENT)), names(find(ETCD))
    for path in DIST.glob(f"kvorum-{VERSION}-*.whl"):
        shared = names(path) & (client | etcd) | client & etcd
        assert not shared, f"{path.name} has files of another distribution: {sorted(shared)}"
        assert not any("planted" in name for name in names(path)), path.name


def names(wheel: Path) -> set[str]:
    """Return the names of all files in a wheel."""
    return set(ZipFile(wheel).namelist())


class Environment:
    """An environment of a Python, without a compiler."""

    def __init__(self, python: Path, directory: Path) -> None:
        subprocess.run([python, "-m", "venv", directory], check=True)
        self._bin = directory / "bin"
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CC", "CARGO", "KVORUM", "PYTHON"))
        }
        self._variables["PATH"] = str(self._bin)

    def run(self, *arguments: object) -> str:
        """Run Python; end with its output if it fails."""
        words = [str(self._bin / "python"), *map(str, arguments)]
        done = subprocess.run(
            words,
            env=self._variables,
            cwd=self._bin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\n{' '.join(words)} ended with {done.returncode}")
        return done.stdout

    def install(self, *requirements: object, verbose: bool = False) -> str:
        """Install these; return the installer's output."""
        options = ["--verbose"] if verbose else ["--quiet"]
        return self.run("-m", "pip", "install", *options, "--find-links", DIST, *requirements)

    def packages(self) -> set[str]:
        """Return the names of all distributions that are installed."""
        lines = self.run("-m", "pip", "list", "--format=freeze").splitlines()
        return {line.partition("==")[0] for line in lines} - {"setuptools"}


def check_native(environment: Environment) -> None:
    """Check the wheel that an installer chooses here."""
    environment.install(f"kvorum=={VERSION}")
    put_first(environment)
    environment.install("pytest")
    environment.run(SMOKE, "server", "native", "compiled")


def put_first(environment: Environment) -> None:
    """Start a server and put a key, as a user does after installing."""
    begun = time.monotonic()
    code = "from kvorum.embed import Server, Config\nwith Server(Config(ephemeral=True)) as s:\n"
    environment.run("-c", f"{code}    s.client().put('hello', 'world')")
    print(f"  start and first put: {time.monotonic() - begun:.1f} s")


def check_pure(environment: Environment) -> None:
    """Check the pure wheel."""
    environment.install(find(PURE), "pytest")
    environment.run(SMOKE, "server", "python", "python")


def check_sources(environment: Environment) -> None:
    """Check that the source archive installs without a compiler, with a warning."""
    printed = environment.install(find(SOURCES), verbose=True)
    assert "there is no cargo" in printed and "there is no C compiler" in printed, printed
    put_first(environment)
    environment.install("pytest")
    environment.run(SMOKE, "server", "python", "python")


def check_client(environment: Environment) -> None:
    """Check the client alone, and that the whole of it is what the server's wheel requires."""
    environment.install(find(CLIENT))
    assert environment.packages() == OF_THE_CLIENT, environment.packages()
    with serving() as address:
        environment.run(SMOKE, "client", address)


def check_etcd(environment: Environment) -> None:
    """Check the commands that have etcd's names."""
    environment.install(find(ETCD), "pytest")
    environment.run(SMOKE, "server", "native", "compiled")


@contextmanager
def serving() -> Iterator[str]:
    """Start a server of this checkout; yield its address."""
    from kvorum.embed import Config, Server

    with Server(Config(ephemeral=True)) as server:
        yield server.client_url


def checks() -> Iterator[tuple[str, Path, Callable[[Environment], None]]]:
    """Return each check, with the Python that it runs with."""
    for version, python in PYTHONS.items():
        find(native(version))
        yield f"native wheel, Python {version}", python, check_native
    (*_, python) = PYTHONS.values()
    yield "pure wheel", python, check_pure
    yield "source archive", python, check_sources
    yield "client alone", python, check_client
    yield "commands with etcd's names", python, check_etcd


def main() -> None:
    """Check everything."""
    if not PYTHONS:
        sys.exit("no Python with its headers is on PATH; name some in the variable PYTHONS")
    for name in ("client", "etcd"):
        find(f"kvorum_{name}-{VERSION}.tar.gz")
    check_files()
    for title, python, check in list(checks()):
        print(title, flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            check(Environment(python, Path(directory)))
        print(f"  passed after {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
