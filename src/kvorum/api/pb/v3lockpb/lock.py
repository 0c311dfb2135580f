"""Generated from proto/v3lockpb/lock.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("v3lockpb/lock.proto", globals())
