"""Generated from proto/snappb/ by proto/generate.py; do not edit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.api.pb.snappb.snap import (
        snapshot,
    )

__all__ = [
    "snapshot",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Define all classes of the package when a program first uses one."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kvorum.api.descriptors import define

        define("snappb/snap.proto", globals())
        return globals()[name]
