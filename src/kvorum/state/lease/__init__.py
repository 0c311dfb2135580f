"""Leases: granted, renewed, attached to keys, expired on the leader."""

from kvorum.state.lease.lease import LeaseRowError
from kvorum.state.lease.lessor import Lessor, NotRenewed, TimeToLive, ttl_seconds_min

__all__ = ["LeaseRowError", "Lessor", "NotRenewed", "TimeToLive", "ttl_seconds_min"]
