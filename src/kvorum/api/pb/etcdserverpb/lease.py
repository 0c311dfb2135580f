"""Generated from proto/etcdserverpb/lease.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/lease.proto", globals())
