"""A consistent view of one commit, which verifies the checksums of values.

The backend uses one view per turn; jobs in a helper process open their own. A view sees the state
of one commit, with the consistent index of the same commit.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from google_crc32c import extend
from google_crc32c import value as crc32c

from kvorum.storage.backend.buckets import CONSISTENT_INDEX, KEY, META, TERM
from kvorum.storage.backend.encoding import (
    CHECKSUM_BYTES,
    NAME_BYTES_KEPT,
    RESIDUE,
    is_whole,
    open_rows,
    parse_row_key,
    parse_stored,
    row_key,
    row_keys,
    stored_name,
)
from kvorum.storage.backend.environment import Environment, ReadTransaction
from kvorum.storage.backend.errors import CorruptionError, describe_revision
from kvorum.storage.backend.native import RowPages

_SCAN_BACK_ENTRIES = 16
"""A small limit, because each entry may be as large as a request."""


def _stored_beginning(entry: tuple[bytes, bytes]) -> bytes:
    """Return the prefix that long names share if they are stored out of order."""
    return entry[0][:NAME_BYTES_KEPT]


class View:
    """The rows and entries of one commit. End it soon: LMDB reuses none of its pages meanwhile."""

    __slots__ = ("_scan_entries", "native", "path", "transaction")

    def __init__(self, environment: Environment, scan_entries: int) -> None:
        """Begin a view, which reads at most `scan_entries` entries at once."""
        self._scan_entries = scan_entries
        self.path = environment.path
        self.native = environment.native
        self.transaction: ReadTransaction = environment.begin()

    def end(self) -> None:
        """End the view."""
        self.transaction.end()

    def applied(self) -> tuple[int, int]:
        """Return index and term of the last entry applied to this commit, zeros if none was."""
        # A lookup by name would take an entry with a damaged name for a missing one.
        meta = dict(self.items(META))
        index, term = meta.get(CONSISTENT_INDEX, b""), meta.get(TERM, b"")
        return int.from_bytes(index, "big"), int.from_bytes(term, "big")

    def get(self, bucket: bytes, name: bytes) -> bytes | None:
        """Return an entry of a bucket other than `key`."""
        key = stored_name(name)
        sealed = self.transaction.get(bucket, key)
        if sealed is None:
            return None
        found, value = self._open_entry(bucket, key, sealed)
        assert found == name, f"{found!r} and {name!r} have the same SHA-256"
        return value

    def items(self, bucket: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries of a bucket other than `key`, in the order of names."""
        result: list[tuple[bytes, bytes]] = []
        found = self.transaction.scan(bucket, b"", self._scan_entries)
        while found:
            result.extend(self._open_entry(bucket, key, sealed) for key, sealed in found)
            found = self.transaction.scan(bucket, found[-1][0], self._scan_entries)[1:]
        result.sort()
        return result

    def entries_back(self, bucket: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries of any bucket, the greatest name first, in bounded memory."""
        for _, alike in groupby(self._sealed_back(bucket), _stored_beginning):
            yield from sorted(
                [self._open_entry(bucket, key, sealed) for key, sealed in alike], reverse=True
            )

    def _sealed_back(self, bucket: bytes) -> Iterator[tuple[bytes, bytes]]:
        before = b""
        while found := self.transaction.scan_back(bucket, before, _SCAN_BACK_ENTRIES):
            yield from found
            before = found[-1][0]

    def row(self, revision: int) -> bytes | None:
        """Return a row of bucket `key`, None if it does not exist."""
        key = row_key(revision)
        sealed = self.transaction.get(KEY, key)
        if sealed is None:
            return None
        if extend(crc32c(key), sealed) != RESIDUE:
            raise self._damaged(describe_revision(revision))
        return sealed[:-CHECKSUM_BYTES]

    def rows(self, revisions: Sequence[int]) -> list[bytes]:
        """Return rows of bucket `key`; raise CorruptionError if one is missing."""
        found = self.transaction.get_many(KEY, row_keys(revisions))
        values = [
            sealed[:-CHECKSUM_BYTES]
            for key, sealed in found
            if extend(crc32c(key), sealed) == RESIDUE
        ]
        if len(values) != len(revisions):
            for revision in revisions:
                if self.row(revision) is None:
                    raise self.missing(revision)
            raise AssertionError("rows that are all there were not found")
        return values

    def scan_rows(self, first: int, last: int, limit: int) -> list[tuple[int, bytes]]:
        """Return rows of bucket `key` with revisions from `first` to `last`, ascending."""
        found = self.transaction.scan(KEY, row_key(first), limit)
        rows = open_rows(found)
        if len(rows) != len(found):
            for key, sealed in found:
                if not is_whole(key, sealed):
                    raise self._damaged_key(key)
        if rows and rows[-1][0] > last:
            del rows[bisect_right(rows, last, key=itemgetter(0)) :]
        return rows

    def scan_sealed_rows(self, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return stored rows of bucket `key` with their checksums, ascending and unchecked."""
        return self.transaction.scan(KEY, first, limit)

    def row_pages(self) -> RowPages | None:
        """Return a reader of all rows of bucket `key` from pages, if there is one."""
        return self.transaction.row_pages()

    def last_row_key(self) -> bytes | None:
        """Return the key of the last row of bucket `key`, unchecked."""
        return self.transaction.last(KEY)

    def keyed_rows(self, sealed_rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Verify stored rows and strip their checksums; raise CorruptionError for a damaged row."""
        rows = [
            (key, sealed[:-CHECKSUM_BYTES])
            for key, sealed in sealed_rows
            if extend(crc32c(key), sealed) == RESIDUE
        ]
        if len(rows) != len(sealed_rows):
            for key, sealed in sealed_rows:
                if not is_whole(key, sealed):
                    raise self._damaged_key(key)
        return rows

    def count(self, bucket: bytes) -> int:
        """Return how many entries a bucket has."""
        return self.transaction.count(bucket)

    def _open_entry(self, bucket: bytes, key: bytes, sealed: bytes) -> tuple[bytes, bytes]:
        if not is_whole(key, sealed):
            raise self._damaged(f"entry {key!r} of bucket {bucket.decode()}")
        return parse_stored(key, sealed[:-CHECKSUM_BYTES])

    def _damaged(self, place: str) -> CorruptionError:
        return CorruptionError(self.path, place, "its checksum does not fit")

    def _damaged_key(self, key: bytes) -> CorruptionError:
        try:
            return self._damaged(describe_revision(parse_row_key(key)))
        except ValueError:
            return self._damaged(f"row with the key {key.hex()}")

    def missing(self, revision: int) -> CorruptionError:
        """Return the error for a row that is missing."""
        return CorruptionError(self.path, describe_revision(revision), "it is missing")
