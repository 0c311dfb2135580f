"""Generated from proto/etcdserverpb/metadata.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/metadata.proto", globals())
