"""Syncs, reserved space and locks of files.

A sync promises the same everywhere: what was written before it survives a power cut. On macOS
`fsync` leaves data in the drive's cache, so `F_FULLFSYNC` replaces every sync there.
"""

import ctypes
import errno
import fcntl
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

# Names that not every system has; the type checker knows those of one system only.
_fcntl: Any = fcntl
_os: Any = os

HAS_DRIVE_CACHE: Final = hasattr(fcntl, "F_FULLFSYNC")
"""Whether `fsync`, which other libraries call, leaves data in the drive's cache."""
_NOT_SUPPORTED = (errno.ENOTSUP, errno.ENOTTY)
_ZEROS = bytes(1 << 20)
_SYNC_FILE_RANGE_WRITE = 2
# Linux's struct flock: type, whence, start, length (0 for the whole file), process; padded as in C.
_FLOCK = struct.Struct("hhqqi4x")
_HAS_DESCRIPTION_LOCKS = sys.platform == "linux"
# F_OFD_GETLK and F_OFD_SETLK, which the Pythons that some tools bring do not name.
_GET_LOCK, _SET_LOCK = 36, 37


def _empty_drive_cache(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _fcntl.F_FULLFSYNC)
    except OSError as error:
        # Not every file system supports it. Any other error is a failed sync.
        if error.errno not in _NOT_SUPPORTED:
            raise
        os.fsync(descriptor)


sync_all: Callable[[int], None] = _empty_drive_cache if HAS_DRIVE_CACHE else os.fsync
"""Makes a file or a directory durable."""
sync_data: Callable[[int], None] = (
    _empty_drive_cache if HAS_DRIVE_CACHE else getattr(os, "fdatasync", os.fsync)
)
"""Makes the content and the length of a file durable."""


def _write_zeros(descriptor: int, offset: int, length: int) -> None:
    end = offset + length
    offset = max(offset, os.fstat(descriptor).st_size)
    while offset < end:
        offset += os.pwrite(descriptor, _ZEROS[: end - offset], offset)


reserve_space: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", _write_zeros)
"""Reserves the space of a file from an offset on, for a number of bytes; fills it with zeros."""


_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    # Descriptor, offset, length (0 for everything that follows), flags.
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def start_writeback(descriptor: int) -> None:
    """Have the system start writing a file back, if it can; a later sync reports a failure."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)


def lock_file(descriptor: int) -> bool:
    """Lock a whole file for one writer until the descriptor is closed; return whether it worked.

    The lock belongs to the open file description, so it excludes other descriptors of this process,
    too. It is the kind of lock that etcd takes on the same system.
    """
    try:
        if _HAS_DESCRIPTION_LOCKS:
            whole = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(descriptor, _SET_LOCK, whole)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(descriptor: int) -> bool:
    """Return whether a process has locked a file with `lock_file`."""
    if _HAS_DESCRIPTION_LOCKS:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, _GET_LOCK, asked))
        return bool(kind != fcntl.F_UNLCK)
    return is_flocked(descriptor)


def is_flocked(descriptor: int) -> bool:
    """Return whether a process has an exclusive `flock` on a file, by trying for a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def make_memory_file(name: str, data: bytes) -> int:
    """Return a descriptor of a file without a name that holds the data, which nobody can change.

    Without memory files it is a temporary file, which is not sealed.
    """
    if hasattr(os, "memfd_create"):
        descriptor: int = _os.memfd_create(name, _os.MFD_CLOEXEC | _os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile(buffering=0) as file:
            descriptor = os.dup(file.fileno())
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        if hasattr(os, "memfd_create"):
            seals = _fcntl.F_SEAL_SHRINK | _fcntl.F_SEAL_GROW | _fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, _fcntl.F_ADD_SEALS, seals | _fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
