"""Generated from proto/authpb/ by proto/generate.py; do not edit."""

from kvorum.api.pb.authpb.auth import (
    UserAddOptions,
    User,
    Permission,
    Role,
)

__all__ = [
    "Permission",
    "Role",
    "User",
    "UserAddOptions",
]
