"""Generated from proto/etcdserverpb/maintenance.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/maintenance.proto", globals())
