"""Generated from proto/membershippb/membership.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("membershippb/membership.proto", globals())
