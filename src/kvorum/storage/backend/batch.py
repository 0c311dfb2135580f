"""Writes that are flushed together and become durable together.

The loop fills a batch while it is `active`. Sealing gives the batch the index and term of its last
entry; it does not change between sealing and its commit.
"""

from itertools import islice
from typing import Final

from kvorum.storage.backend.buckets import CONSISTENT_INDEX, KEY, META, TERM
from kvorum.storage.backend.encoding import (
    row_keys,
    seal_value,
    sealed_rows,
    stored_name,
    stored_value,
)
from kvorum.storage.backend.environment import DatabaseWrite

# The cost of an entry besides its bytes, in memory and approximately in the file.
ENTRY_BYTES: Final = 64


class FlushBatch:
    """The changes since the previous batch.

    A row is in `rows` or in `deleted`, never in both. `rows` ascends by revision.
    In `entries` None stands for a deletion.
    """

    __slots__ = (
        "deleted",
        "entries",
        "entry_bytes",
        "entry_count",
        "index",
        "row_bytes",
        "rows",
        "superseded",
        "term",
    )

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.deleted: dict[int, None] = {}
        # Rows of any batch that a newer row of the same key replaced, for the cache to drop.
        self.superseded: list[int] = []
        self.entries: dict[bytes, dict[bytes, bytes | None]] = {}
        self.row_bytes = 0  # of the rows' values
        self.entry_count = 0
        self.entry_bytes = 0  # of names and values
        self.index = 0  # 0: unknown, so the flush leaves the stored index unchanged
        self.term = 0

    def put_entry(self, bucket: bytes, name: bytes, value: bytes | None) -> None:
        """Write an entry of any bucket but `key`; None deletes it."""
        assert bucket != KEY, "rows are put by revision"
        entries = self.entries.setdefault(bucket, {})
        if name not in entries:
            self.entry_count += 1
        entries[name] = value
        self.entry_bytes += len(name) + len(value or b"")

    @property
    def writes(self) -> int:
        """The number of rows and entries that change."""
        return len(self.rows) + len(self.deleted) + self.entry_count

    @property
    def size(self) -> int:
        """The estimated bytes of the batch, in memory and in the file."""
        return self.row_bytes + self.entry_bytes + ENTRY_BYTES * self.writes

    def write_to(self, transaction: DatabaseWrite, piece_rows: int) -> None:
        """Write everything into a write transaction; encode at most `piece_rows` rows at once."""
        for bucket, entries in self.entries.items():
            write_entries(transaction, bucket, entries)
        if self.deleted:
            transaction.delete(KEY, row_keys(self.deleted))
        rows = iter(self.rows.items())
        while piece := sealed_rows(islice(rows, piece_rows)):
            transaction.append(KEY, piece)
        if self.index:
            write_applied(transaction, self.index, self.term)


def write_applied(transaction: DatabaseWrite, index: int, term: int) -> None:
    """Write index and term of the last applied entry into a write transaction."""
    entries: dict[bytes, bytes | None] = {
        CONSISTENT_INDEX: index.to_bytes(8, "big"),
        TERM: term.to_bytes(8, "big"),
    }
    write_entries(transaction, META, entries)


def write_entries(
    transaction: DatabaseWrite, bucket: bytes, entries: "dict[bytes, bytes | None]"
) -> None:
    """Write entries of a bucket other than `key` into a write transaction."""
    puts = []
    deletes = []
    for name, value in entries.items():
        key = stored_name(name)
        if value is None:
            deletes.append(key)
        else:
            puts.append((key, seal_value(key, stored_value(name, value))))
    if puts:
        transaction.put(bucket, puts)
    if deletes:
        transaction.delete(bucket, deletes)
