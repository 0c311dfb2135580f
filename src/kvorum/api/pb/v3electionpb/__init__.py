"""Generated from proto/v3electionpb/ by proto/generate.py; do not edit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvorum.api.pb.v3electionpb.election import (
        CampaignRequest,
        CampaignResponse,
        LeaderKey,
        LeaderRequest,
        LeaderResponse,
        ResignRequest,
        ResignResponse,
        ProclaimRequest,
        ProclaimResponse,
    )

__all__ = [
    "CampaignRequest",
    "CampaignResponse",
    "LeaderKey",
    "LeaderRequest",
    "LeaderResponse",
    "ProclaimRequest",
    "ProclaimResponse",
    "ResignRequest",
    "ResignResponse",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Define all classes of the package when a program first uses one."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kvorum.api.descriptors import define

        define("v3electionpb/election.proto", globals())
        return globals()[name]
