"""The machine's own files. No other module of the core imports `os`.

Locks are on open file descriptions, as in etcd: they also exclude other descriptors of the same
process, and an etcd that starts on the same directory.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvorum.storage.files.interface import Opening
from kvorum.storage.platform import files as platform

_FLAGS = {
    Opening.READ: os.O_RDONLY,
    Opening.WRITE: os.O_RDWR,
    Opening.CREATE: os.O_RDWR | os.O_CREAT | os.O_EXCL,
}
# Seconds between two calls of `start_sync` in `syncing`.
_SYNCING_SECONDS = 0.02


class RealFiles:
    """The file system of this machine."""

    __slots__ = ("_paths",)

    def __init__(self) -> None:
        # Only for errors: the system names the path of a failed open, but not of other calls.
        self._paths: dict[int, str] = {}

    @contextmanager
    def _named(self, descriptor: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._paths.get(descriptor, f"descriptor {descriptor}")
            raise OSError(error.errno, error.strerror, path) from error

    def open(self, path: str, opening: Opening) -> int:
        """Return a descriptor for a file."""
        descriptor = os.open(path, _FLAGS[opening] | os.O_CLOEXEC, 0o600)
        self._paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor and release its lock."""
        self._paths.pop(descriptor, None)
        os.close(descriptor)

    def close_all(self) -> None:
        """Close all files that are still open; nothing may use them any more."""
        for descriptor in list(self._paths):
            self.close(descriptor)

    def lock(self, descriptor: int) -> bool:
        """Lock the whole file for writers until the descriptor is closed."""
        with self._named(descriptor):
            return platform.lock_file(descriptor)

    def size(self, descriptor: int) -> int:
        """Return the length of a file."""
        with self._named(descriptor):
            return os.fstat(descriptor).st_size

    def pread(self, descriptor: int, offset: int, length: int) -> bytes:
        """Read `length` bytes, or fewer at the end of the file."""
        with self._named(descriptor):
            data = os.pread(descriptor, length, offset)
            while data and len(data) < length:
                more = os.pread(descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def pwrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write all of the data."""
        with self._named(descriptor):
            written = os.pwrite(descriptor, data, offset)
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], offset + written)

    def allocate(self, descriptor: int, length: int) -> None:
        """Reserve space up to a length."""
        with self._named(descriptor):
            platform.reserve_space(descriptor, 0, length)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file off at a length."""
        with self._named(descriptor):
            os.ftruncate(descriptor, length)

    def fdatasync(self, descriptor: int) -> None:
        """Make the content and the length of a file durable."""
        with self._named(descriptor):
            platform.sync_data(descriptor)

    def start_sync(self, descriptor: int) -> None:
        """Start writing back what was written so far, so that a later sync waits for less."""
        platform.start_writeback(descriptor)

    @contextmanager
    def syncing(self, descriptor: int) -> Iterator[None]:
        """Repeat `start_sync` while the context lasts, also for data that other code writes."""
        is_over = threading.Event()

        def sync() -> None:
            while not is_over.wait(_SYNCING_SECONDS):
                self.start_sync(descriptor)

        thread = threading.Thread(target=sync, name="syncing")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory in ascending order."""
        return sorted(os.listdir(directory))  # noqa: PTH208 (quicker)

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name."""
        try:
            os.stat(path)  # noqa: PTH116 (quicker)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter."""
        Path(path).mkdir(mode=0o700)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        Path(path).rmdir()

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within its directory."""
        Path(old).rename(new)

    def link(self, old: str, new: str) -> None:
        """Give a file another name."""
        os.link(old, new)

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""
        Path(path).unlink()

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            platform.sync_all(descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)
