"""Generated from proto/etcdserverpb/kv.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/kv.proto", globals())
