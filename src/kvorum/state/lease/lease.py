"""A lease, and the row that stores it in bucket `lease`.

The row is a leasepb.Lease under the id as eight bytes, big endian, with a negative id as its two's
complement. The row holds neither the moment of expiry nor the keys: a new leader restarts the time
of every lease, and the stored keys carry the id of their lease.
"""

from collections.abc import Iterable
from math import inf

from google.protobuf.message import DecodeError

from kvorum.api.codec import varint
from kvorum.api.pb.leasepb import Lease as LeaseMessage

_UINT64_MASK = (1 << 64) - 1


class LeaseRowError(Exception):
    """A row of bucket `lease` is damaged."""

    def __init__(self, key: bytes, value: bytes, problem: str) -> None:
        super().__init__(
            f"bucket lease, row {key.hex()} = {value.hex()}: {problem}. The storage is damaged: "
            f"replace this member, or restore the cluster from a snapshot."
        )


class Lease:
    """A promise to keep keys for `ttl` seconds after the last renewal.

    `remaining` is how many seconds were left at the last checkpoint; 0 means all of them. `expiry`
    is valid on a primary only.
    """

    __slots__ = ("_keys", "expiry", "id", "remaining", "ttl")

    def __init__(self, identity: int, ttl: int, remaining: int = 0) -> None:
        self.id = identity
        self.ttl = ttl
        self.remaining = remaining
        self.expiry = inf
        # Most leases have one key or none, and so need no table.
        self._keys: bytes | dict[bytes, None] | None = None

    @property
    def refresh_seconds(self) -> int:
        """The seconds that a new primary gives the lease, before any extension."""
        return self.remaining if self.remaining > 0 else self.ttl

    @property
    def keys(self) -> Iterable[bytes]:
        """The attached keys, in the order in which they were attached."""
        if self._keys is None:
            return ()
        return (self._keys,) if isinstance(self._keys, bytes) else self._keys

    @property
    def key_count(self) -> int:
        """The number of attached keys."""
        if self._keys is None:
            return 0
        return 1 if isinstance(self._keys, bytes) else len(self._keys)

    def add(self, key: bytes) -> None:
        """Attach a key that is not attached."""
        if self._keys is None:
            self._keys = key
        elif isinstance(self._keys, bytes):
            self._keys = {self._keys: None, key: None}
        else:
            self._keys[key] = None

    def drop(self, key: bytes) -> None:
        """Detach a key that is attached."""
        if isinstance(self._keys, dict):
            del self._keys[key]
        else:
            assert self._keys == key, f"lease {self.id:x} holds {self._keys!r}, not {key!r}"
            self._keys = None


def row_key(identity: int) -> bytes:
    """Return the key of a lease's row."""
    return (identity & _UINT64_MASK).to_bytes(8, "big")


def row_value(lease: Lease) -> bytes:
    """Return the value of a lease's row, as protobuf writes it."""
    row = b"\x08" + varint(lease.id) + b"\x10" + varint(lease.ttl)
    return row + b"\x18" + varint(lease.remaining) if lease.remaining else row


def lease_of_row(key: bytes, value: bytes) -> Lease:
    """Return the lease of a row; raises LeaseRowError."""
    try:
        message = LeaseMessage.FromString(value)
    except DecodeError as error:
        raise LeaseRowError(key, value, str(error)) from error
    if not message.ID or row_key(message.ID) != key:
        raise LeaseRowError(key, value, f"it names lease {message.ID}")
    return Lease(message.ID, message.TTL, message.RemainingTTL)
