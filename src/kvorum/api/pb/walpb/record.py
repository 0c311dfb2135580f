"""Generated from proto/walpb/record.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("walpb/record.proto", globals())
