"""Generated from proto/mvccpb/ by proto/generate.py; do not edit."""

from kvorum.api.pb.mvccpb.kv import (
    KeyValue,
    Event,
)

__all__ = [
    "Event",
    "KeyValue",
]
