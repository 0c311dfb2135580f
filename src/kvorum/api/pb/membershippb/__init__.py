"""Generated from proto/membershippb/ by proto/generate.py; do not edit."""

from kvorum.api.pb.membershippb.membership import (
    RaftAttributes,
    Attributes,
    Member,
    ClusterVersionSetRequest,
    ClusterMemberAttrSetRequest,
    DowngradeInfoSetRequest,
)

__all__ = [
    "Attributes",
    "ClusterMemberAttrSetRequest",
    "ClusterVersionSetRequest",
    "DowngradeInfoSetRequest",
    "Member",
    "RaftAttributes",
]
