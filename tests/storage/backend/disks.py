"""Disks for tests of the backend: one in memory, which loses power, and the machine's."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kvorum.storage.backend import Backend, Environments
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles

Coin = Callable[[], bool]


class Crash(BaseException):
    """The end of the process, raised from inside a call."""


class Disk(Protocol):
    @property
    def files(self) -> Files: ...
    @property
    def environments(self) -> Environments: ...
    @property
    def directory(self) -> str: ...

    def crash(self, coin: Coin) -> "Disk":
        """Return what the next start finds; the coin decides what is uncertain."""

    def crash_after(self, calls: int) -> None:
        """Raise Crash at a call that changes the disk, after that many others."""


class MemoryDisk:
    def __init__(self, files: MemoryFiles, environments: MemoryEnvironments) -> None:
        self.files = files
        self.environments = environments
        self.directory = "backend"

    @classmethod
    def new(cls) -> "MemoryDisk":
        files = MemoryFiles()
        files.make_directory("backend")
        files.sync_directory("")
        return cls(files, MemoryEnvironments(files))

    def crash(self, coin: Coin) -> "MemoryDisk":
        self.files.before = None
        if coin():
            files = self.files.after_power_cut(coin)
            return MemoryDisk(files, self.environments.after_power_cut(files, coin))
        self.files.kill()
        self.environments.kill(coin)
        return self

    def copy(self) -> "MemoryDisk":
        files = self.files.after_power_cut(lambda: True)
        return MemoryDisk(files, self.environments.after_power_cut(files, lambda: True))

    def crash_after(self, calls: int) -> None:
        left = calls

        def before(_call: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        self.files.before = before


class LmdbDisk:
    """The process lives on, so a crash here is between two steps: open files are dropped."""

    def __init__(self, path: Path) -> None:
        self.files = RealFiles()
        self.environments = LmdbEnvironments()
        self.directory = str(path)

    def crash(self, coin: Coin) -> "LmdbDisk":
        del coin
        for environment in list(self.environments._open.values()):
            environment.lmdb.close()
        for descriptor in list(self.files._paths):
            self.files.close(descriptor)
        return LmdbDisk(Path(self.directory))

    def crash_after(self, calls: int) -> None:
        del calls


def flush(disk: MemoryDisk, backend: Backend) -> None:
    job = backend.seal()
    assert job is not None
    staged = job.run(disk.files, disk.environments)
    removal = backend.take_committed(backend.take_staged(staged).run(disk.files, disk.environments))
    if removal is not None:
        removal.run(disk.files, disk.environments)
