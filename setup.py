"""Declare the parts that are not Python: the native edge and the compiled core.

Everything else is in pyproject.toml. KVORUM_EDGE controls the edge: `python` builds no extension,
`native` makes a failed build an error; if unset, the edge is built if cargo works, and otherwise
omitted. KVORUM_COMPILED controls the core in the same way: `0`, `1`, or unset.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext
from setuptools_rust import Binding, RustExtension

PACKAGE = Path(__file__).parent / "src" / "kvorum"


def choice(name: str, *values: str) -> str:
    """Return an environment variable that is unset or one of `values`; exit on any other value."""
    value = os.environ.get(name, "")
    if value not in ("", *values):
        raise SystemExit(f"{name} is {value!r}; expected one of {values}, or leave it unset")
    return value


EDGE = choice("KVORUM_EDGE", "native", "python")
COMPILED = choice("KVORUM_COMPILED", "0", "1")


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
            self.warn(f"the core stays Python, because it could not be compiled: {error}")


class BinaryDistribution(Distribution):  # type: ignore[misc]
    """A distribution that fits one version of Python on one platform."""

    def has_ext_modules(self) -> bool:
        """Return True, so that the wheel is marked as platform-specific."""
        return True


native = RustExtension(
    "kvorum.network.edge._native",
    path="rust/Cargo.toml",
    binding=Binding.PyO3,
    debug=False,
    optional=EDGE != "native",
    args=["--locked"],
)

setup(
    rust_extensions=[] if EDGE == "python" else [native],
    cmdclass={"build_ext": BuildExtensions},
    distclass=BinaryDistribution,
)
