"""Generated from proto/etcdserverpb/watch.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/watch.proto", globals())
