"""Generated from proto/etcdserverpb/auth.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/auth.proto", globals())
