"""CRC-32C hashes over the database, equal to an etcd member's for the same history.

Each is a job for the helper process: it opens the file as a reader, carries the rows that are not
flushed yet, and computes a pure function of both. Rows that a compaction has yet to delete count as
deleted, so that the hash does not depend on the compaction's progress.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from google_crc32c import extend

from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.keyvalue import key_of
from kvorum.storage.backend import Backend, View, open_view
from kvorum.storage.backend.buckets import (
    BUCKETS,
    CONSISTENT_INDEX,
    KEY,
    META,
    STORAGE_VERSION,
    TERM,
)
from kvorum.storage.backend.encoding import row_key
from kvorum.storage.backend.environment import Environments
from kvorum.storage.files import Files

_LAST_REVISION = bound((1 << 63) - 1)
# META entries that differ between members with the same content.
_NOT_HASHED = {CONSISTENT_INDEX, TERM, STORAGE_VERSION}

Rows = Iterator[tuple[int, bytes]]


class HashKV(NamedTuple):
    """The hash of all keys at a revision, given a compacted revision."""

    hash: int
    revision: int
    compact_revision: int


@dataclass(slots=True, frozen=True)
class HashRows:
    """A job that hashes the rows up to a revision as a compaction leaves them."""

    directory: str  # not the file, which a defragmentation may replace before the job runs
    pending: dict[int, bytes | None]  # rows not flushed yet; None deletes
    revision: int
    compact_revision: int
    rows_per_scan: int
    is_compaction: bool  # a tombstone at exactly the revision counts as kept

    @classmethod
    def of_revision(
        cls, backend: Backend, revision: int, compact_revision: int, rows_per_scan: int
    ) -> Self:
        """Make the job that serves a HashKV request."""
        pending = backend.pending_rows(bound(revision))
        return cls(
            backend.directory,
            pending,
            revision,
            compact_revision,
            rows_per_scan,
            is_compaction=False,
        )

    @classmethod
    def of_compaction(
        cls, backend: Backend, revision: int, previous: int, rows_per_scan: int
    ) -> Self:
        """Make the job that runs before a compaction deletes its rows."""
        pending = backend.pending_rows(bound(revision))
        return cls(
            backend.directory, pending, revision, previous, rows_per_scan, is_compaction=True
        )

    def run(self, files: Files, environments: Environments) -> int:
        """Return the hash."""
        with open_view(files, environments, self.directory, checks=False) as view:
            return hash_rows(
                lambda main: self._rows(view, main),
                self.revision,
                self.compact_revision,
                is_compaction=self.is_compaction,
            )

    def _rows(self, view: View, main: int) -> Rows:
        last = bound(main)
        waiting = sorted(each for each in self.pending.items() if each[0] <= last)
        return merged_rows(scanned_rows(view, last, self.rows_per_scan), waiting)


def hash_rows(
    rows_to: Callable[[int], Rows], revision: int, compact_revision: int, *, is_compaction: bool
) -> int:
    """Hash rows as HashKV and compactions do; `rows_to` yields the rows up to a main revision.

    With `is_compaction` a tombstone at exactly the revision counts as kept.
    """
    compacted = bound(compact_revision)
    newest: dict[bytes, int] = {}
    if compact_revision > 0:
        newest = _newest(rows_to(revision), revision)
        is_any_kept = any(
            not each & 1 or (is_compaction and each >> 32 == revision) for each in newest.values()
        )
        if not is_any_kept:
            # etcd then leaves out only the rows that the compaction has deleted.
            newest = _newest(rows_to(compact_revision), 0)
    value: int = extend(0, KEY)
    for row, kv in rows_to(revision):
        if row <= compacted and (row & 1 or newest[_key(kv)] != row):
            continue
        value = extend(extend(value, row_key(row)), kv)
    return value


def _newest(rows: Rows, deleted_at: int) -> dict[bytes, int]:
    """Return the newest revision of every key.

    As in etcd, a key deleted at main revision `deleted_at` counts as deleted even if the same
    transaction puts it again.
    """
    newest: dict[bytes, int] = {}
    for row, kv in rows:
        key = _key(kv)
        if row >> 32 == deleted_at:
            before = newest.get(key, 0)
            if before & 1 and before >> 32 == deleted_at:
                continue
        newest[key] = row
    return newest


def _key(kv: bytes) -> bytes:
    # The row that raises the revision of a restored snapshot has no key.
    return key_of(kv) if kv else b""


@dataclass(slots=True, frozen=True)
class HashDatabase:
    """A job that hashes every bucket on the disk. Flush before running it."""

    directory: str
    rows_per_scan: int
    scan_entries: int

    def run(self, files: Files, environments: Environments) -> int:
        """Return the hash."""
        with open_view(
            files, environments, self.directory, scan_entries=self.scan_entries, checks=False
        ) as view:
            return hash_database(view, self.rows_per_scan)


def hash_database(view: View, rows_per_scan: int) -> int:
    """Hash every bucket of a view, except for entries that differ between equal members."""
    return hash_content((bucket, _entries(view, bucket, rows_per_scan)) for bucket in BUCKETS)


def _entries(view: View, bucket: bytes, rows_per_scan: int) -> Iterable[tuple[bytes, bytes]]:
    if bucket != KEY:
        return view.items(bucket)
    rows = scanned_rows(view, _LAST_REVISION, rows_per_scan)
    return ((row_key(revision), kv) for revision, kv in rows)


def hash_content(content: Iterable[tuple[bytes, Iterable[tuple[bytes, bytes]]]]) -> int:
    """Hash buckets and their entries, except for entries that differ between equal members."""
    value = 0
    for bucket, entries in content:
        value = extend(value, bucket)
        is_meta = bucket == META
        for name, entry in entries:
            if not is_meta or name not in _NOT_HASHED:
                value = extend(extend(value, name), entry)
    return value


def scanned_rows(view: View, last: int, rows_per_scan: int) -> Rows:
    """Return the rows of a view up to a revision, in order."""
    first = 0
    while rows := view.scan_rows(first, last, rows_per_scan):
        yield from rows
        first = rows[-1][0] + 1


def merged_rows(rows: Rows, pending: list[tuple[int, bytes | None]]) -> Rows:
    """Yield rows with pending changes applied; both inputs must be in order."""
    at = 0
    for revision, kv in rows:
        while at < len(pending) and pending[at][0] < revision:
            waiting, change = pending[at]
            if change is not None:
                yield waiting, change
            at += 1
        if at < len(pending) and pending[at][0] == revision:
            change = pending[at][1]
            at += 1
            if change is not None:
                yield revision, change
        else:
            yield revision, kv
    for waiting, change in pending[at:]:
        if change is not None:
            yield waiting, change
