"""What compiled code does in place of Python, for many rows a call.

The functions are the native edge's (`rust/src/rows.rs`), and come in through `Environments`; where
there are none, Python does it all. They take what is exactly as usual. For anything else, damage
above all, they say so and have changed nothing, and the Python that they stand in for looks at
it: it alone decides what is wrong and tells it.

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
        with the first of them. Keys must come behind `after`. Pages are marked in `reached`, and
        none that is marked already is read. Stops before the first leaf that is not as usual.
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
        """Note rows in an index and the lease of each key, or return False for a damaged one."""
