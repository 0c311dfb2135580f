"""Generated from proto/snappb/ by proto/generate.py; do not edit."""

from kvorum.api.pb.snappb.snap import (
    snapshot,
)

__all__ = [
    "snapshot",
]
