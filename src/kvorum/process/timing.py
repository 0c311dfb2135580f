"""Measure how long the syncs in jobs take, per thread; a thread runs one job at a time."""

import threading
import time
from typing import Any

from kvorum.storage.files import Files


class TimedFiles:
    """Wraps files and measures the syncs of each thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._syncs = threading.local()

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the wrapped files."""
        return getattr(self._files, name)

    def fdatasync(self, descriptor: int) -> None:
        """Make the content and the length of a file durable, and measure the time."""
        began = time.monotonic()
        self._files.fdatasync(descriptor)
        self._syncs.seconds = self.sync_seconds() + time.monotonic() - began

    def sync_seconds(self) -> float:
        """Return the total time of this thread's syncs so far."""
        seconds: float = getattr(self._syncs, "seconds", 0.0)
        return seconds
