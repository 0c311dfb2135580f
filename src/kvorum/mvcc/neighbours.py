"""Whom the store tells of its writes."""

from collections.abc import Sequence
from typing import Protocol

from kvorum.mvcc.watch.history import Change


class Hub(Protocol):
    """Who is told of committed writes."""

    is_watched: bool

    def publish(self, main: int, changes: Sequence[Change]) -> None:
        """Take the changes of one main revision, all of them, in order.

        The value before a change is the one before the transaction.
        """

    def publish_change(self, key: bytes, revision: int, kv: bytes, previous: int) -> None:
        """Take the only change of a main revision."""


class Lessor(Protocol):
    """Who knows which key belongs to which lease."""

    def attach(self, lease: int, key: bytes) -> None:
        """Note that a key belongs to a lease, which exists."""

    def reattach(self, lease: int, key: bytes) -> bool:
        """Note at start that a key belongs to a lease; False if there is no such lease."""

    def detach(self, lease: int, key: bytes) -> None:
        """Note that a key does not belong to a lease any more."""

    def lease_of(self, key: bytes) -> int:
        """Return the lease of a key, 0 for none."""
