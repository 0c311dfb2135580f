"""A backend to test what stands on it: flushed and opened anew at will."""

from pathlib import Path

from kvorum.storage.backend import Backend, Environments, open_backend
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles


class Database:
    """In memory, or in LMDB where a directory is given."""

    def __init__(self, directory: Path | None = None) -> None:
        self._files: Files
        self._environments: Environments
        if directory is None:
            self._files = memory = MemoryFiles()
            self._environments = MemoryEnvironments(memory)
            self._directory = "/database"
            memory.make_directory(self._directory)
        else:
            self._files, self._environments = RealFiles(), LmdbEnvironments()
            self._directory = str(directory)
        self.backend = self._open()

    def _open(self) -> Backend:
        return open_backend(self._files, self._environments, self._directory)

    def flush(self) -> None:
        stage = self.backend.seal()
        if stage is not None:
            commit = self.backend.take_staged(stage.run(self._files, self._environments))
            self.backend.take_committed(commit.run(self._files, self._environments))

    def reopen(self) -> Backend:
        """Lose what was not flushed, and start again."""
        self.backend.close()
        self.backend = self._open()
        return self.backend

    def close(self) -> None:
        self.backend.close()
