"""What the backend asks of LMDB, in few calls: the seam a simulator can stand behind.

An *environment* is one database file with all buckets. Reads see the state of one commit for as
long as their transaction lasts. At most one write transaction is open at a time; it belongs to
the thread that began it. A commit that has returned is durable, one that was interrupted
happened whole or not at all. Files are made, listed and removed under the same paths through
`Files`; beside `<path>` an environment may keep `<path>-lock`.

Failures of the database are BackendErrors that name the file and what to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from kvorum.backend.native import NativeRows, RowPages
from kvorum.files import Files

LOCK_ENDING = "-lock"


class Sizes(NamedTuple):
    """The bytes of a database file: all of it, and without pages that are free.

    Of a few pages that only copying on write needs, none is counted.
    """

    allocated: int
    in_use: int


class ReadTransaction(Protocol):
    """One consistent view. Any thread may use it, one at a time."""

    def get(self, bucket: bytes, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def get_many(self, bucket: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return keys and values of those keys that exist, in the order asked for."""

    def scan(self, bucket: bytes, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys, from `first` on."""

    def scan_back(self, bucket: bytes, before: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values below `before`, greatest first; an empty one is above all."""

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""

    def count(self, bucket: bytes) -> int:
        """Return how many entries a bucket has."""

    def row_pages(self) -> RowPages | None:
        """Return what reads the rows from pages for as long as the view lasts, if anything does."""

    def end(self) -> None:
        """End the view. Nothing else may be called afterwards."""


class WriteTransaction(Protocol):
    """Changes that become visible and durable together."""

    def append(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries in ascending order of keys, all behind the last key of the bucket."""

    def put(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries in any order; what exists is replaced."""

    def delete(self, bucket: bytes, keys: Sequence[bytes]) -> None:
        """Remove entries; those that do not exist are left alone."""

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""

    def commit(self) -> None:
        """Return when everything is durable."""

    def abort(self) -> None:
        """Forget everything."""


class Environment(Protocol):
    """One open database file. Every bucket exists."""

    @property
    def path(self) -> str:
        """The path it was opened by."""

    @property
    def native(self) -> NativeRows | None:
        """Compiled functions over its rows, if there are any."""

    def begin(self) -> ReadTransaction:
        """Begin a view of the newest commit."""

    def begin_write(self) -> WriteTransaction:
        """Begin the only write transaction."""

    def sizes(self) -> Sizes:
        """Return how large the file is."""

    def views_open(self) -> int:
        """Return how many views are open, those of other processes included."""

    def check_readers(self) -> int:
        """Forget views of processes that died, and return how many: they keep pages from reuse."""

    def close(self) -> None:
        """Close the file. No transaction is open."""


@contextmanager
def writing(environment: Environment) -> Iterator[WriteTransaction]:
    """Commit what is written in the block, or nothing of it if the block fails."""
    transaction = environment.begin_write()
    try:
        yield transaction
    except BaseException:
        transaction.abort()
        raise
    transaction.commit()


class Environments(Protocol):
    """Opens environments. All of a process go through one of these."""

    @property
    def native(self) -> NativeRows | None:
        """Compiled functions over rows, if there are any."""

    def open(
        self, path: str, map_bytes: int, *, is_synced: bool = True, checks: bool = False
    ) -> Environment:
        """Open a file to read and write; make it, with its buckets, if there is none.

        `map_bytes` is the room reserved, which the file can never outgrow. If not `is_synced`, for
        a file that does not count yet, commits are durable once it was closed and a descriptor of
        it was synced. With `checks`, a file that this process has not had open before is checked
        page by page; raises CorruptionError if it is damaged.
        """

    def open_reader(self, path: str, *, checks: bool = False) -> Environment:
        """Open an existing file to read; if this process has it open already, share that.

        `checks` means the same as for `open`.
        """

    def copy(self, source: Environment, path: str, descriptor: int) -> None:
        """Write the newest commit, without free pages, to a new, empty file of `Files`.

        It is durable once the descriptor was synced.
        """

    @property
    def exports(self) -> bool:
        """Whether `export` and `adopt` work."""

    def export(
        self, source: Environment, view: ReadTransaction, path: str, descriptor: int
    ) -> None:
        """Write what a view sees, without free pages, to a new, empty file of `Files`.

        The bytes of that file are a database on any machine, once `adopt` has named them.
        """

    def adopt(self, files: Files, received: str, path: str) -> None:
        """Make an exported file, which is durable and checked, a database of that new path.

        The file keeps its name as well. The new name is durable once its directory was synced.
        """
