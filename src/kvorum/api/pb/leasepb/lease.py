"""Generated from proto/leasepb/lease.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("leasepb/lease.proto", globals())
