"""The space quota of a database: what is allowed, and how much room is reserved for it."""

from typing import Final

PUT_BYTES: Final = 256
"""What a put counts beside its key and value."""
LEASE_GRANT_BYTES: Final = 64

# The map is address space, not memory or disk; it can never grow, so it is made far too large.
_MAP_BYTES_MIN = 64 << 30
_MAP_BYTES_UNLIMITED = 1 << 40
_MAP_QUOTAS = 16


def effective_quota(configured: int) -> int | None:
    """Return the quota in bytes; None if there is none, which is a negative number."""
    return None if configured < 0 else configured


def reserved_bytes(configured: int) -> int:
    """Return the room to reserve for a database under a quota as configured."""
    quota = effective_quota(configured)
    return _MAP_BYTES_UNLIMITED if quota is None else max(_MAP_BYTES_MIN, _MAP_QUOTAS * quota)
