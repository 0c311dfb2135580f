"""Leases: granted, renewed, attached to keys, expired on the leader."""

from kvorum.lease.lease import LeaseRowError
from kvorum.lease.lessor import Lessor, NotRenewed, TimeToLive, ttl_seconds_min

__all__ = ["LeaseRowError", "Lessor", "NotRenewed", "TimeToLive", "ttl_seconds_min"]
