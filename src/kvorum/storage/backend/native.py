"""Interfaces of compiled functions that replace Python code, for many rows per call.

Rust implements these functions (`rust/storage/src/`: `rows.rs`, `row_pages.rs`, `newest.rs`,
`pages.rs`), and `Environments` provides them; without them Python does everything. The functions
handle rows in their usual form. For any other row, above all a damaged one, they report failure and
change nothing; the Python code that they replace then finds and reports the problem.

Rows are (row key, value with its checksum), as Kvorum's database files store them.
"""

from collections.abc import Callable
from typing import Protocol

Row = tuple[bytes, bytes]

TakeLeaves = Callable[
    [bytes, int, list[tuple[int, bytes]], bytes, bytearray], tuple[int, list[Row]]
]


class NewestRows(Protocol):
    """Tracks the newest row of each key among the rows noted so far.

    A row's place is its number, from 0, in the order in which rows are noted. The table identifies
    keys by 128 bits. A caller may drain the table to records and load them again, whole runs in
    their order, group by group: a key always belongs to the same group.
    """

    def __len__(self) -> int:
        """Return the number of keys in memory."""

    def note(self, rows: list[Row], /) -> bool:
        """Note the next rows; return False, and note none, if one is damaged."""

    def drain(self) -> list[bytes]:
        """Return the records of all keys, in groups, and clear the table."""

    def load(self, records: bytes, /) -> None:
        """Add records that `drain` returned."""

    def live(self) -> int:
        """Return the number of keys whose newest row is not a tombstone."""

    def checksum(self, value: int, rows: list[Row], place: int, compacted: int, /) -> int | None:
        """Continue a CRC-32C with the keys and values of rows; return None if one is damaged.

        `place` is the first row's. Of the rows up to main revision `compacted`, only those count
        that are the newest of their keys and not tombstones.
        """


class RowPages(Protocol):
    """Reads the rows of one commit directly from the pages of a database file.

    The caller keeps a transaction open that sees the commit. Reading stops before the first leaf
    that is unusual in any way; the caller reads the rows after the last one noted through LMDB.
    """

    def note(
        self,
        entries: "dict[bytes, int | bytes | bytearray]",
        leases: dict[bytes, int],
        limit: int,
        /,
    ) -> tuple[int, int]:
        """Add at least `limit` rows, if there are as many, to an index as `note_rows` does.

        Returns the number of rows, 0 at the end, and the newest revision noted so far.
        """


class NativeRows(Protocol):
    """The compiled functions."""

    def RowPages(self, path: str, commit: int, /) -> RowPages:  # noqa: N802 (a class there)
        """Open the rows of the commit with this number, positioned before the first row."""

    def NewestRows(self, deleted_at: int, /) -> NewestRows:  # noqa: N802 (a class there)
        """Create an empty table. A key deleted at main revision `deleted_at` stays so within it."""

    def rows_of_leaves(
        self,
        pages: bytes,
        page_bytes: int,
        leaves: list[tuple[int, bytes]],
        after: bytes,
        reached: bytearray,
        /,
    ) -> tuple[int, list[Row]]:
        """Read leaves of bucket `key`, checked as by `checked_rows`; return their count and rows.

        `leaves` are page numbers, ascending, with the least key that each may have; `pages` begins
        with the first of them. Keys must come after `after`. The function marks pages in `reached`,
        reads no page that is already marked, and stops before the first unusual leaf.
        """

    def leaves_of_rows(
        self, rows: list[Row], number: int, is_last: bool, /
    ) -> tuple[bytes, list[tuple[bytes, int]], int] | None:
        """Build leaves from rows, the first with this page number; return None if a row is damaged.

        Returns the pages, the first key and the number of each leaf, and the count of rows used:
        unless `is_last`, the function leaves over rows that do not fill a leaf.
        """

    def check_pages(
        self,
        descriptor: int,
        page_bytes: int,
        page_count: int,
        free: bytes,
        main: bytes,
        buckets: list[bytes],
        is_copy: bool,
        /,
    ) -> tuple[str | None, list[Row]]:
        """Check a commit as `kvorum.storage.backend.pages` does.

        Returns the problem, None for a sound commit, and the entries of a copy's bucket `meta`.
        """

    def note_rows(
        self,
        entries: "dict[bytes, int | bytes | bytearray]",
        leases: dict[bytes, int],
        rows: list[Row],
        /,
    ) -> bool:
        """Add rows to an index and record the lease of each key; return False if one is damaged."""
