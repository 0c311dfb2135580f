"""How long the syncs in jobs take: told by the thread that runs them, one job after the other."""

import threading
import time
from typing import Any

from kvorum.files import Files


class TimedFiles:
    """Files that know how long the syncs of each thread took; all else is done by others."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._syncs = threading.local()

    def __getattr__(self, name: str) -> Any:
        """Return what the files do."""
        return getattr(self._files, name)

    def fdatasync(self, descriptor: int) -> None:
        """Return when the content and the length of a file are durable."""
        began = time.monotonic()
        self._files.fdatasync(descriptor)
        self._syncs.seconds = self.sync_seconds() + time.monotonic() - began

    def sync_seconds(self) -> float:
        """Return how long all syncs of this thread took so far."""
        seconds: float = getattr(self._syncs, "seconds", 0.0)
        return seconds
