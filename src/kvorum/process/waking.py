"""What wakes the loop of a proxy that sleeps on descriptors: signals, and other threads.

The first SIGINT or SIGTERM asks for a clean end, the second one for an end at once.
"""

import os
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Waking:
    """A pipe, readable when there is something to see to; signals count while it is entered."""

    def __init__(self) -> None:
        self.descriptor, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.signal = 0
        """The first signal that came; 0: none."""
        self.is_urgent = False
        """Whether a second one came."""

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
        """Leave signals to others; a thread may still be about to wake, so the pipe stays."""
        signal.set_wakeup_fd(self._before)
        for number, handler in self._kept:
            signal.signal(number, handler)

    @property
    def signal_name(self) -> str:
        """The first signal in words."""
        return (signal.strsignal(self.signal) or str(self.signal)).lower()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            self.is_urgent = True
        else:
            self.signal = number

    def wake(self) -> None:
        """Make the pipe readable; may be called in any thread."""
        # A full pipe is readable already.
        with suppress(OSError):
            os.write(self._writing, b"\0")

    def clear(self) -> None:
        """Note that it was seen to."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 65_536)
