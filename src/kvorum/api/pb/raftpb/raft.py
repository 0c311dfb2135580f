"""Generated from proto/raftpb/raft.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("raftpb/raft.proto", globals())
