"""Waiting for many descriptors by one descriptor, which another loop can watch in turn.

`Poller` is `select.epoll` where the system has it; elsewhere kqueue does its work behind the same
methods. `Alarm` is a descriptor that becomes readable at a time. Without epoll and kqueue there is
no such descriptor, and no server.
"""

import ctypes
import fcntl
import math
import os
import select
import time
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

# Epoll's values. Kqueue's events are translated into them.
READABLE: Final = 0x001
WRITABLE: Final = 0x004
FAILED: Final = 0x008
HUNG_UP: Final = 0x010
READ_ENDED: Final = 0x2000
"""The other side has ended its stream; it may still read."""
EDGE_TRIGGERED: Final = 1 << 31
NEVER: Final = float("inf")

EVENTS_MAX = 1024
_CLOCK_MONOTONIC = 1
_TIMER = 1
"""The number of the only timer in the kqueue of an alarm."""

# Names that not every system has; the type checker knows those of one system only.
_select: Any = select
_os: Any = os


class Descriptor(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


class _Kqueue:
    """A poller on kqueue; see `select.epoll`.

    With no event to wait for, kqueue reports nothing, where epoll reports a broken connection.
    """

    def __init__(self) -> None:
        self._kqueue = _select.kqueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor, which is readable while an event waits for `poll`."""
        number: int = self._kqueue.fileno()
        return number

    def register(self, watched: int | Descriptor, mask: int) -> None:
        """Wait for the events of a mask; kqueue forgets a descriptor when it is closed."""
        self.modify(watched, mask)

    def modify(self, watched: int | Descriptor, mask: int) -> None:
        """Wait for the events of another mask."""
        descriptor = watched if isinstance(watched, int) else watched.fileno()
        added = _select.KQ_EV_ADD | (_select.KQ_EV_CLEAR if mask & EDGE_TRIGGERED else 0)
        for event, kind in (
            (READABLE, _select.KQ_FILTER_READ),
            (WRITABLE, _select.KQ_FILTER_WRITE),
        ):
            if mask & event:
                self._kqueue.control([_select.kevent(descriptor, kind, added)], 0)
            else:
                with suppress(FileNotFoundError):
                    change = _select.kevent(descriptor, kind, _select.KQ_EV_DELETE)
                    self._kqueue.control([change], 0)

    def unregister(self, watched: int | Descriptor) -> None:
        """Wait for no events of a descriptor."""
        self.modify(watched, 0)

    def poll(
        self, timeout: float | None = None, maxevents: int = EVENTS_MAX
    ) -> list[tuple[int, int]]:
        """Return descriptors with their events; wait at most `timeout` seconds."""
        found: dict[int, int] = {}
        for event in self._kqueue.control(None, maxevents, timeout):
            is_read = event.filter == _select.KQ_FILTER_READ
            mask = READABLE if is_read else WRITABLE
            if event.flags & _select.KQ_EV_EOF:
                # `fflags` is the error of the socket.
                mask |= (READ_ENDED if is_read else 0) | (FAILED if event.fflags else 0)
            found[event.ident] = found.get(event.ident, 0) | mask
        return list(found.items())

    def close(self) -> None:
        """Close the kqueue."""
        self._kqueue.close()


class _KqueueAlarm:
    """A descriptor that is readable from a time on: a kqueue with one timer, never emptied."""

    def __init__(self) -> None:
        self._kqueue = _select.kqueue()
        self._is_set = False

    def fileno(self) -> int:
        """Return the descriptor."""
        number: int = self._kqueue.fileno()
        return number

    def set(self, moment: float) -> None:
        """Become readable at a moment of the monotonic clock, not before; `NEVER` ends the wait."""
        if self._is_set:
            self._change(_select.KQ_EV_DELETE)
        self._is_set = moment != NEVER
        if self._is_set:
            milliseconds = math.ceil((moment - time.monotonic()) * 1000)
            self._change(_select.KQ_EV_ADD | _select.KQ_EV_ONESHOT, max(1, milliseconds))

    def close(self) -> None:
        """Close the descriptor."""
        self._kqueue.close()

    def _change(self, flags: int, data: int = 0) -> None:
        change = _select.kevent(_TIMER, _select.KQ_FILTER_TIMER, flags, 0, data)
        self._kqueue.control([change], 0)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


# The `os` module has timerfd functions only from Python 3.13 on.
_libc = ctypes.CDLL(None, use_errno=True)


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


class _TimerDescriptor:
    """A descriptor that is readable from a time on: Linux's timer descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor: int = _libc.timerfd_create(_CLOCK_MONOTONIC, flags)
        if self._descriptor < 0:
            raise _error("timerfd_create")

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def set(self, moment: float) -> None:
        """Become readable at a moment of the monotonic clock, not before; `NEVER` ends the wait."""
        spec = _TimerSpec()
        if moment != NEVER:
            # A zero value would disarm the timer; one nanosecond after boot is always past.
            nanoseconds = max(1, int(moment * 1e9) + 1)
            spec.value.seconds, spec.value.nanoseconds = divmod(nanoseconds, 10**9)
        absolute = 1
        if _libc.timerfd_settime(self._descriptor, absolute, ctypes.byref(spec), None):
            raise _error("timerfd_settime")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


if TYPE_CHECKING:
    Poller = _Kqueue
    Alarm = _TimerDescriptor
elif hasattr(select, "epoll"):
    Poller, Alarm = select.epoll, _TimerDescriptor
elif hasattr(select, "kqueue"):
    Poller, Alarm = _Kqueue, _KqueueAlarm
else:
    raise ImportError("this system has neither epoll nor kqueue; docs/platforms.md names others")


def make_pipe(capacity_bytes: int = 0) -> tuple[int, int]:
    """Return the reading and the writing end of a pipe; neither blocks, and no program inherits it.

    It gets another capacity than the system's own, if the system permits that.
    """
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    if capacity_bytes and hasattr(fcntl, "F_SETPIPE_SZ"):
        # The system refuses this if the user's pipes have too much memory already.
        with suppress(OSError):
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, capacity_bytes)
    return ends


splice: Any = None
"""Moves bytes between a socket and a pipe within the kernel, and returns how many; None if the
system cannot."""
if hasattr(os, "splice"):
    splice = partial(_os.splice, flags=_os.SPLICE_F_MOVE | _os.SPLICE_F_NONBLOCK)
