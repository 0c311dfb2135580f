"""What the system tells of processes, and what it does for this one."""

import ctypes
import os
import resource
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
"""Where Linux shows its processes; other systems have no such directory."""
_CLOCK_BOOTTIME = 7
"""CLOCK_BOOTTIME."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD."""
_DESCRIPTORS_MAX = 10_240
"""OPEN_MAX of macOS, which accepts no higher limit, though its hard limit may be infinite."""
_PARENT_CHECK_SECONDS = 0.5


def read_proc(name: str) -> str | None:
    """Return the text of a file below /proc, or None without /proc."""
    try:
        return (PROC / name).read_text(errors="replace")
    except OSError:
        return None


def boot_time() -> float:
    """Return when Linux started, in seconds since the epoch."""
    return time.time() - time.clock_gettime(_CLOCK_BOOTTIME)


def count_descriptors() -> int | None:
    """Return how many descriptors this process has open, or None if the system does not tell."""
    for directory in (PROC / "self/fd", Path("/dev/fd")):
        with suppress(OSError):
            return sum(1 for _ in directory.iterdir())
    return None


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors as far as the system permits, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        soft = max(soft, min(hard, _DESCRIPTORS_MAX))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return soft
    return hard


def die_with_parent() -> None:
    """Have this process, a child that was just forked, killed when its parent ends."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def return_large_blocks(bytes_min: int) -> None:
    """Have the C library return blocks of this size to the system as soon as they are free.

    By default, glibc stops doing so after the first free of a block of that size. Other libraries
    have no such option.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, bytes_min)
