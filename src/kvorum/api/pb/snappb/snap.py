"""Generated from proto/snappb/snap.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("snappb/snap.proto", globals())
