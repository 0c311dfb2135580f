"""What the store tells others about its writes: the watch hub and the lessor."""

from collections.abc import Sequence
from typing import Protocol

from kvorum.mvcc.watch.history import Change


class Hub(Protocol):
    """Receives committed writes."""

    is_watched: bool

    def publish(self, main: int, changes: Sequence[Change]) -> None:
        """Take the changes of one main revision, all of them, in order.

        The previous value of a change is the one before the transaction.
        """

    def publish_change(self, key: bytes, revision: int, kv: bytes, previous: int) -> None:
        """Take the only change of a main revision."""


class Lessor(Protocol):
    """Knows which key belongs to which lease."""

    def attach(self, lease: int, key: bytes) -> None:
        """Note that a key belongs to a lease, which exists."""

    def reattach(self, lease: int, key: bytes) -> bool:
        """Note at start that a key belongs to a lease; False if there is no such lease."""

    def detach(self, lease: int, key: bytes) -> None:
        """Note that a key no longer belongs to a lease."""

    def detach_all(self, keys: list[bytes]) -> None:
        """Note that these keys no longer belong to any lease."""

    def lease_of(self, key: bytes) -> int:
        """Return the lease of a key, 0 for none."""
