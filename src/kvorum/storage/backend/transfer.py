"""Exports and installs the content of a whole database, in etcd's own encodings.

Buckets are in the order of their names, and entries in the order of their keys; rows of bucket
`key` have etcd's row keys. Only Kvorum's own files have checksums and shortened long names.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from kvorum.api.limits import PRODUCTION
from kvorum.storage.backend import directory as directories
from kvorum.storage.backend.batch import write_entries
from kvorum.storage.backend.bbolt.pages import ELEMENT_BYTES
from kvorum.storage.backend.bbolt.writing import INLINE_BYTES_MAX, PackedLeaves
from kvorum.storage.backend.buckets import BUCKETS, KEY
from kvorum.storage.backend.directory import Current, database_path, read_current, write_current
from kvorum.storage.backend.encoding import seal_value
from kvorum.storage.backend.environment import Environment, Environments, writing
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.backend.quota import reserved_bytes
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files, Opening

# Reads, and transactions of a database that CURRENT does not name yet, have limits both in entries
# and in bytes: an entry may have one byte or a megabyte.
_PIECE_BYTES: Final = 1 << 20
_PACKED_ROWS_MIN: Final = INLINE_BYTES_MAX // ELEMENT_BYTES
"""More rows than this never fit inline into their bucket's entry."""
_COMMIT_BYTES: Final = 32 << 20

Entries = Iterable[tuple[bytes, bytes]]
Piece = list[tuple[bytes, bytes]]


def dump(
    view: View, piece_entries: int = PRODUCTION.image_piece_entries
) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
    """Yield every bucket with its entries; read at most `piece_entries` rows at once."""
    for bucket in BUCKETS:
        # The generator passes pieces instead of rows, which saves a step per row.
        rows = chain.from_iterable(map(view.keyed_rows, sealed_pieces(view, piece_entries)))
        yield bucket, rows if bucket == KEY else iter(view.items(bucket))


def dump_image(
    view: View, piece_entries: int
) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]] | PackedLeaves]]:
    """Yield buckets as `dump` does, with rows as leaves if compiled code can build them."""
    native = view.native
    for bucket, entries in dump(view, piece_entries):
        if bucket == KEY and native is not None and view.count(KEY) > _PACKED_ROWS_MIN:
            yield bucket, _PackedRows(view, native, piece_entries)
        else:
            yield bucket, entries


class _PackedRows:
    """Builds leaves from the rows of a view, with compiled code."""

    __slots__ = ("_left", "_native", "_pieces", "_view")

    def __init__(self, view: View, native: NativeRows, piece_entries: int) -> None:
        self._view = view
        self._native = native
        self._pieces = sealed_pieces(view, piece_entries)
        # Rows that do not fill a leaf yet.
        self._left: list[tuple[bytes, bytes]] = []

    def next_leaves(self, number: int) -> tuple[bytes, list[tuple[bytes, int]]] | None:
        """Return the next leaves, the first with this number; None if there are no more."""
        piece = next(self._pieces, None)
        if piece is None and not self._left:
            return None
        rows = self._left + (piece or [])
        packed = self._native.leaves_of_rows(rows, number, piece is None)
        if packed is None:
            self._view.keyed_rows(rows)
            raise AssertionError("compiled code refused rows that are whole")
        pages, children, done = packed
        self._left = rows[done:]
        return pages, children


def sealed_pieces(view: View, entries_max: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the stored rows of bucket `key`, unchecked, in pieces of about a megabyte.

    No piece has more than `entries_max` rows.
    """
    first, limit = b"", 1
    while rows := view.scan_sealed_rows(first, limit):
        yield rows
        first = rows[-1][0] + b"\0"
        size = sum([len(value) for _, value in rows])
        limit = min(entries_max, limit * 2) if size < _PIECE_BYTES else max(1, limit // 2)


def install(
    files: Files,
    environments: Environments,
    directory: str,
    content: Iterable[tuple[bytes, Entries]],
    *,
    quota_bytes: int = 0,
    piece_entries: int = PRODUCTION.image_piece_entries,
    commit_entries: int = PRODUCTION.image_commit_entries,
) -> None:
    """Replace the database in a directory, if there is one, by one with this content.

    No Backend may have the directory open. A crash leaves the old database or the new one. A
    transaction writes about `commit_entries` entries, in pieces of `piece_entries`.
    """
    install_sealed(
        files,
        environments,
        directory,
        seal_content(content, piece_entries),
        quota_bytes=quota_bytes,
        commit_entries=commit_entries,
    )


def install_sealed(
    files: Files,
    environments: Environments,
    directory: str,
    content: Iterable[tuple[bytes, Iterable[Piece]]],
    *,
    quota_bytes: int = 0,
    commit_entries: int = PRODUCTION.image_commit_entries,
) -> None:
    """Install as `install` does, from entries in pieces and rows with checksums."""
    lock = directories.take_lock(files, directory)
    try:
        old = read_current(files, directory)
        directories.remove_leftovers(files, directory, old)
        current = Current(old.number + 1 if old else 1)
        path = database_path(directory, current.number)
        environment = environments.open(path, reserved_bytes(quota_bytes), is_synced=False)
        descriptor = files.open(path, Opening.WRITE)
        try:
            try:
                for bucket, pieces in content:
                    for _ in _load(environment, bucket, pieces, commit_entries):
                        # Start writing now, so that the final sync waits for less.
                        files.start_sync(descriptor)
            finally:
                environment.close()
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)
        write_current(files, directory, current)
        if old is not None:
            directories.remove_database(files, database_path(directory, old.number))
    finally:
        files.close(lock)


def adopt(files: Files, environments: Environments, directory: str, received: str) -> None:
    """Install as `install` does, from a checked and durable copy of a database."""
    lock = directories.take_lock(files, directory)
    try:
        old = read_current(files, directory)
        directories.remove_leftovers(files, directory, old)
        current = Current(old.number + 1 if old else 1)
        environments.adopt(files, received, database_path(directory, current.number))
        write_current(files, directory, current)
        if old is not None:
            directories.remove_database(files, database_path(directory, old.number))
    finally:
        files.close(lock)


def seal_content(
    content: Iterable[tuple[bytes, Entries]],
    piece_entries: int = PRODUCTION.image_piece_entries,
) -> Iterator[tuple[bytes, Iterator[Piece]]]:
    """Split entries into pieces, and append checksums to the values of rows."""
    for bucket, entries in content:
        pieces = _pieces(entries, piece_entries)
        yield bucket, _sealed_rows(pieces) if bucket == KEY else pieces


def _sealed_rows(pieces: Iterator[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        yield [(key, seal_value(key, value)) for key, value in piece]


def _pieces(entries: Entries, piece_entries: int) -> Iterator[Piece]:
    """Split entries into pieces."""
    piece: Piece = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry[1])
        if size >= _PIECE_BYTES or len(piece) == piece_entries:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _load(
    environment: Environment, bucket: bytes, pieces: Iterable[Piece], commit_entries: int
) -> Iterator[None]:
    """Write a bucket in as many transactions as it needs; yield after each."""
    remaining = iter(pieces)
    piece = next(remaining, None)
    while piece is not None:
        entries = size = 0
        with writing(environment) as transaction:
            while piece is not None and size < _COMMIT_BYTES and entries < commit_entries:
                if bucket == KEY:
                    transaction.append(bucket, piece)
                else:
                    write_entries(transaction, bucket, dict(piece))
                entries += len(piece)
                size += sum([len(value) for _, value in piece])
                piece = next(remaining, None)
        yield
