"""Real LMDB behind the backend's seam, on a machine that can lose file names with its power.

The content of a database is a real LMDB file in a directory of the memory file system. On the
machine's simulated disk, a file with the database's name holds the number of the real file, so a
power cut loses or keeps names as it does for all files. A commit is announced before it takes
effect; if the machine crashes there, a coin decides whether it happened.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import NamedTuple

import lmdb

from kvorum.network.edge import native_rows
from kvorum.storage.backend.buckets import BUCKETS
from kvorum.storage.backend.environment import DatabaseWrite, Environment, ReadTransaction, Sizes
from kvorum.storage.backend.errors import BackendError, CorruptionError
from kvorum.storage.backend.real import LmdbEnvironment, LmdbEnvironments, LmdbRead, LmdbWrite
from kvorum.storage.files import Files
from kvorum.storage.files.interface import Opening, read_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles, Survives

MAP_BYTES = 64 << 20
"""Enough for any run; production's size would cost page tables."""


class SimulatedWrite(LmdbWrite):
    """A write transaction whose commit can be interrupted."""

    __slots__ = ("_owner",)

    def __init__(self, inner: LmdbEnvironment, owner: "SimulatedEnvironment") -> None:
        super().__init__(inner)
        self._owner = owner
        owner.writing = self

    def append(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries behind the last one."""
        self._make_way(bucket, [key for key, _ in items])
        super().append(bucket, items)

    def put(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries."""
        self._make_way(bucket, [key for key, _ in items])
        super().put(bucket, items)

    def delete(self, bucket: bytes, keys: Sequence[bytes]) -> None:
        """Remove entries."""
        self._make_way(bucket, keys)
        super().delete(bucket, keys)

    def _make_way(self, bucket: bytes, keys: Sequence[bytes]) -> None:
        """Undo a flip in an entry's key before that entry is written or deleted.

        Otherwise restoring the disk would bring the entry back as it was, although it was replaced
        or deleted since; or a write at the flipped key would destroy the entry for good.
        """
        strayed = self._owner.strayed
        if strayed is None or strayed.bucket != bucket:
            return
        if strayed.key not in keys and strayed.now_key not in keys:
            return
        database = self._environment.databases[bucket]
        if self._transaction.get(strayed.now_key, db=database) == strayed.now_value:
            super().delete(bucket, [strayed.now_key])
            if strayed.key not in keys:
                super().put(bucket, [(strayed.key, strayed.value)])

    def commit(self) -> None:
        """Commit, unless the machine crashes now or its disk fails."""
        self._owner.committing = True
        try:
            self._owner.ask("commit")
        except OSError as error:
            # The end of the process decides whether the commit happened, as in a crash.
            raise BackendError(f"{self._owner.path}: committing failed: {error}") from error
        except BaseException:
            # The process ends here: decide at once, as the transaction belongs to this thread.
            self._owner.settle()
            raise
        self._owner.committing = False
        self._owner.writing = None
        super().commit()

    def abort(self) -> None:
        """Discard all changes."""
        self._owner.writing = None
        super().abort()

    def finish(self) -> None:
        """Complete a commit that was interrupted."""
        super().commit()


class PausingRead(LmdbRead):
    """A read transaction of a job that may pause, so that other events happen amid it."""

    __slots__ = ("_pause",)

    def __init__(self, read: LmdbRead, pause: Callable[[], None]) -> None:
        super().__init__(read._path, read._databases, read.transaction, read._native)
        self._pause = pause

    def get(self, bucket: bytes, key: bytes) -> bytes | None:
        """Return the value of a key."""
        self._pause()
        return super().get(bucket, key)

    def scan(self, bucket: bytes, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys, from `first` on."""
        self._pause()
        return super().scan(bucket, first, limit)


class SimulatedEnvironment:
    """One open database."""

    __slots__ = ("_environments", "committing", "inner", "native", "path", "writing")

    def __init__(
        self, environments: "SimulatedEnvironments", path: str, inner: LmdbEnvironment
    ) -> None:
        self._environments = environments
        self.path = path
        self.native = environments.native
        self.inner = inner
        self.writing: SimulatedWrite | None = None
        self.committing = False

    @property
    def strayed(self) -> "DamagedEntry | None":
        """The entry of the machine's databases whose key has a flipped bit, if there is one."""
        return self._environments.strayed

    def ask(self, name: str) -> None:
        """Announce a call to the disk, which may fail it or end the process."""
        before = self._environments.files.before
        if before is not None:
            before(DiskCall(name, self.path))

    def settle(self) -> None:
        """Lose or commit a write transaction that the end of the process interrupts."""
        writing, self.writing = self.writing, None
        if writing is not None:
            if self.committing and self._environments.survives():
                writing.finish()
            else:
                LmdbWrite.abort(writing)

    def begin(self) -> LmdbRead:
        """Begin a view of the newest commit."""
        read, pause = self.inner.begin(), self._environments.pause
        return read if pause is None else PausingRead(read, pause)

    def begin_write(self) -> DatabaseWrite:
        """Begin the only write transaction."""
        assert self.writing is None, f"two write transactions in {self.path}"
        return SimulatedWrite(self.inner, self)

    def sizes(self) -> Sizes:
        """Return how large the file is."""
        return self.inner.sizes()

    def views_open(self) -> int:
        """Return how many views are open."""
        return self.inner.views_open()

    def check_readers(self) -> int:
        """Forget views of processes that died."""
        return self.inner.check_readers()

    def close(self) -> None:
        """Close the file."""
        if self.inner.users == 1:
            self._environments.forget(self.path)
        self.inner.close()


class SimulatedEnvironments:
    """The databases of one machine. `directory` is a real one; `next_number` never repeats.

    When a process ends amid a commit, `survives` decides whether the commit happened.
    """

    __slots__ = (
        "_directory",
        "_lmdb",
        "_next_number",
        "_open",
        "files",
        "native",
        "pause",
        "strayed",
        "survives",
        "takes_copies",
    )

    def __init__(
        self,
        files: MemoryFiles,
        directory: str,
        next_number: Callable[[], int],
        survives: Survives,
    ) -> None:
        self.files = files
        self.survives = survives
        # Called before every call of a job that may pause there; None: no such job runs.
        self.pause: Callable[[], None] | None = None
        self._directory = directory
        self._next_number = next_number
        self.native = None  # jobs use Python alone, in which they can be stopped
        # Starts read rows as they do in production, if the compiled functions are there.
        self._lmdb = LmdbEnvironments(native_rows())
        self._open: dict[str, SimulatedEnvironment] = {}
        # False: the machine behaves like one of an older version.
        self.takes_copies = True
        # The entry with a flipped bit in its key that was not restored.
        self.strayed: DamagedEntry | None = None

    def crash(self) -> None:
        """End the process: staged changes are lost, unfinished commits happened or not."""
        for environment in self._open.values():
            environment.settle()
            environment.inner.lmdb.close()
        self._open.clear()

    def open(
        self,
        path: str,
        map_bytes: int,  # noqa: ARG002
        *,
        is_synced: bool = True,
        checks: bool = False,
    ) -> Environment:
        """Open a file to read and write; make it, with its buckets, if there is none."""
        assert path not in self._open, f"{path} is open already"
        if not self.files.exists(path):
            try:
                self._create(path, is_synced)
            except OSError as error:
                raise BackendError(f"{path}: opening failed: {error}") from error
        inner = self._lmdb.open(self._real_path(path), MAP_BYTES, checks=checks)
        return self._opened(path, inner)

    def _create(self, path: str, is_synced: bool) -> None:
        descriptor = self.files.open(path, Opening.CREATE)
        self.files.pwrite(descriptor, 0, b"%d." % self._next_number())
        if is_synced:
            self.files.fdatasync(descriptor)
        self.files.close(descriptor)

    def open_reader(self, path: str, *, checks: bool = False) -> Environment:
        """Open an existing file to read; share its environment if it is open already."""
        if not self.files.exists(path):
            raise BackendError(f"{path}: No such file or directory")
        inner = self._lmdb.open_reader(self._real_path(path), checks=checks)
        environment = self._open.get(path) or self._opened(path, inner)
        assert environment.inner is inner, f"{path} was replaced while it was open"
        return environment

    def copy(self, source: Environment, path: str, descriptor: int) -> None:
        """Write the newest commit, without free pages, to a new, empty file."""
        assert isinstance(source, SimulatedEnvironment)
        number = self._next_number()
        with open(f"{self._directory}/{number}", "xb") as target:  # noqa: PTH123
            self._lmdb.copy(source.inner, path, target.fileno())
        try:
            self.files.pwrite(descriptor, 0, b"%d." % number)
        except OSError as error:
            raise BackendError(f"{path}: copying {source.path} failed: {error}") from error

    @property
    def exports(self) -> bool:
        """Whether `export` and `adopt` work."""
        return self.takes_copies and self._lmdb.exports

    def export(
        self, source: Environment, view: ReadTransaction, path: str, descriptor: int
    ) -> None:
        """Write what a view holds to a new, empty file, whose bytes another machine can adopt."""
        assert isinstance(source, SimulatedEnvironment)
        with TemporaryFile(dir=self._directory) as target:
            self._lmdb.export(source.inner, view, path, target.fileno())
            target.seek(0)
            try:
                self.files.pwrite(descriptor, 0, target.read())
            except OSError as error:
                raise BackendError(f"{path}: copying {source.path} failed: {error}") from error

    def adopt(self, files: Files, received: str, path: str) -> None:
        """Make an exported file a database of that path."""
        number = self._next_number()
        Path(f"{self._directory}/{number}").write_bytes(read_file(files, received))
        # One step on a real disk, where only the name is new.
        temporary = f"{path}-lock"
        descriptor = files.open(temporary, Opening.CREATE)
        files.pwrite(descriptor, 0, b"%d." % number)
        files.fdatasync(descriptor)
        files.close(descriptor)
        files.link(temporary, path)
        files.unlink(temporary)

    def forget(self, path: str) -> None:
        """Note that a file was closed."""
        del self._open[path]

    def _opened(self, path: str, inner: Environment) -> SimulatedEnvironment:
        assert isinstance(inner, LmdbEnvironment)
        self._open[path] = environment = SimulatedEnvironment(self, path, inner)
        return environment

    def _real_path(self, path: str) -> str:
        content = read_file(self.files, path)
        if not content.endswith(b"."):
            raise CorruptionError(path, "opening", "not a database")
        return f"{self._directory}/{int(content[:-1])}"

    # Decay.

    def flip(self, directory: str, random: Random) -> "DamagedEntry | None":
        """Flip a bit of one entry of the database in a directory, if there is any.

        Databases with an open write transaction are left out: LMDB allows only one.
        """
        paths = [path for path in self._paths(directory) if self._is_at_rest(path)]
        if not paths:
            return None
        with self._raw(random.choice(paths)) as (environment, databases):
            if not databases:
                return None
            with environment.begin(write=True) as transaction:
                found = {
                    each: list(transaction.cursor(databases[each]))
                    for each in BUCKETS
                    if each in databases
                }
                buckets = [each for each, entries in found.items() if entries]
                if not buckets:
                    return None
                bucket = random.choice(buckets)
                database, entries = databases[bucket], found[bucket]
                key, value = random.choice(entries)
                # The keys of rows and names decay as well, if not as often: they are short.
                is_key = random.random() < 0.2
                flipped = _flipped(key if is_key else value, random)
                damage = DamagedEntry(
                    bucket, key, value, flipped if is_key else key, value if is_key else flipped
                )
                if is_key and transaction.get(flipped, db=database) is not None:
                    return None
                transaction.delete(key, db=database)
                transaction.put(damage.now_key, damage.now_value, db=database)
        self.strayed = damage if is_key else None
        return damage

    def restore(self, directory: str, damage: "DamagedEntry") -> None:
        """Put an entry back as it was, in every database that still has the flip."""
        assert not self._open, "a process uses the databases"
        self.strayed = None
        for path in self._paths(directory):
            with self._raw(path) as (environment, databases):
                if damage.bucket not in databases:
                    continue
                with environment.begin(databases[damage.bucket], write=True) as transaction:
                    if transaction.get(damage.now_key) == damage.now_value:
                        transaction.delete(damage.now_key)
                        transaction.put(damage.key, damage.value)

    def is_damaged(self, directory: str, damage: "DamagedEntry") -> bool:
        """Return whether an entry is damaged in the only database of a directory."""
        paths = self._paths(directory)
        if len(paths) != 1:
            return False
        with self._raw(paths[0]) as (environment, databases), environment.begin() as transaction:
            database = databases[damage.bucket]
            return bool(transaction.get(damage.now_key, db=database) == damage.now_value)

    def _paths(self, directory: str) -> list[str]:
        if not self.files.exists(directory):
            return []
        names = [name for name in self.files.list(directory) if name.startswith("backend.")]
        paths = [f"{directory}/{name}" for name in names]
        return [path for path in paths if read_file(self.files, path).endswith(b".")]

    def _is_at_rest(self, path: str) -> bool:
        environment = self._open.get(path)
        return environment is None or environment.writing is None

    @contextmanager
    def _raw(self, path: str) -> "Iterator[tuple[lmdb.Environment, dict[bytes, lmdb._Database]]]":
        """Yield the LMDB environment of a database and its buckets, whether or not it is open."""
        known = self._open.get(path)
        if known is not None:
            yield known.inner.lmdb, known.inner.databases
            return
        environment = lmdb.Environment(
            self._real_path(path), map_size=MAP_BYTES, subdir=False, max_dbs=len(BUCKETS)
        )
        try:
            databases = {}
            for bucket in BUCKETS:
                # A process that crashed while making the file may have made no buckets.
                with suppress(lmdb.NotFoundError):
                    databases[bucket] = environment.open_db(bucket, create=False)
            yield environment, databases
        finally:
            environment.close()


class DamagedEntry(NamedTuple):
    """An entry of a database with a flipped bit: as it was written, and as it is now."""

    bucket: bytes
    key: bytes
    value: bytes
    now_key: bytes
    now_value: bytes

    def __str__(self) -> str:
        return f"{self.bucket!r} {self.key!r}={self.value!r} is {self.now_key!r}={self.now_value!r}"


def _flipped(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)
