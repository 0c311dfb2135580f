"""What the hub asks of the store, and the form in which changes reach it.

Rules: a *revision integer* is `main << 32 | sub << 1 | tombstone`. Rows are read up to the current
revision only, so an open transaction is never seen.
"""

from typing import Protocol

Change = tuple[bytes, int, bytes, int]
"""(key, revision integer, stored bytes, revision integer of the value before or 0 if none).

A change that was read from history has `UNKNOWN` in the last place: few watchers ask for it."""

UNKNOWN = -1

MAIN_SHIFT = 32


class Rows(Protocol):
    """The rows of all revisions."""

    def scan_rows(self, first: int, last: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (revision integer, stored bytes) in order, `first <= revision <= last`.

        At most `limit` rows; fewer mean that there are no more. An empty row is no change.
        """


class History(Protocol):
    """The store, as the hub sees it."""

    @property
    def revision(self) -> int:
        """The current main revision."""

    @property
    def compacted_revision(self) -> int:
        """The main revision of the last compaction, or -1."""

    @property
    def backend(self) -> Rows:
        """Where the rows are."""

    def row(self, revision: int) -> bytes:
        """Return the stored bytes of one revision integer, which must exist."""

    def get(self, key: bytes, revision: int) -> bytes | None:
        """Return the stored bytes of a key's value as of a main revision, not compacted."""
