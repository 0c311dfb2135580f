"""Generated from proto/leasepb/ by proto/generate.py; do not edit."""

from kvorum.api.pb.leasepb.lease import (
    Lease,
    LeaseInternalRequest,
    LeaseInternalResponse,
)

__all__ = [
    "Lease",
    "LeaseInternalRequest",
    "LeaseInternalResponse",
]
