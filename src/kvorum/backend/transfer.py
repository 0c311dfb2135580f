"""The content of a whole database, on its way out or in, in etcd's own encodings.

Buckets come in the order of their names, and entries in the order of their keys; rows of bucket
`key` have etcd's row keys. Checksums and the form of long names are our files' own business.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from kvorum.backend import directory as directories
from kvorum.backend.batch import write_entries
from kvorum.backend.buckets import BUCKETS, KEY
from kvorum.backend.directory import Current, database_path, read_current, write_current
from kvorum.backend.encoding import seal_value
from kvorum.backend.environment import Environments, WriteTransaction, writing
from kvorum.backend.quota import reserved_bytes
from kvorum.backend.view import View
from kvorum.files import Files

_PIECE_ENTRIES = 1_000
# So much goes into one transaction of a database that does not count yet.
_COMMIT_ENTRIES = 100_000

Entries = Iterable[tuple[bytes, bytes]]


def dump(view: View) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
    """Give every bucket with its entries."""
    for bucket in BUCKETS:
        yield bucket, _rows(view) if bucket == KEY else iter(view.items(bucket))


def _rows(view: View) -> Iterator[tuple[bytes, bytes]]:
    first = b""
    while rows := view.scan_keyed_rows(first, _PIECE_ENTRIES):
        yield from rows
        first = rows[-1][0] + b"\0"


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
                rest = iter(entries)
                while piece := list(islice(rest, _COMMIT_ENTRIES)):
                    with writing(environment) as transaction:
                        _write(transaction, bucket, piece)
        finally:
            environment.close()
        write_current(files, directory, current)
        if old is not None:
            directories.remove_database(files, database_path(directory, old.number))
    finally:
        files.close(lock)


def _write(transaction: WriteTransaction, bucket: bytes, piece: list[tuple[bytes, bytes]]) -> None:
    if bucket == KEY:
        transaction.append(bucket, [(key, seal_value(key, value)) for key, value in piece])
    else:
        write_entries(transaction, bucket, dict(piece))
