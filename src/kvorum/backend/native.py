"""What compiled code does in place of Python, for many rows a call.

The functions are those of the native edge (`rust/src/rows.rs`), reached through `Environments`;
where there are none, Python does everything. They handle rows in their usual form. For anything
else, damage above all, they report failure and have changed nothing; the Python code that they
replace then decides what is wrong and reports it.

Rows are (row key, value with its checksum), as our database files have them.
"""

from collections.abc import Callable
from typing import Protocol

Row = tuple[bytes, bytes]

TakeLeaves = Callable[
    [bytes, int, list[tuple[int, bytes]], bytes, bytearray], tuple[int, list[Row]]
]


class NativeRows(Protocol):
    """The compiled functions."""

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

    def note_rows(
        self,
        entries: "dict[bytes, int | bytes | bytearray]",
        leases: dict[bytes, int],
        rows: list[Row],
        /,
    ) -> bool:
        """Add rows to an index and note the lease of each key; return False if one is damaged."""
