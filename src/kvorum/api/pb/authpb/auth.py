"""Generated from proto/authpb/auth.proto by proto/generate.py; do not edit."""

from kvorum.api.descriptors import define

define("authpb/auth.proto", globals())
