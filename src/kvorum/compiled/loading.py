"""Load the extension at import of this module, and provide the listed modules from it."""

import ctypes
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

from kvorum.compiled.extension import LIBRARY, PACKAGE, core_name, library


class _Core:
    """Finds the listed modules in the extension.

    The class is a finder and a loader in all but name: their base classes take longer to import
    than this.
    """

    def __init__(self, path: Path) -> None:
        loader = ExtensionFileLoader(LIBRARY, str(path))
        spec = spec_from_file_location(LIBRARY, path, loader=loader)
        assert spec is not None
        self._library = module_from_spec(spec)
        loader.exec_module(self._library)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a listed module."""
        del path, target
        loader = cast("Loader", self)
        return ModuleSpec(fullname, loader, origin=self._library.__file__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Call the module's init function, which the extension provides in a capsule."""
        name = "init_" + spec.name.replace(".", "___")
        pointer = _capsule_pointer(getattr(self._library, name), f"{LIBRARY}.{name}".encode())
        module: ModuleType = ctypes.PYFUNCTYPE(ctypes.py_object)(pointer)()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, because the module's body ran when the module was created."""


def _capsule_pointer(capsule: object, name: bytes) -> int:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    pointer: int = get(capsule, name)
    return pointer


CORE = _Core(library(PACKAGE)) if core_name() == "compiled" else None
"""The finder of the listed modules; None if the Python sources run."""
