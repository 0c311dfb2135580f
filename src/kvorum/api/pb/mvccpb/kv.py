"""Generated from proto/mvccpb/kv.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("mvccpb/kv.proto", globals())
