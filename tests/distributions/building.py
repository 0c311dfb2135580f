"""The projects of the tree, and its build script as a module with chosen variables."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text())
    for path in REPOSITORY.glob("distributions/*/pyproject.toml")
}
CLIENT = PROJECTS["client"]


def load(path: str) -> ModuleType:
    """Import a file of the tree that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_script(patch: pytest.MonkeyPatch, edge: str = "", core: str = "") -> ModuleType:
    """Return the build script with these values of KVORUM_EDGE and KVORUM_COMPILED."""
    patch.setenv("KVORUM_EDGE", edge)
    patch.setenv("KVORUM_COMPILED", core)
    return load("setup.py")
