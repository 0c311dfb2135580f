"""Take Linux's own calls away from an interpreter, before it runs anything else.

A test puts this directory on PYTHONPATH. What macOS has comes in the place of epoll: a kqueue,
which this file builds on epoll, with the filters and flags that Kvorum and asyncio use.
`F_FULLFSYNC` is a sync here, and nothing is below /proc.
"""

import ctypes
import errno
import fcntl
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

REMOVED = {
    fcntl: "F_ADD_SEALS F_OFD_GETLK F_OFD_SETLK F_SEAL_SHRINK F_SETPIPE_SZ",
    os: "copy_file_range eventfd eventfd_read eventfd_write fdatasync memfd_create pidfd_open pipe2"
    " posix_fadvise posix_fallocate sendfile splice timerfd_create",
    select: " ".join(name for name in dir(select) if name.lower().startswith("epoll")),
    time: "CLOCK_BOOTTIME",
}
REMOVED_FROM_LIBC = ("mallopt", "prctl", "sync_file_range", "timerfd_create")
READ, WRITE, TIMER = -1, -2, -7
ADD, DELETE, ONESHOT, CLEAR, EOF = 0x1, 0x2, 0x10, 0x20, 0x8000
FULLFSYNC = 51
IN, OUT, ERR, HUP, RDHUP, ET = 0x1, 0x4, 0x8, 0x10, 0x2000, 1 << 31

_libc = ctypes.CDLL(None, use_errno=True)
_epoll = select.epoll
_fcntl, _fsync = fcntl.fcntl, os.fsync


class Descriptor(Protocol):
    """Anything with a descriptor."""

    def fileno(self) -> int: ...


class Kevent:
    """A change to a kqueue, or an event of it."""

    def __init__(
        self,
        ident: int | Descriptor,
        filter: int = READ,  # noqa: A002 (the name in Python's library)
        flags: int = ADD,
        fflags: int = 0,
        data: int = 0,
    ) -> None:
        self.ident = ident if isinstance(ident, int) else ident.fileno()
        self.filter = filter
        self.flags = flags
        self.fflags = fflags
        self.data = data


class Kqueue:
    """Filters for descriptors and timers; like epoll, it forgets a descriptor that is closed."""

    def __init__(self) -> None:
        self._epoll = _epoll()
        self._flags: dict[int, dict[int, int]] = {}
        """The flags of each filter, by descriptor."""
        self._timers: dict[int, int] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()
        while self._timers:
            os.close(self._timers.popitem()[1])

    def control(
        self, changes: Sequence[Kevent] | None, count: int, timeout: float | None = None
    ) -> list[Kevent]:
        for change in changes or ():
            if change.filter == TIMER:
                self._change_timer(change)
            else:
                self._change(change)
        return list(self._events(count, timeout))[:count] if count else []

    def _change_timer(self, change: Kevent) -> None:
        if change.flags & DELETE:
            os.close(self._timers.pop(change.ident))
            return
        assert change.flags & ONESHOT and change.ident not in self._timers
        timer = _libc.timerfd_create(1, os.O_NONBLOCK | os.O_CLOEXEC)
        seconds, milliseconds = divmod(change.data, 1000)
        spec = (ctypes.c_long * 4)(0, 0, seconds, milliseconds * 1_000_000)
        assert _libc.timerfd_settime(timer, 0, spec, None) == 0
        self._timers[change.ident] = timer
        self._epoll.register(timer, IN)

    def _change(self, change: Kevent) -> None:
        known = self._flags.setdefault(change.ident, {})
        if change.flags & DELETE:
            if known.pop(change.filter, None) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        else:
            known[change.filter] = change.flags
        try:
            if known:
                self._epoll.modify(change.ident, _mask(known))
            else:
                self._epoll.unregister(change.ident)
        except FileNotFoundError:
            # The descriptor is new: what is known here is of a file that was closed.
            del self._flags[change.ident]
            if change.flags & DELETE:
                raise
            self._flags[change.ident] = known = {change.filter: change.flags}
            self._epoll.register(change.ident, _mask(known))

    def _events(self, count: int, timeout: float | None) -> Iterator[Kevent]:
        for descriptor, mask in self._epoll.poll(timeout, count):
            if descriptor in self._timers.values():
                yield Kevent(1, TIMER)
                continue
            known = self._flags.get(descriptor, {})
            error = errno.ECONNRESET if mask & ERR else 0
            if READ in known and mask & (IN | RDHUP | HUP | ERR):
                yield Kevent(descriptor, READ, EOF if mask & (RDHUP | HUP | ERR) else 0, error)
            if WRITE in known and mask & (OUT | HUP | ERR):
                yield Kevent(descriptor, WRITE, EOF if mask & (HUP | ERR) else 0, error)


def _mask(known: dict[int, int]) -> int:
    mask = (IN | RDHUP if READ in known else 0) | (OUT if WRITE in known else 0)
    return mask | (ET if any(flags & CLEAR for flags in known.values()) else 0)


class Library(ctypes.CDLL):
    """The C library, without what only Linux's has."""

    def __getattr__(self, name: str) -> Any:
        if name in REMOVED_FROM_LIBC:
            raise AttributeError(name)
        return super().__getattr__(name)


def control_file(descriptor: Any, command: int, argument: Any = 0) -> Any:
    """Do what `fcntl.fcntl` does, and sync for F_FULLFSYNC."""
    if command == FULLFSYNC:
        _fsync(descriptor)
        return 0
    return _fcntl(descriptor, command, argument)


def without_proc(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of paths for which nothing is below /proc."""

    def call(path: Path, *args: Any, **named: Any) -> Any:
        return method(Path(f"/no{path}") if str(path).startswith("/proc") else path, *args, **named)

    return call


for module, names in REMOVED.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
ADDED: dict[ModuleType, dict[str, object]] = {
    select: {
        "kevent": Kevent,
        "kqueue": Kqueue,
        "KQ_EV_ADD": ADD,
        "KQ_EV_CLEAR": CLEAR,
        "KQ_EV_DELETE": DELETE,
        "KQ_EV_EOF": EOF,
        "KQ_EV_ONESHOT": ONESHOT,
        "KQ_FILTER_READ": READ,
        "KQ_FILTER_TIMER": TIMER,
        "KQ_FILTER_WRITE": WRITE,
    },
    fcntl: {"F_FULLFSYNC": FULLFSYNC, "fcntl": control_file},
    ctypes: {"CDLL": Library},
}
for module, added in ADDED.items():
    for name, value in added.items():
        setattr(module, name, value)
for name in ("exists", "glob", "iterdir", "read_text"):
    setattr(Path, name, without_proc(getattr(Path, name)))

# Now, because it imports `selectors`, which looks what there is.
import socket  # noqa: E402

for name in ("TCP_KEEPIDLE", "TCP_USER_TIMEOUT"):
    delattr(socket, name)
socket.TCP_KEEPALIVE = 4  # type: ignore[attr-defined]
