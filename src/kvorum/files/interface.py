"""What the core asks of a file system, in the fewest calls that suffice for durability.

Paths are strings with `/`, descriptors are small numbers as the log writer takes them. Every
failure is an OSError that names the path. Nothing is durable before it was synced: the content and
size of a file by `fdatasync`, a name that was made, changed or removed by `sync_directory` of the
directory it is in. After a failed sync the content is unknown, and another sync may succeed without
writing it: a caller that gets this error stops writing for good.
"""

from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol

COPY_BYTES = 1 << 20


class Opening(Enum):
    """How a file is opened."""

    READ = "read"
    WRITE = "write"
    """An existing file, to read and write."""
    CREATE = "create"
    """A new, empty file, to read and write; fails if the name is taken."""


class Files(Protocol):
    """A file system. All calls may block; `lock` never does."""

    def open(self, path: str, opening: Opening) -> int:
        """Return a descriptor for a file; a new file is readable by its owner alone."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor and release its lock."""

    def lock(self, descriptor: int) -> bool:
        """Lock the whole file for writers until the descriptor is closed.

        False: another descriptor, of this process or another, holds the lock.
        """

    def size(self, descriptor: int) -> int:
        """Return the length of a file."""

    def pread(self, descriptor: int, offset: int, length: int) -> bytes:
        """Read that many bytes; fewer only where the file ends."""

    def pwrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write all of the data; a file that is too short grows."""

    def allocate(self, descriptor: int, length: int) -> None:
        """Reserve space up to a length; a shorter file is extended to it with zeros."""

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file off at a length."""

    def fdatasync(self, descriptor: int) -> None:
        """Return when the content and the length of a file are durable."""

    def start_sync(self, descriptor: int) -> None:
        """Start writing to the disk what was written so far: a later sync has less to wait for."""

    def syncing(self, descriptor: int) -> AbstractContextManager[None]:
        """As `start_sync` again and again for as long as it lasts, whoever writes meanwhile."""

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory in ascending order, without `.` and `..`."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of that name."""

    def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within its directory, atomically.

        A file that has the name is replaced.
        """

    def link(self, old: str, new: str) -> None:
        """Give a file another name, perhaps in another directory; fails if the name is taken."""

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are durable."""


def parent(path: str) -> str:
    """Return the directory a path is in."""
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
    """Copy a file to a new name; its content is durable afterwards, and the name is not yet."""
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
    """Make a file durable under its name, whole or not at all; before the offset it has a hole.

    The data is written under another name in the same directory, which etcd takes for a temporary
    file in either of its directories; what a power cut left there is replaced.
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
