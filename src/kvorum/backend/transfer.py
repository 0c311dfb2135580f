"""The content of a whole database, on its way out or in, in etcd's own encodings.

Buckets come in the order of their names, and entries in the order of their keys; rows of bucket
`key` have etcd's row keys. Checksums and the form of long names are our files' own business.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from kvorum.backend import directory as directories
from kvorum.backend.batch import write_entries
from kvorum.backend.buckets import BUCKETS, KEY
from kvorum.backend.directory import Current, database_path, read_current, write_current
from kvorum.backend.encoding import seal_value
from kvorum.backend.environment import Environments, WriteTransaction, writing
from kvorum.backend.quota import reserved_bytes
from kvorum.backend.view import View
from kvorum.files import Files

# So much is read at once, and so much goes into one transaction of a database that does not
# count yet: entries may have a byte or a megabyte.
_PIECE_ENTRIES: Final = 1_000
_PIECE_BYTES: Final = 1 << 20
_COMMIT_ENTRIES: Final = 100_000
_COMMIT_BYTES: Final = 32 << 20

Entries = Iterable[tuple[bytes, bytes]]


def dump(view: View) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
    """Give every bucket with its entries."""
    for bucket in BUCKETS:
        # Pieces, not rows, pass through the generator: that saves a step of it per row.
        rows = chain.from_iterable(_pieces_of_rows(view))
        yield bucket, rows if bucket == KEY else iter(view.items(bucket))


def _pieces_of_rows(view: View) -> Iterator[list[tuple[bytes, bytes]]]:
    first, limit = b"", 1
    while rows := view.scan_keyed_rows(first, limit):
        yield rows
        first = rows[-1][0] + b"\0"
        size = sum([len(value) for _, value in rows])
        limit = min(_PIECE_ENTRIES, limit * 2) if size < _PIECE_BYTES else max(1, limit // 2)


def install(
    files: Files,
    environments: Environments,
    directory: str,
    content: Iterable[tuple[bytes, Entries]],
    *,
    quota_bytes: int = 0,
) -> None:
    """Put a database with this content in the place of the one in a directory, if there is one.

    No Backend has the directory open. A crash leaves the old database or the new one.
    """
    lock = directories.take_lock(files, directory)
    try:
        old = read_current(files, directory)
        directories.remove_leftovers(files, directory, old)
        current = Current(old.number + 1 if old else 1)
        path = database_path(directory, current.number)
        environment = environments.open(path, reserved_bytes(quota_bytes))
        try:
            for bucket, entries in content:
                for piece in _pieces(entries):
                    with writing(environment) as transaction:
                        _write(transaction, bucket, piece)
        finally:
            environment.close()
        write_current(files, directory, current)
        if old is not None:
            directories.remove_database(files, database_path(directory, old.number))
    finally:
        files.close(lock)


def _pieces(entries: Entries) -> Iterator[list[tuple[bytes, bytes]]]:
    """Share entries out to transactions."""
    piece: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry[1])
        if size >= _COMMIT_BYTES or len(piece) == _COMMIT_ENTRIES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _write(transaction: WriteTransaction, bucket: bytes, piece: list[tuple[bytes, bytes]]) -> None:
    if bucket == KEY:
        transaction.append(bucket, [(key, seal_value(key, value)) for key, value in piece])
    else:
        write_entries(transaction, bucket, dict(piece))
