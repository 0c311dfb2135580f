"""Generated from proto/v3lockpb/ by proto/generate.py; do not edit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.api.pb.v3lockpb.lock import (
        LockRequest,
        LockResponse,
        UnlockRequest,
        UnlockResponse,
    )

__all__ = [
    "LockRequest",
    "LockResponse",
    "UnlockRequest",
    "UnlockResponse",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Define all classes of the package when a program first uses one."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kvorum.api.descriptors import define

        define("v3lockpb/lock.proto", globals())
        return globals()[name]
