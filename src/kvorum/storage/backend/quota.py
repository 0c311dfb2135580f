"""The space quota of a database, and the address space to reserve for it."""

from typing import Final

PUT_BYTES: Final = 256
"""Bytes charged for a put besides its key and value."""
LEASE_GRANT_BYTES: Final = 64

# The map takes address space, not memory or disk. It can never grow, so reserve far too much.
_MAP_BYTES_MIN = 64 << 30
_MAP_BYTES_UNLIMITED = 1 << 40
_MAP_QUOTAS = 16


def effective_quota(configured: int) -> int | None:
    """Return the quota in bytes; a negative setting means none and returns None."""
    return None if configured < 0 else configured


def reserved_bytes(configured: int) -> int:
    """Return the map size to reserve for a database with this configured quota."""
    quota = effective_quota(configured)
    return _MAP_BYTES_UNLIMITED if quota is None else max(_MAP_BYTES_MIN, _MAP_QUOTAS * quota)
