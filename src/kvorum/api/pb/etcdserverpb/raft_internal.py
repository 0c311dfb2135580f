"""Generated from proto/etcdserverpb/raft_internal.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("etcdserverpb/raft_internal.proto", globals())
