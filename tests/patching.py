"""Patches that compiled code would not notice, refused: a test with one would prove nothing.

A compiled module calls its own functions directly, and its `Final` constants are part of the code.
"""

import re
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvorum.compiled import MODULES
from kvorum.compiled.extension import PACKAGE, core_name


def is_compiled_in(module: ModuleType, name: str) -> bool:
    """Return whether compiled code of the module does not look this name up."""
    if module.__name__ not in MODULES:
        return False
    value = getattr(module, name, None)
    if callable(value):
        return getattr(value, "__module__", None) in MODULES
    path = Path(PACKAGE.parent, *module.__name__.split(".")).with_suffix(".py")
    return re.search(rf"^{re.escape(name)}: Final\b", path.read_text(), re.M) is not None


def refuse_patches_without_effect() -> None:
    """Let `monkeypatch.setattr` fail where the compiled core would not notice it."""
    if core_name() != "compiled":
        return
    patch: Any = pytest.MonkeyPatch.setattr

    @wraps(patch)
    def setattr_(self: pytest.MonkeyPatch, target: Any, *rest: Any, **options: Any) -> None:
        module, name = target, rest[0]
        if isinstance(target, str):
            path, _, name = target.rpartition(".")
            module = import_module(path) if path in MODULES else None
        if isinstance(module, ModuleType) and is_compiled_in(module, name):
            pytest.fail(f"{module.__name__}.{name} is compiled in: mark this test `sources`")
        patch(self, target, *rest, **options)

    pytest.MonkeyPatch.setattr = setattr_  # type: ignore[method-assign]
