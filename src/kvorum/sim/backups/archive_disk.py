"""The disk of an archive, which fails, fills up and loses power, and a program's view of it.

Every call of a program to its disk is a step: the program may die there, the call may fail, and
other events may happen first. The files that a program has open are closed when it dies.
"""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import TYPE_CHECKING

from kvorum.sim.disk import ProcessEnd
from kvorum.storage.files.interface import Opening
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.tools.backup.stores import DirectoryStore

if TYPE_CHECKING:
    from kvorum.sim.backups.program import Program
    from kvorum.sim.backups.threads import Threads

PATH = "/archive"
_PAUSE_CHANCE = 0.04
_PAUSE_SECONDS = (0.0005, 0.005, 0.05)
"""Average pauses for disk calls; each pause uses one of them."""
_CHANGES = ("create", "pwrite", "fdatasync", "rename", "unlink", "sync_directory")


class ArchiveDisk:
    """The disk of an archive."""

    __slots__ = ("_errors_left", "_random", "failures", "files", "power_cuts")

    def __init__(self, random: Random) -> None:
        self._random = random
        self.files = MemoryFiles(self._before)
        self._errors_left: int | None = None
        self.failures = 0
        self.power_cuts = 0

    @property
    def store(self) -> DirectoryStore:
        """The archive, read without faults."""
        return DirectoryStore(self.files, PATH)

    def _survives(self) -> bool:
        return self._random.random() < 0.5

    def cut_power(self) -> None:
        """Drop unsynced data; the caller has already killed the programs that use this disk."""
        self.power_cuts += 1
        self.files = self.files.after_power_cut(self._survives)
        self.files.before = self._before

    def fail_after(self, calls: int) -> None:
        """Let one changing call fail after this many other changing calls."""
        self._errors_left = calls

    def fill_up(self) -> None:
        """Leave less than 3000 bytes of room."""
        self.failures += 1
        self.files.bytes_max = self.files.used_bytes() + self._random.randrange(3000)

    def relieve(self) -> None:
        """Give the disk room again, and let no call fail."""
        self._errors_left = None
        self.files.bytes_max = None

    def _before(self, call: DiskCall) -> None:
        if self._errors_left is not None:
            self._errors_left -= 1
            if self._errors_left < 0:
                self._errors_left = None
                self.failures += 1
                raise OSError(errno.EIO, "Input/output error", call.path)


class ProgramFiles:
    """A place's files for one life of a program, as `kvorum.storage.files.interface.Files`."""

    def __init__(self, threads: Threads, program: Program, disk: ArchiveDisk) -> None:
        self._threads = threads
        self._program = program
        self._files = disk.files
        self._random = threads.world.stream(f"files {program.process.name} {program.life}")
        self._opened: set[int] = set()

    def close_all(self) -> None:
        """Close all open files because the program has ended."""
        for descriptor in self._opened:
            self._files.close(descriptor)
        self._opened.clear()

    def _step(self, name: str, path: str = "") -> None:
        """Let other events happen before a call, or the program die."""
        program, random = self._program, self._random
        if not program.is_dead and random.random() < _PAUSE_CHANCE:
            self._threads.sleep(random.expovariate(1.0) * random.choice(_PAUSE_SECONDS))
        if name in _CHANGES:
            program.count_step(f"{name} {path}")
        if program.is_dead:
            raise ProcessEnd

    def open(self, path: str, opening: Opening) -> int:
        """Return a descriptor for a file."""
        self._step("create" if opening is Opening.CREATE else "open", path)
        descriptor = self._files.open(path, opening)
        self._opened.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor and release its lock."""
        if descriptor in self._opened:
            self._opened.remove(descriptor)
            self._files.close(descriptor)

    def lock(self, descriptor: int) -> bool:
        """Lock the whole file until the descriptor is closed."""
        self._step("lock")
        return self._files.lock(descriptor)

    def size(self, descriptor: int) -> int:
        """Return the length of a file."""
        self._step("size")
        return self._files.size(descriptor)

    def pread(self, descriptor: int, offset: int, length: int) -> bytes:
        """Read the given number of bytes; fewer only at the end of the file."""
        self._step("pread")
        return self._files.pread(descriptor, offset, length)

    def pwrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write all of the data."""
        self._step("pwrite")
        self._files.pwrite(descriptor, offset, data)

    def allocate(self, descriptor: int, length: int) -> None:
        """Reserve space up to a length."""
        self._step("allocate")
        self._files.allocate(descriptor, length)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file off at a length."""
        self._step("truncate")
        self._files.truncate(descriptor, length)

    def fdatasync(self, descriptor: int) -> None:
        """Return when the content of a file is durable."""
        self._step("fdatasync")
        self._files.fdatasync(descriptor)

    def start_sync(self, descriptor: int) -> None:
        """Do nothing: the interface requires no effect."""

    def syncing(self, descriptor: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the interface requires no effect."""
        return nullcontext()

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory in ascending order."""
        self._step("list", directory)
        return self._files.list(directory)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of that name."""
        self._step("exists", path)
        return self._files.exists(path)

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        self._step("make_directory", path)
        self._files.make_directory(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._step("remove_directory", path)
        self._files.remove_directory(path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file within its directory."""
        self._step("rename", new)
        self._files.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file another name."""
        self._step("link", new)
        self._files.link(old, new)

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""
        self._step("unlink", path)
        self._files.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are durable."""
        self._step("sync_directory", path)
        self._files.sync_directory(path)
