"""Environments in LMDB. No other module of the core uses LMDB.

The environments use LMDB's default sync flags and no writable map. A finished commit thus survives
a power cut, and an unfinished one is never present in part. Only a file that CURRENT does not name
yet may omit syncs, unless the caller wants none at all. The map is reserved once and never resized,
because resizing would invalidate every reader. LMDB breaks its own locks if a process opens a file
twice, so users in one process share an open file. Write transactions are tied to threads, read
transactions are not.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol, TypeAlias

import lmdb

from kvorum.storage.backend.buckets import BUCKETS
from kvorum.storage.backend.environment import Environment, ReadTransaction, Sizes
from kvorum.storage.backend.errors import BackendError, CorruptionError
from kvorum.storage.backend.native import NativeRows, RowPages
from kvorum.storage.backend.pages import PageError, check_pages, read_commits
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.interface import copy_file
from kvorum.storage.files.real import RealFiles
from kvorum.storage.platform.files import HAS_DRIVE_CACHE

_Databases: TypeAlias = dict[bytes, "lmdb._Database"]
# The two pages in which LMDB records the newest commits.
_META_PAGES = 2
# Each bucket has pages of its own, and LMDB reuses a page two commits after its last use. A small
# database therefore always has this many more pages than etcd's. Sizes leave them out, so that a
# small quota admits as much as in etcd.
_UNCOUNTED_PAGES = 9
_COMMITS_MISSED_MAX = 100
"""Attempts of `_check`; an attempt fails if a member commits twice between two reads."""
# The LMDB that py-lmdb bundles can copy the commit of an older view.
_IS_PATCHED = lmdb.version(subpatch=True)[3:] > (0,)


class MemoryLock(Protocol):
    """Locks a mapped file in memory; raises BackendError if the system refuses."""

    def extend(self) -> None:
        """Lock the part by which the file has grown."""

    def release(self) -> None:
        """Unlock the file's memory."""


def _error(path: str, action: str, error: Exception) -> BackendError:
    if isinstance(error, lmdb.MapFullError):
        advice = "it reached the room reserved for it; compact, defragment, or raise the quota"
    elif isinstance(
        error,
        lmdb.CorruptedError
        | lmdb.IncompatibleError
        | lmdb.InvalidError
        | lmdb.PageNotFoundError
        | lmdb.VersionMismatchError,
    ):
        return CorruptionError(path, action, str(error))
    elif isinstance(error, lmdb.ReadersFullError):
        advice = "too many processes read it; end those that are not needed"
    else:
        advice = "check the disk: free space, errors in the system log, permissions"
    return BackendError(f"{path}: {action} failed: {error}. What to do: {advice}")


