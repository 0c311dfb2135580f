"""Locate the extension for the sources, and decide which core runs."""

import hashlib
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from kvorum.compiled import MODULES, core_wanted

LIBRARY = "core__mypyc"
PACKAGE = Path(__file__).parents[1]


def source_hash(package: Path) -> str:
    """Hash every source of the packages that have compiled modules.

    A compiled module contains constants of the modules it imports, so not only the listed modules
    matter.
    """
    digest = hashlib.sha256()
    for room in sorted({"compiled"} | {name.split(".")[1] for name in MODULES}):
        # Every start of a server waits for this, so it avoids a Path object for each file.
        found = os.walk(package / room)
        names = [f"{where}/{name}" for where, _, names in found for name in names]
        for name in sorted(name for name in names if name.endswith(".py")):
            with open(name, "rb", 0) as file:  # noqa: PTH123
                content = file.read()
            relative = name.removeprefix(f"{package}/")
            digest.update(relative.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()[:32]


@cache
def library(package: Path) -> Path:
    """Return the path of the extension for these sources, built or not."""
    return package / "compiled" / source_hash(package) / (LIBRARY + EXTENSION_SUFFIXES[0])


@cache
def core_name() -> str:
    """Return which core runs, `compiled` or `python`; KVORUM_COMPILED can force one.

    Raise ImportError if the compiled core is forced, but there is none for these sources.
    """
    choice = core_wanted()
    if choice == "0":
        return "python"
    if library(PACKAGE).exists():
        return "compiled"
    if choice == "1":
        raise ImportError(
            "KVORUM_COMPILED is '1', but no extension is built from these sources; "
            "run 'make setup', or leave it unset"
        )
    return "python"
