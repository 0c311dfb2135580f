"""Generated from proto/mvccpb/ by proto/generate.py; do not edit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.api.pb.mvccpb.kv import (
        KeyValue,
        Event,
    )

__all__ = [
    "Event",
    "KeyValue",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Define all classes of the package when a program first uses one."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kvorum.api.descriptors import define

        define("mvccpb/kv.proto", globals())
        return globals()[name]
