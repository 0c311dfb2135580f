"""Real LMDB behind the backend's seam, on a machine whose names can be lost with its power.

The content of a database is a real LMDB file in a directory of the memory file system. Its name
is a file of the machine's simulated disk that says which one, so names are lost or kept in a
power cut as all names are. A commit shows itself before it takes effect; if the machine crashes
there it is under way, and a coin decides whether it happened.
"""

from collections.abc import Callable

from kvorum.backend.environment import Environment, Sizes, WriteTransaction
from kvorum.backend.errors import BackendError, CorruptionError
from kvorum.backend.real import LmdbEnvironment, LmdbEnvironments, LmdbRead, LmdbWrite
from kvorum.files.interface import Opening, read_file
from kvorum.files.memory import Call, MemoryFiles, Survives

MAP_BYTES = 64 << 20
"""Enough for any run; the room that production reserves costs page tables."""


class SimulatedWrite(LmdbWrite):
    """A write transaction whose commit can be interrupted."""

    __slots__ = ("_owner",)

    def __init__(self, inner: LmdbEnvironment, owner: "SimulatedEnvironment") -> None:
        super().__init__(inner)
        self._owner = owner
        owner.writing = self

    def commit(self) -> None:
        """Commit, unless the machine crashes now."""
        self._owner.committing = True
        self._owner.ask("commit")
        self._owner.committing = False
        self._owner.writing = None
        super().commit()

    def abort(self) -> None:
        """Forget everything."""
        self._owner.writing = None
        super().abort()

    def finish(self) -> None:
        """Let an interrupted commit happen after all."""
        super().commit()


class SimulatedEnvironment:
    """One open database."""

    __slots__ = ("_environments", "committing", "inner", "path", "writing")

    def __init__(
        self, environments: "SimulatedEnvironments", path: str, inner: LmdbEnvironment
    ) -> None:
        self._environments = environments
        self.path = path
        self.inner = inner
        self.writing: SimulatedWrite | None = None
        self.committing = False

    def ask(self, name: str) -> None:
        """Show a call to whoever decides about crashes."""
        before = self._environments.files.before
        if before is not None:
            before(Call(name, self.path))

    def begin(self) -> LmdbRead:
        """Begin a view of the newest commit."""
        return self.inner.begin()

    def begin_write(self) -> WriteTransaction:
        """Begin the only write transaction."""
        assert self.writing is None, f"two write transactions in {self.path}"
        return SimulatedWrite(self.inner, self)

    def sizes(self) -> Sizes:
        """Return how large the file is."""
        return self.inner.sizes()

    def check_readers(self) -> int:
        """Forget views of processes that died."""
        return self.inner.check_readers()

    def close(self) -> None:
        """Give the file back."""
        if self.inner.users == 1:
            self._environments.forget(self.path)
        self.inner.close()


class SimulatedEnvironments:
    """The databases of one machine. `directory` is a real one; `next_number` never repeats."""

    __slots__ = ("_directory", "_lmdb", "_next_number", "_open", "files")

    def __init__(self, files: MemoryFiles, directory: str, next_number: Callable[[], int]) -> None:
        self.files = files
        self._directory = directory
        self._next_number = next_number
        self._lmdb = LmdbEnvironments()
        self._open: dict[str, SimulatedEnvironment] = {}

    def crash(self, survives: Survives) -> None:
        """End the process: what was staged is gone, what was being committed is asked about."""
        for environment in self._open.values():
            writing = environment.writing
            if writing is not None:
                if environment.committing and survives():
                    writing.finish()
                else:
                    LmdbWrite.abort(writing)
            environment.inner.lmdb.close()
        self._open.clear()

    def open(self, path: str, map_bytes: int) -> Environment:  # noqa: ARG002
        """Open a file to read and write; make it, with its buckets, if there is none."""
        assert path not in self._open, f"{path} is open already"
        if not self.files.exists(path):
            descriptor = self.files.open(path, Opening.CREATE)
            self.files.pwrite(descriptor, 0, b"%d." % self._next_number())
            self.files.fdatasync(descriptor)
            self.files.close(descriptor)
        inner = self._lmdb.open(self._real_path(path), MAP_BYTES)
        return self._opened(path, inner)

    def open_reader(self, path: str) -> Environment:
        """Open an existing file to read; if it is open already, share that."""
        if not self.files.exists(path):
            raise BackendError(f"{path}: No such file or directory")
        inner = self._lmdb.open_reader(self._real_path(path))
        return self._open.get(path) or self._opened(path, inner)

    def copy(self, source: Environment, path: str, descriptor: int) -> None:
        """Write the newest commit, without free pages, to a new, empty file."""
        assert isinstance(source, SimulatedEnvironment)
        number = self._next_number()
        with open(f"{self._directory}/{number}", "xb") as target:  # noqa: PTH123
            self._lmdb.copy(source.inner, path, target.fileno())
        self.files.pwrite(descriptor, 0, b"%d." % number)

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
