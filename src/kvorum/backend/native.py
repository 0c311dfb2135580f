"""What compiled code does in place of Python, for many rows a call.

The functions are those of the native edge (`rust/src/rows.rs`, `row_pages.rs`, `newest.rs`,
`pages.rs`),
reached through `Environments`; where there are none, Python does everything. They handle rows in
their usual form. For anything else, damage above all, they report failure and have changed nothing;
the Python code that they replace then decides what is wrong and reports it.

Rows are (row key, value with its checksum), as our database files have them.
"""

from collections.abc import Callable
from typing import Protocol

Row = tuple[bytes, bytes]

TakeLeaves = Callable[
    [bytes, int, list[tuple[int, bytes]], bytes, bytearray], tuple[int, list[Row]]
]


class NewestRows(Protocol):
    """Which rows are the newest of their keys, up to the last one noted.

    A row has a place, counted from 0 in the order in which rows are noted. Keys are known by 128
    bits. What is known of keys may be drained and loaded again, whole runs in their order, group by
    group: a key is always in the same group.
    """

    def __len__(self) -> int:
        """Return of how many keys something is known here."""

    def note(self, rows: list[Row], /) -> bool:
        """Note the next rows; return False if one is damaged, and then none is noted."""

    def drain(self) -> list[bytes]:
        """Return what is known of keys, in groups, and forget it."""

    def load(self, records: bytes, /) -> None:
        """Learn again what was drained."""

    def live(self) -> int:
        """Return for how many keys the newest row is not a tombstone."""

    def checksum(self, value: int, rows: list[Row], place: int, compacted: int, /) -> int | None:
        """Continue a CRC-32C with keys and values of rows; return None if one is damaged.

        `place` is that of the first. Of rows whose main revision is not above `compacted`, those
        that are the newest of their keys, and no tombstones, are all that counts.
        """


class RowPages(Protocol):
    """The rows of a database file as of one commit, read from its pages.

    A transaction that sees the commit has to be open meanwhile. Stops before a leaf that is unusual
    in any way; LMDB has to be asked for what comes after the last row noted.
    """

    def note(
        self,
        entries: "dict[bytes, int | bytes | bytearray]",
        leases: dict[bytes, int],
        limit: int,
        /,
    ) -> tuple[int, int]:
        """Add rows to an index as `note_rows` does, until they are at least so many.

        Returns how many, 0 at the end, and the newest revision noted so far.
        """


class NativeRows(Protocol):
    """The compiled functions."""

    def RowPages(self, path: str, commit: int, /) -> RowPages:  # noqa: N802 (a class there)
        """Begin before the first row, as of a commit known by its number."""

    def NewestRows(self, deleted_at: int, /) -> NewestRows:  # noqa: N802 (a class there)
        """Begin without rows. A key deleted at that main revision stays so within it."""

    def rows_of_leaves(
        self,
        pages: bytes,
        page_bytes: int,
        leaves: list[tuple[int, bytes]],
        after: bytes,
        reached: bytearray,
        /,
    ) -> tuple[int, list[Row]]:
        """Read leaves of bucket `key`, checked as `checked_rows` does; return how many, and rows.

        `leaves` are page numbers, ascending, with the least key that each may have; `pages` begins
        with the first of them. Keys must come after `after`. Pages are marked in `reached`, and
        none that is already marked is read. Stops before the first unusual leaf.
        """

    def leaves_of_rows(
        self, rows: list[Row], number: int, is_last: bool, /
    ) -> tuple[bytes, list[tuple[bytes, int]], int] | None:
        """Make leaves of rows, the first with this page number; return None if a row is damaged.

        Returns the pages, the first key and the number of each leaf, and how many rows are in
        them: unless these are the last rows, some are left that do not fill a leaf.
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
        """Check a commit as `kvorum.backend.pages` does.

        Returns what is wrong, and otherwise the entries of a copy's bucket `meta`.
        """

    def note_rows(
        self,
        entries: "dict[bytes, int | bytes | bytearray]",
        leases: dict[bytes, int],
        rows: list[Row],
        /,
    ) -> bool:
        """Add rows to an index and note the lease of each key; return False if one is damaged."""
