"""Interfaces through which the store reports its writes to the watch hub and the lessor."""

from collections.abc import Sequence
from typing import Protocol

from kvorum.state.mvcc.watch.history import Change


class Hub(Protocol):
    """Receives committed writes."""

    is_watched: bool

    def publish(self, main: int, changes: Sequence[Change]) -> None:
        """Receive all changes of one main revision, in order.

        Each change refers to the key's value before the transaction as its previous one.
        """

    def publish_change(self, key: bytes, revision: int, kv: bytes, previous: int) -> None:
        """Receive the only change of a main revision."""


class Lessor(Protocol):
    """Knows which key belongs to which lease."""

    def attach(self, lease: int, key: bytes) -> None:
        """Attach a key to an existing lease."""

    def reattach(self, lease: int, key: bytes) -> bool:
        """Attach a key to a lease while the store is restored; False if the lease is unknown."""

    def detach(self, lease: int, key: bytes) -> None:
        """Detach a key from a lease."""

    def detach_all(self, keys: list[bytes]) -> None:
        """Detach these keys from whatever leases they have."""

    def lease_of(self, key: bytes) -> int:
        """Return the lease of a key, 0 for none."""
