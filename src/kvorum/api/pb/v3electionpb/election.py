"""Generated from proto/v3electionpb/election.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("v3electionpb/election.proto", globals())
