"""Synchronous writes of the log: without a thread, they cannot overlap with other work."""

import errno
import os
import time

from kvorum.storage.platform.files import sync_data


class FileLogWriter:
    """Writes in order; after a failure every further write reports ECANCELED."""

    __slots__ = ("_count", "_failed", "_finished")

    def __init__(self) -> None:
        self._count = 0
        self._failed = False
        self._finished: list[tuple[int, int, float, float]] = []

    def write(self, descriptor: int, offset: int, data: bytes, sync: bool) -> int:
        """Write all data, sync on request, and queue the result for `take`."""
        self._count += 1
        outcome = errno.ECANCELED
        began = written = time.monotonic()
        if not self._failed:
            try:
                _write_all(descriptor, offset, data)
                written = time.monotonic()
                if sync:
                    sync_data(descriptor)
                outcome = 0
            except OSError as error:
                outcome = error.errno or errno.EIO
                self._failed = True
        seconds = written - began, time.monotonic() - written
        self._finished.append((self._count, outcome, *seconds))
        return self._count

    def __bool__(self) -> bool:
        return bool(self._finished)

    def take(self) -> list[tuple[int, int, float, float]]:
        """Return the writes finished since the previous call."""
        finished, self._finished = self._finished, []
        return finished


def _write_all(descriptor: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset += written
        rest = rest[written:]
