"""Generated from proto/etcdserverpb/header.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/header.proto", globals())
