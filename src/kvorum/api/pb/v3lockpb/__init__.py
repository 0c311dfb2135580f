"""Generated from proto/v3lockpb/ by proto/generate.py; do not edit."""

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
