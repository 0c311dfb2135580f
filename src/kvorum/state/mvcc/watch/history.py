"""The store's interface for the watch hub, and the form of a change.

Rules: a *revision integer* is `main << 32 | sub << 1 | tombstone`. The hub reads rows only up to
the current revision, so it never sees an open transaction.
"""

from typing import Protocol

Change = tuple[bytes, int, bytes, int]
"""(key, revision integer, stored bytes, revision integer of the value before or 0 if none).

A change read from history has `UNKNOWN` as its last item: few watchers need previous values."""

UNKNOWN = -1

MAIN_SHIFT = 32


class Rows(Protocol):
    """The rows of all revisions."""

    def scan_rows(self, first: int, last: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (revision integer, stored bytes) in order, `first <= revision <= last`.

        Fewer than `limit` rows mean that no more follow. An empty row is not a change.
        """


class History(Protocol):
    """The part of the store that the hub uses."""

    @property
    def revision(self) -> int:
        """The current main revision."""

    @property
    def compacted_revision(self) -> int:
        """The main revision of the last compaction, or -1."""

    @property
    def backend(self) -> Rows:
        """The backend that stores the rows."""

    def row(self, revision: int) -> bytes:
        """Return the stored bytes of one revision integer, which must exist."""

    def get(self, key: bytes, revision: int) -> bytes | None:
        """Return the stored bytes of a key's value as of a main revision, not compacted."""