class LmdbRead:
    """A read transaction."""

    __slots__ = ("_databases", "_native", "_path", "transaction")

    def __init__(
        self,
        path: str,
        databases: _Databases,
        transaction: "lmdb.Transaction[bytes]",
        native: NativeRows | None,
    ) -> None:
        self._path = path
        self._native = native
        self._databases = databases
        self.transaction = transaction

    def get(self, bucket: bytes, key: bytes) -> bytes | None:
        """Return the value of a key."""
        try:
            return self.transaction.get(key, None, self._databases[bucket])
        except lmdb.Error as error:
            raise _error(self._path, "reading", error) from error

    def get_many(self, bucket: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the keys that exist, in the order of `keys`."""
        try:
            return self.transaction.cursor(self._databases[bucket]).getmulti(keys)
        except lmdb.Error as error:
            raise _error(self._path, "reading", error) from error

    def scan(self, bucket: bytes, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys, from `first` on."""
        try:
            cursor = self.transaction.cursor(self._databases[bucket])
            if not (cursor.set_range(first) if first else cursor.first()):
                return []
            return list(islice(cursor.iternext(), limit))
        except lmdb.Error as error:
            raise _error(self._path, "reading", error) from error

    def scan_back(self, bucket: bytes, before: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values below `before` (empty for no bound), greatest first."""
        try:
            cursor = self.transaction.cursor(self._databases[bucket])
            is_behind = bool(before) and cursor.set_range(before)
            if not (cursor.prev() if is_behind else cursor.last()):
                return []
            return list(islice(cursor.iterprev(), limit))
        except lmdb.Error as error:
            raise _error(self._path, "reading", error) from error

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""
        cursor = self.transaction.cursor(self._databases[bucket])
        return cursor.key() if cursor.last() else None

    def count(self, bucket: bytes) -> int:
        """Return how many entries a bucket has."""
        return self.transaction.stat(self._databases[bucket])["entries"]

    def row_pages(self) -> RowPages | None:
        """Return a reader of the rows from pages, valid while the view lasts, if there is one."""
        native = self._native
        return None if native is None else native.RowPages(self._path, self.transaction.id())

    def end(self) -> None:
        """End the view."""
        self.transaction.abort()


class LmdbWrite:
    """A write transaction. Begin, use and end it in one thread."""

    __slots__ = ("_environment", "_transaction")

    def __init__(self, environment: "LmdbEnvironment") -> None:
        self._environment = environment
        try:
            self._transaction = environment.lmdb.begin(write=True)
        except lmdb.Error as error:
            raise _error(environment.path, "beginning to write", error) from error
        environment.writing = self

    def append(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries with ascending keys, all greater than the last key of the bucket."""
        cursor = self._transaction.cursor(self._environment.databases[bucket])
        try:
            _, added = cursor.putmulti(items, append=True)
        except lmdb.Error as error:
            raise _error(self._environment.path, "writing", error) from error
        if added != len(items):
            # The member only appends ascending keys, so a greater last key is damage.
            cursor.last()
            place = f"entry {cursor.key()!r} of bucket {bucket.decode()}"
            raise CorruptionError(self._environment.path, place, f"it lies behind {items[-1][0]!r}")

    def put(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries in any order, replacing existing ones."""
        try:
            self._transaction.cursor(self._environment.databases[bucket]).putmulti(items)
        except lmdb.Error as error:
            raise _error(self._environment.path, "writing", error) from error

    def delete(self, bucket: bytes, keys: Sequence[bytes]) -> None:
        """Delete entries; ignore keys that do not exist."""
        database = self._environment.databases[bucket]
        delete = self._transaction.delete
        try:
            for key in keys:
                delete(key, b"", database)
        except lmdb.Error as error:
            raise _error(self._environment.path, "deleting", error) from error

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""
        cursor = self._transaction.cursor(self._environment.databases[bucket])
        return cursor.key() if cursor.last() else None

    def commit(self) -> None:
        """Commit the changes; they are durable when this returns."""
        self._environment.writing = None
        try:
            self._transaction.commit()
        except lmdb.Error as error:
            raise _error(self._environment.path, "committing", error) from error
        if HAS_DRIVE_CACHE and self._environment.lmdb.flags()["sync"]:
            # LMDB's own sync ended there.
            self._environment.empty_drive_cache()
        if self._environment.lock is not None:
            self._environment.lock.extend()

    def abort(self) -> None:
        """Discard the changes."""
        self._environment.writing = None
        self._transaction.abort()


class LmdbEnvironment:
    """One open file, which several users may share."""

    __slots__ = ("_environments", "databases", "lmdb", "lock", "native", "path", "users", "writing")

    def __init__(
        self,
        environments: "LmdbEnvironments",
        path: str,
        map_bytes: int,
        *,
        readonly: bool,
        checks: bool,
        sync: bool = True,
    ) -> None:
        self._environments = environments
        self.path = path
        self.native = environments.native
        self.users = 1
        self.writing: LmdbWrite | None = None
        self.lock: MemoryLock | None = None
        """Locks the file in memory, if the configuration asks for it."""
        try:
            self.lmdb = lmdb.Environment(
                path,
                map_size=map_bytes,
                subdir=False,
                readonly=readonly,
                sync=sync,
                mode=0o600,
                max_dbs=len(BUCKETS),
                # The backend has one view per turn, so one reusable transaction is enough.
                max_spare_txns=1,
            )
        except lmdb.Error as error:
            raise _error(path, "opening", error) from error
        try:
            self.databases: _Databases = {}
            if checks:
                self._check()
            if readonly:
                self._open_buckets(None)
            else:
                with self.lmdb.begin(write=True) as transaction:
                    self._open_buckets(transaction)
        except lmdb.Error as error:
            self.lmdb.close()
            raise _error(path, "opening its buckets", error) from error
        except PageError as error:
            self.lmdb.close()
            raise CorruptionError(path, "checking its pages", str(error)) from None

    def _check(self) -> None:
        """Raise PageError unless the newest commit is whole, before LMDB reads any of its pages.

        A read transaction protects the commit, because a member may be writing to the file.
        """
        files = RealFiles()
        descriptor = files.open(self.path, Opening.READ)
        try:
            for _ in range(_COMMITS_MISSED_MAX):
                with self.lmdb.begin() as transaction:
                    number = transaction.id()
                    for commit in read_commits(files, descriptor):
                        if commit.number == number:
                            check_pages(files, descriptor, commit, self.native)
                            return
            raise PageError(f"no meta page is of the commit {number}")
        finally:
            files.close(descriptor)

    def empty_drive_cache(self) -> None:
        """Make what was written to the file durable."""
        files = RealFiles()
        descriptor = files.open(self.path, Opening.READ)
        try:
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)

    def _open_buckets(self, transaction: "lmdb.Transaction[bytes] | None") -> None:
        for bucket in BUCKETS:
            self.databases[bucket] = self.lmdb.open_db(
                bucket, txn=transaction, create=transaction is not None
            )

    def begin(self) -> LmdbRead:
        """Begin a view of the newest commit."""
        try:
            return LmdbRead(self.path, self.databases, self.lmdb.begin(), self.native)
        except lmdb.Error as error:
            raise _error(self.path, "beginning to read", error) from error

    def begin_write(self) -> LmdbWrite:
        """Begin the only write transaction."""
        return LmdbWrite(self)

    def sizes(self) -> Sizes:
        """Return the sizes of the file."""
        with self.lmdb.begin() as transaction:
            statistics = [transaction.stat(database) for database in self.databases.values()]
            statistics.append(transaction.stat())
        pages = _META_PAGES + sum(
            each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"]
            for each in statistics
        )
        page_bytes = statistics[0]["psize"]
        counted = max(pages, self.lmdb.info()["last_pgno"] + 1 - _UNCOUNTED_PAGES)
        return Sizes(counted * page_bytes, pages * page_bytes)

    def views_open(self) -> int:
        """Return how many views are open, including those of other processes."""
        # One header line, then a line per process or thread that ever read; `-` means no view.
        lines = self.lmdb.readers().splitlines()[1:]
        return sum(1 for line in lines if not line.endswith("-"))

    def check_readers(self) -> int:
        """Release views of processes that died, and return how many."""
        return self.lmdb.reader_check()

    def close(self) -> None:
        """End one use of the file, and close it after the last."""
        self.users -= 1
        if not self.users:
            self._environments.forget(self.path)
            if self.writing is not None:
                # The member stopped after staging. LMDB waits for this transaction, which no
                # job will end any more.
                self.writing.abort()
            self.lmdb.close()


class LmdbEnvironments:
    """The database files that this process has open."""

    __slots__ = ("_known", "_lock_file", "_open", "_syncs", "native")

    def __init__(
        self,
        native: NativeRows | None = None,
        lock_file: Callable[[str], MemoryLock] | None = None,
        *,
        syncs: bool = True,
    ) -> None:
        """Create the environments of this process.

        `lock_file`, if given, locks the file last opened for writing in memory. Without `syncs`,
        commits survive the end of the process, but not a power cut.
        """
        self.native = native
        self._lock_file = lock_file
        self._syncs = syncs
        self._open: dict[str, LmdbEnvironment] = {}
        self._known: set[str] = set()
        """Files that this process has checked or created."""

    def open(
        self, path: str, map_bytes: int, *, is_synced: bool = True, checks: bool = False
    ) -> Environment:
        """Open a file to read and write; create it, with its buckets, if there is none."""
        assert path not in self._open, f"{path} is open already"
        sync = is_synced and self._syncs
        checks = checks and self._is_unknown(path)
        environment = LmdbEnvironment(
            self, path, map_bytes, readonly=False, checks=checks, sync=sync
        )
        self._open[path] = environment
        self._known.add(path)
        if self._lock_file is not None and is_synced:
            self._lock(environment, self._lock_file)
        return environment

    def _lock(self, environment: LmdbEnvironment, lock_file: Callable[[str], MemoryLock]) -> None:
        """Lock a file in memory instead of the previous one: the system's limit is for one file."""
        for other in self._open.values():
            if other.lock is not None:
                other.lock.release()
                other.lock = None
        try:
            environment.lock = lock_file(environment.path)
        except BaseException:
            environment.close()
            raise

    def _is_unknown(self, path: str) -> bool:
        """Check the meta pages of a file, and return whether its other pages must be checked.

        Files that this process has opened before need no check. LMDB would make a new database of a
        file without meta pages.
        """
        files = RealFiles()
        if path in self._known or not files.exists(path):
            return False
        descriptor = files.open(path, Opening.READ)
        try:
            read_commits(files, descriptor)
        except PageError as error:
            raise CorruptionError(path, "checking its pages", str(error)) from None
        finally:
            files.close(descriptor)
        return True

    def open_reader(self, path: str, *, checks: bool = False) -> Environment:
        """Open an existing file to read; share the environment if it is open already."""
        environment = self._open.get(path)
        if environment is not None:
            environment.users += 1
        else:
            checks = checks and self._is_unknown(path)
            # With map size 0, LMDB takes the size from the file.
            environment = LmdbEnvironment(self, path, 0, readonly=True, checks=checks)
            self._open[path] = environment
            if checks:
                self._known.add(path)
        return environment

    @property
    def exports(self) -> bool:
        """Whether `export` and `adopt` work: plain LMDB can copy only the newest commit."""
        return _IS_PATCHED

    def copy(self, source: Environment, path: str, descriptor: int) -> None:
        """Write the newest commit, without free pages, to a new, empty file."""
        assert isinstance(source, LmdbEnvironment)
        try:
            source.lmdb.copyfd(descriptor, compact=True)
        except lmdb.Error as error:
            raise _error(path, f"copying {source.path}", error) from error

    def export(
        self, source: Environment, view: ReadTransaction, path: str, descriptor: int
    ) -> None:
        """Write the content of a view, without free pages, to a new, empty file."""
        assert isinstance(source, LmdbEnvironment) and isinstance(view, LmdbRead)
        try:
            source.lmdb.copyfd(descriptor, compact=True, txn=view.transaction)
        except lmdb.Error as error:
            raise _error(path, f"copying {source.path}", error) from error

    def adopt(self, files: Files, received: str, path: str) -> None:
        """Make an exported file available as a database at a new path."""
        try:
            files.link(received, path)
        except OSError:
            # Not every file system supports hard links.
            copy_file(files, received, path)

    def forget(self, path: str) -> None:
        """Remove a closed file from the open ones."""
        del self._open[path]

    def close_all(self) -> None:
        """Close all files that are still open; nothing may use them any more."""
        for environment in list(self._open.values()):
            environment.users = 1
            environment.close()
