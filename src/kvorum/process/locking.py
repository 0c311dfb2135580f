"""Lock the pages that LMDB maps, so that the system never pages a database out.

The map is far larger than the file. `FileLock` locks only the part that the file covers, which
counts against RLIMIT_MEMLOCK, and more as the file grows. Closing the database ends the lock.
"""

import ctypes
import os
import resource
from pathlib import Path

from kvorum.storage.backend import BackendError
from kvorum.storage.platform.processes import read_proc

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FileLock:
    """The locked part of one mapped file, from offset 0."""

    __slots__ = ("_library", "_path", "_start", "locked_bytes")

    def __init__(self, path: str) -> None:
        """Lock the whole file; raise BackendError, with advice, if the system refuses."""
        self._path = path
        self._library = ctypes.CDLL(None, use_errno=True)
        self._start = _mapped_at(path)
        self.locked_bytes = 0
        self.extend()

    def extend(self) -> None:
        """Lock what was added to the file since; raise BackendError if the system refuses."""
        size = Path(self._path).stat().st_size // _PAGE_BYTES * _PAGE_BYTES
        if size > self.locked_bytes:
            self._call("mlock", self.locked_bytes, size - self.locked_bytes)
            self.locked_bytes = size

    def release(self) -> None:
        """Unlock the file, so that the system may page it out again."""
        self._call("munlock", 0, self.locked_bytes)
        self.locked_bytes = 0

    def _call(self, name: str, offset: int, size: int) -> None:
        start = ctypes.c_void_p(self._start + offset)
        if getattr(self._library, name)(start, ctypes.c_size_t(size)):
            reason = os.strerror(ctypes.get_errno()).lower()
            raise BackendError(
                f"{self._path}: {name} of {offset + size} bytes failed: {reason}. --memory-mlock "
                f"locks the whole database file; this process may lock {_limit()}. What to do: "
                "raise RLIMIT_MEMLOCK above the size that the database can have (ulimit -l, "
                "LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or leave the flag out"
            )


def _limit() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "any size" if soft == resource.RLIM_INFINITY else f"{soft} bytes"


def _mapped_at(path: str) -> int:
    """Return the address at which this process has mapped offset 0 of a file."""
    file = Path(path).resolve()
    inode = str(file.stat().st_ino)
    for line in (read_proc("self/maps") or "").splitlines():
        addresses, _, offset, _, found, *name = line.split(maxsplit=5)
        if found == inode and not int(offset, 16) and name == [str(file)]:
            return int(addresses.partition("-")[0], 16)
    raise BackendError(
        f"{path}: its mapping is not in /proc/self/maps, so --memory-mlock cannot lock it. What to "
        "do: mount /proc, or leave the flag out on systems other than Linux"
    )
