"""Generated from proto/walpb/ by proto/generate.py; do not edit."""

from kvorum.api.pb.walpb.record import (
    Record,
    Snapshot,
)

__all__ = [
    "Record",
    "Snapshot",
]
