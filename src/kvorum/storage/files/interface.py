"""The core's interface to a file system, with the fewest calls that suffice for durability.

Paths are strings with `/`; descriptors are small integers, which the log writer needs. Every
failure is an OSError that names the path. Nothing is durable before a sync: `fdatasync` syncs the
content and size of a file; `sync_directory` syncs the created, changed and removed names of a
directory. After a failed sync the content is unknown, and another sync may succeed without writing
it: a caller that gets this error must stop writing for good.
"""

from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol

COPY_BYTES = 1 << 20


class Opening(Enum):
    """Modes of opening a file."""

    READ = "read"
    WRITE = "write"
    """An existing file, to read and write."""
    CREATE = "create"
    """A new, empty file, to read and write; fails if the name is taken."""


class Files(Protocol):
    """A file system. All calls may block; `lock` never does."""

    def open(self, path: str, opening: Opening) -> int:
        """Return a descriptor for a file; only the owner may read a new file."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor and release its lock."""

    def lock(self, descriptor: int) -> bool:
        """Lock the whole file for writers until the descriptor is closed.

        Return False if another descriptor, of this or another process, holds the lock.
        """

    def size(self, descriptor: int) -> int:
        """Return the length of a file."""

    def pread(self, descriptor: int, offset: int, length: int) -> bytes:
        """Read `length` bytes, or fewer at the end of the file."""

    def pwrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write all of the data, extending the file if necessary."""

    def allocate(self, descriptor: int, length: int) -> None:
        """Reserve space up to a length, extending a shorter file with zeros."""

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file off at a length."""

    def fdatasync(self, descriptor: int) -> None:
        """Make the content and the length of a file durable."""

    def start_sync(self, descriptor: int) -> None:
        """Start writing back what was written so far, so that a later sync waits for less."""

    def syncing(self, descriptor: int) -> AbstractContextManager[None]:
        """Repeat `start_sync` while the context lasts, also for data that other code writes."""

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory in ascending order, without `.` and `..`."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name."""

    def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within its directory, atomically.

        Replaces an existing file of the new name.
        """

    def link(self, old: str, new: str) -> None:
        """Give a file another name, perhaps in another directory; fails if the name is taken."""

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""


def parent(path: str) -> str:
    """Return the directory of a path."""
    head, _, _ = path.rstrip("/").rpartition("/")
    return head or ("/" if path.startswith("/") else ".")


def read_file(files: Files, path: str) -> bytes:
    """Return the content of a file."""
    descriptor = files.open(path, Opening.READ)
    try:
        return files.pread(descriptor, 0, files.size(descriptor))
    finally:
        files.close(descriptor)


def copy_file(files: Files, old: str, new: str) -> None:
    """Copy a file to a new name; make the content durable, but not yet the name."""
    source = files.open(old, Opening.READ)
    try:
        target = files.open(new, Opening.CREATE)
        try:
            offset = 0
            while piece := files.pread(source, offset, COPY_BYTES):
                files.pwrite(target, offset, piece)
                offset += len(piece)
            files.fdatasync(target)
        finally:
            files.close(target)
    finally:
        files.close(source)


def write_file(files: Files, path: str, data: bytes, offset: int = 0) -> None:
    """Write a durable file atomically; a positive offset leaves a hole before the data.

    The function first writes a temporary file in the same directory, replacing any leftover of a
    power cut. etcd recognises its name as temporary, in the log's and the snapshots' directory.
    """
    directory = parent(path)
    temporary = "/".join((directory, f"tmp.{path[len(directory) + 1 :]}.tmp"))
    if files.exists(temporary):
        files.unlink(temporary)
    descriptor = files.open(temporary, Opening.CREATE)
    try:
        files.pwrite(descriptor, offset, data)
        files.fdatasync(descriptor)
    except OSError:
        files.unlink(temporary)
        raise
    finally:
        files.close(descriptor)
    files.rename(temporary, path)
    files.sync_directory(directory)
