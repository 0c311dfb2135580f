"""Wakes a proxy's loop, which sleeps on descriptors, for signals and other threads.

The first SIGINT or SIGTERM asks for a graceful shutdown, the second one for an immediate end.
"""

import os
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

from kvorum.storage.platform.readiness import make_pipe

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Waking:
    """A pipe that signals and `wake` make readable; it handles signals while entered."""

    def __init__(self) -> None:
        self.descriptor, self._writing = make_pipe()
        self.signal = 0
        """The first signal that came, 0 if none did."""
        self.is_urgent = False
        """Whether a second signal came."""

    def __enter__(self) -> Self:
        self._kept = [(number, signal.signal(number, self._take)) for number in SIGNALS]
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Restore the signal handlers; keep the pipe, because a thread may still call `wake`."""
        signal.set_wakeup_fd(self._before)
        for number, handler in self._kept:
            signal.signal(number, handler)

    @property
    def signal_name(self) -> str:
        """The name of the first signal."""
        return (signal.strsignal(self.signal) or str(self.signal)).lower()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            self.is_urgent = True
        else:
            self.signal = number

    def wake(self) -> None:
        """Make the pipe readable; call this in any thread."""
        # A full pipe is readable already.
        with suppress(OSError):
            os.write(self._writing, b"\0")

    def clear(self) -> None:
        """Empty the pipe."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 65_536)
