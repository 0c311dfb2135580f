"""Declare what pyproject.toml cannot: native parts, and what a release leaves to kvorum-client.

KVORUM_EDGE controls the edge: `python` builds no extension, `native` makes a failed build an error;
if unset, the edge is built if cargo works, and otherwise omitted with a warning. KVORUM_COMPILED
controls the core in the same way: `0`, `1`, or unset. With `python` and `0` the wheel is pure.

From a checkout, `kvorum` holds everything. Released, it requires kvorum-client and holds everything
else, so that no file is in two distributions. A build from a source archive is a release, and so is
one with KVORUM_RELEASE=1, for tools that build wheels of a checkout to publish them.
"""

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from setuptools import Distribution, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools_rust import Binding, RustExtension

ROOT = Path(__file__).parent
PACKAGE = ROOT / "src" / "kvorum"
PLANTED = "kvorum.sim.planted*"
"""Bugs that only `make sim-planted` plants."""
NATIVE = "network/edge/_native*.so"
CORE = "compiled/*/core__mypyc*.so"
EDGE_COST = "it will serve about 40 times fewer requests than with the native one"
CORE_COST = "a put will take about twice the time that it takes in the compiled core"


def choice(name: str, *values: str) -> str:
    """Return an environment variable that is unset or one of `values`; exit on any other value."""
    value = os.environ.get(name, "")
    if value not in ("", *values):
        raise SystemExit(f"{name} is {value!r}; expected one of {values}, or leave it unset")
    return value


# The native edge is for Linux.
EDGE = choice("KVORUM_EDGE", "native", "python") or ("" if sys.platform == "linux" else "python")
COMPILED = choice("KVORUM_COMPILED", "0", "1")
IS_PURE = EDGE == "python" and COMPILED == "0"


def is_release() -> bool:
    """Return whether this builds a source archive, or from one, which alone has PKG-INFO."""
    names_release = bool(os.environ.get("KVORUM_RELEASE"))
    return names_release or "sdist" in sys.argv or (ROOT / "PKG-INFO").exists()


def table(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return tomllib.loads(path.read_text())


def packages(*, is_release: bool) -> list[str]:
    """Return the packages of this distribution."""
    client = table(ROOT / "distributions/client/pyproject.toml")["tool"]["setuptools"]
    left_out = client["packages"]["find"]["include"] if is_release else []
    found: list[str] = find_packages(str(ROOT / "src"), exclude=[PLANTED, *left_out])
    return found


def requirements(*, is_release: bool) -> list[str]:
    """Return what this distribution requires: in a release the client, otherwise what it needs."""
    own = table(ROOT / "pyproject.toml")["tool"]["kvorum"]["dependencies"]
    client = table(ROOT / "distributions/client/pyproject.toml")["project"]
    version = re.search(r'^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.M)
    assert version is not None
    needed = [f"{client['name']}=={version[1]}"] if is_release else client["dependencies"]
    return sorted({*own, *needed}, key=str.lower)


def description() -> str:
    """Return the README with names of files in place of links to them, which lead nowhere else."""
    return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", (ROOT / "README.md").read_text())


def parts_left_out(built: Path) -> Iterator[str]:
    """Say what a build left out although nobody asked for that, what it costs, and a remedy."""
    if not EDGE and not any(built.glob(NATIVE)):
        reason = "cargo failed" if shutil.which("cargo") else "there is no cargo"
        yield (
            f"The network edge stays pure Python, because {reason}: {EDGE_COST}. Install Rust 1.85 "
            "or later and install Kvorum again, or set KVORUM_EDGE=python to accept it."
        )
    if not COMPILED and not any(built.glob(CORE)):
        reason = "the C compiler failed" if c_compiler() else "there is no C compiler"
        yield (
            f"The core stays Python, because {reason}: {CORE_COST}. Install gcc and Python's "
            "headers and install Kvorum again, or set KVORUM_COMPILED=0 to accept it."
        )


def c_compiler() -> str | None:
    """Return the path of a C compiler."""
    programs = ("cc", "gcc", "clang", *os.environ.get("CC", "").split()[:1])
    return next(filter(None, map(shutil.which, programs)), None)


def warn(text: str) -> None:
    """Print a warning, and print it on the terminal too: pip shows only failed builds' output."""
    line = f"WARNING: {text}\n"
    sys.stderr.write(line)
    with suppress(OSError), Path("/dev/tty").open("w") as terminal:
        terminal.write(f"\n{line}")


class Build(build):  # type: ignore[misc]
    """Warn at the end of a build of parts that it left out."""

    def run(self) -> None:
        """Build everything."""
        super().run()
        for text in parts_left_out(Path(self.build_lib, "kvorum")):
            warn(text)


class BuildExtensions(build_ext):  # type: ignore[misc]
    """Build the core after the extensions; an editable install leaves that to `make setup`."""

    def run(self) -> None:
        """Build the extensions, and the core unless it is not wanted."""
        super().run()
        if self.editable_mode or COMPILED == "0":
            return
        os.environ["KVORUM_COMPILED"] = "0"
        sys.path.insert(0, str(PACKAGE.parent))
        try:
            from kvorum.compiled.build import build

            build(PACKAGE, Path(self.build_lib, "kvorum"))
        except (Exception, SystemExit) as error:
            if COMPILED == "1":
                raise
            self.warn(f"the core could not be compiled: {error}")


class BinaryDistribution(Distribution):  # type: ignore[misc]
    """A distribution that fits one version of Python on one platform, unless it is pure."""

    def has_ext_modules(self) -> bool:
        """Return whether the wheel is marked as platform-specific."""
        return not IS_PURE


native = RustExtension(
    "kvorum.network.edge._native",
    path="rust/Cargo.toml",
    binding=Binding.PyO3,
    debug=False,
    optional=EDGE != "native",
    args=["--locked"],
)

if __name__ == "__main__":
    setup(
        packages=packages(is_release=is_release()),
        long_description=description(),
        long_description_content_type="text/markdown",
        install_requires=requirements(is_release=is_release()),
        rust_extensions=[] if EDGE == "python" else [native],
        cmdclass={"build": Build, "build_ext": BuildExtensions},
        distclass=BinaryDistribution,
    )
