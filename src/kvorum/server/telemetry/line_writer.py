"""A thread that writes log lines, so that a slow disk or reader does not delay the loop.

The queue is bounded in bytes. Lines that do not fit, and lines whose write fails, for example on a
full disk, are dropped and counted.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from kvorum.process.settings.config import Config
from kvorum.server.telemetry.logs import STREAMS, opened
from kvorum.server.telemetry.rotation import RotatingFile
from kvorum.server.telemetry.rotation_rules import rotation_rules

WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
WARN_SECONDS: Final = 10.0
"""Shortest interval between warnings about dropped lines."""
STOP_SECONDS_MAX: Final = 1.0
"""How long the end of the process waits for unwritten lines."""


class Logger(Protocol):
    """Logs warnings."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a warning."""


def write_to(descriptor: int) -> Callable[[bytes], bool]:
    """Return a function that writes to a descriptor and returns whether that succeeded."""

    def write(data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            return False
        return True

    return write


class LineWriter:
    """A thread that writes lines in order."""

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        self._write = write
        self._queue: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        # The caller's thread changes only the first, and the writing thread only the second.
        self._taken_bytes = self._done_bytes = 0
        self._refused = self._failed = 0
        self._warned = 0
        self._warn_at = 0.0
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def put(self, data: bytes, count: int) -> None:
        """Queue `count` lines without blocking; drop them if the queue is full."""
        if self._taken_bytes - self._done_bytes + len(data) > WAITING_BYTES_MAX:
            self._refused += count
            return
        self._taken_bytes += len(data)
        self._queue.put((data, count))

    def warn_of_drops(self, logger: Logger, now: float) -> None:
        """Log how many lines were dropped since the last warning, at most every `WARN_SECONDS`."""
        dropped = self._refused + self._failed
        if dropped > self._warned and now >= self._warn_at:
            logger.warning(
                "dropped lines of the access log: its file or reader is full or too slow",
                lines=dropped - self._warned,
                total=dropped,
            )
            self._warned = dropped
            self._warn_at = now + WARN_SECONDS

    def stop(self) -> None:
        """Write queued lines for at most `STOP_SECONDS_MAX`, then return."""
        self._queue.put(None)
        self._thread.join(STOP_SECONDS_MAX)

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            data, count = taken
            if not self._write(data):
                self._failed += count
            self._done_bytes += len(data)


def open_access_log(config: Config) -> LineWriter | None:
    """Open the output that `--access-log` names; raise ConfigError if that fails.

    A file is rotated by the same rules as the log.
    """
    output = config.access_log
    if not output:
        return None
    if output in STREAMS:
        return LineWriter(write_to(STREAMS[output]))
    rules = rotation_rules(config.log_rotation_text)
    return LineWriter(opened(output, lambda path: RotatingFile(path, rules)).write)
