"""Generated from proto/etcdserverpb/cluster.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/cluster.proto", globals())
