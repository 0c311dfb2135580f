"""Open the database at a path: an etcd file, a snapshot, or a data directory of either kind.

A file of etcd's is read under a shared lock, which is not available while an etcd runs. A Kvorum
may run at the same time, because a view of its database stays as it was when it was opened.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from kvorum.api.limits import PRODUCTION
from kvorum.network.edge import native_rows
from kvorum.state.mvcc.hashes import hash_content, hash_database
from kvorum.storage.backend import View, open_view
from kvorum.storage.backend.bbolt import Image
from kvorum.storage.backend.buckets import BUCKETS
from kvorum.storage.backend.directory import database_path, read_current
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline.locks import etcd_lock
from kvorum.tools.offline.snapshots import HashCheck, open_snapshot

Entries = Iterator[tuple[bytes, bytes]]


class Database(Protocol):
    """An open database. Each bucket can be walked only once."""

    def buckets(self) -> list[bytes]:
        """Return the names of the buckets, in order."""

    def entries_back(self, bucket: bytes) -> Entries:
        """Walk the entries of a bucket in descending order of keys, in bounded memory."""

    def hash(self) -> int:
        """Return the result of the Hash call of a member with this database."""


class _EtcdDatabase:
    def __init__(self, image: Image) -> None:
        self._image = image

    def buckets(self) -> list[bytes]:
        return self._image.buckets()

    def entries_back(self, bucket: bytes) -> Entries:
        return self._image.items_back(bucket)

    def hash(self) -> int:
        image = self._image
        return hash_content((bucket, image.items(bucket)) for bucket in image.buckets())


class _OwnDatabase:
    def __init__(self, view: View) -> None:
        self._view = view

    def buckets(self) -> list[bytes]:
        return list(BUCKETS)

    def entries_back(self, bucket: bytes) -> Entries:
        return self._view.entries_back(bucket)

    def hash(self) -> int:
        return hash_database(self._view, PRODUCTION.hash_rows_per_scan)


class DatabaseLocation:
    """The location of the database that an argument names."""

    def __init__(self, files: Files, argument: str) -> None:
        """Locate the database; raise CommandError if there is none."""
        self._files = files
        path = Path(argument)
        self.directory = path / "member" / "backend"
        current = read_current(files, str(self.directory))
        self.is_own = current is not None
        if current is not None:
            self.path = database_path(str(self.directory), current.number)
            return
        # Like etcd's tool, take a path with this ending as the file itself.
        is_file = path.is_file() or argument.endswith("db")
        self.path = argument if is_file else str(path / "member" / "snap" / "db")
        if not Path(self.path).exists():
            raise CommandError(f'"{self.path}" does not exist')

    @contextmanager
    def opened(self, lock_seconds: float) -> Iterator[Database]:
        """Open the database; wait this long for the lock of an etcd file, with 0 for ever."""
        if self.is_own:
            environments = LmdbEnvironments(native_rows())
            with open_view(self._files, environments, str(self.directory)) as view:
                yield _OwnDatabase(view)
        else:
            with (
                shared_lock(self.path, lock_seconds),
                open_snapshot(self._files, self.path, HashCheck.SKIPPED) as image,
            ):
                yield _EtcdDatabase(image)


@contextmanager
def shared_lock(path: str, seconds: float) -> Iterator[None]:
    """Keep an etcd from writing its database; raise CommandError if the lock stays taken."""
    with ExitStack() as stack:
        try:
            stack.enter_context(etcd_lock(Path(path), seconds, is_shared=True))
        except CommandError as error:
            raise CommandError("failed to open bolt DB timeout", hint=error.hint) from None
        yield
