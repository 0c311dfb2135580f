"""The seam between the backend and LMDB, which a simulator can implement instead.

An *environment* is one database file with all buckets. A read transaction sees the state of one
commit for as long as it lasts. At most one write transaction is open at a time; it belongs to the
thread that began it. A commit that has returned is durable; an interrupted commit happens entirely
or not at all. `Files` creates, lists and removes the files under the same paths; beside `<path>` an
environment may keep `<path>-lock`.

A failure of the database is a BackendError that names the file and advises the operator.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from kvorum.storage.backend.native import NativeRows, RowPages
from kvorum.storage.files import Files

LOCK_ENDING = "-lock"


class Sizes(NamedTuple):
    """The bytes of a database file, with and without free pages.

    Neither number includes the few pages that only copy-on-write needs.
    """

    allocated: int
    in_use: int


class ReadTransaction(Protocol):
    """One consistent view. Any thread may use it, one at a time."""

    def get(self, bucket: bytes, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def get_many(self, bucket: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the keys that exist, in the order of `keys`."""

    def scan(self, bucket: bytes, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys, from `first` on."""

    def scan_back(self, bucket: bytes, before: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values below `before` (empty for no bound), greatest first."""

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""

    def count(self, bucket: bytes) -> int:
        """Return how many entries a bucket has."""

    def row_pages(self) -> RowPages | None:
        """Return a reader of the rows from pages, valid while the view lasts, if there is one."""

    def end(self) -> None:
        """End the view; call nothing else afterwards."""


class DatabaseWrite(Protocol):
    """Changes that become visible and durable together."""

    def append(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries with ascending keys, all greater than the last key of the bucket."""

    def put(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries in any order, replacing existing ones."""

    def delete(self, bucket: bytes, keys: Sequence[bytes]) -> None:
        """Delete entries; ignore keys that do not exist."""

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""

    def commit(self) -> None:
        """Commit the changes; they are durable when this returns."""

    def abort(self) -> None:
        """Discard the changes."""


class Environment(Protocol):
    """One open database file, which has every bucket."""

    @property
    def path(self) -> str:
        """The path that opened it."""

    @property
    def native(self) -> NativeRows | None:
        """Compiled functions over its rows, None without the native edge."""

    def begin(self) -> ReadTransaction:
        """Begin a view of the newest commit."""

    def begin_write(self) -> DatabaseWrite:
        """Begin the only write transaction."""

    def sizes(self) -> Sizes:
        """Return the sizes of the file."""

    def views_open(self) -> int:
        """Return how many views are open, including those of other processes."""

    def check_readers(self) -> int:
        """Release views of processes that died, which keep pages from reuse; return how many."""

    def close(self) -> None:
        """Close the file; no transaction may be open."""


@contextmanager
def writing(environment: Environment) -> Iterator[DatabaseWrite]:
    """Commit the block's writes, or none of them if the block fails."""
    transaction = environment.begin_write()
    try:
        yield transaction
    except BaseException:
        transaction.abort()
        raise
    transaction.commit()


class Environments(Protocol):
    """Opens environments. A process must open all of its environments through one of these."""

    @property
    def native(self) -> NativeRows | None:
        """Compiled functions over rows, None without the native edge."""

    def open(
        self, path: str, map_bytes: int, *, is_synced: bool = True, checks: bool = False
    ) -> Environment:
        """Open a file to read and write; create it, with its buckets, if there is none.

        `map_bytes` is the reserved size, which the file can never outgrow. Without `is_synced`, for
        a file that CURRENT does not name yet, commits are durable only after the file is closed and
        a descriptor of it synced. `checks` verifies each page of a file that this process has not
        opened before, and raises CorruptionError if the file is damaged.
        """

    def open_reader(self, path: str, *, checks: bool = False) -> Environment:
        """Open an existing file to read; share the environment if this process has it open already.

        `checks` means the same as for `open`.
        """

    def copy(self, source: Environment, path: str, descriptor: int) -> None:
        """Write the newest commit, without free pages, to a new, empty file of `Files`.

        The copy is durable once the caller has synced the descriptor.
        """

    @property
    def exports(self) -> bool:
        """Whether `export` and `adopt` work."""

    def export(
        self, source: Environment, view: ReadTransaction, path: str, descriptor: int
    ) -> None:
        """Write the content of a view, without free pages, to a new, empty file of `Files`.

        Once `adopt` has named it, the file is a database on any machine with the same format.
        """

    def adopt(self, files: Files, received: str, path: str) -> None:
        """Make a durable and checked exported file available as a database at a new path.

        The file keeps its name as well. The new name is durable once its directory is synced.
        """
