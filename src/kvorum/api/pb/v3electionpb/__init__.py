"""Generated from proto/v3electionpb/ by proto/generate.py; do not edit."""

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
