"""Generated from proto/membershippb/ by proto/generate.py; do not edit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Define all classes of the package when a program first uses one."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kvorum.api.descriptors import define

        define("membershippb/membership.proto", globals())
        return globals()[name]
