"""Writes lines in a thread, so that nobody waits for a slow disk or reader.

What waits to be written is bounded: more is dropped, and counted. So are lines that could not be
written, because the disk is full for example.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from kvorum.settings.config import Config
from kvorum.telemetry.logs import STREAMS, opened
from kvorum.telemetry.rotation import RotatingFile
from kvorum.telemetry.rotation_rules import rotation_rules

WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
TELL_SECONDS: Final = 10.0
"""How often dropped lines are told of."""
STOP_SECONDS_MAX: Final = 1.0
"""How long the end of a process waits for what is not written yet."""


class Logger(Protocol):
    """Takes a line about something that needs attention."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Take it."""


def write_to(descriptor: int) -> Callable[[bytes], bool]:
    """Return what writes to a descriptor, and tells whether that succeeded."""

    def write(data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            return False
        return True

    return write


class LineWriter:
    """A thread that writes what it is given, in order."""

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        self._write = write
        self._queue: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        # Each is changed by one side only: what was taken, and what of it is done with.
        self._taken_bytes = self._done_bytes = 0
        self._refused = self._failed = 0
        self._told = 0
        self._tell_at = 0.0
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def put(self, data: bytes, count: int) -> None:
        """Take lines; never waits."""
        if self._taken_bytes - self._done_bytes + len(data) > WAITING_BYTES_MAX:
            self._refused += count
            return
        self._taken_bytes += len(data)
        self._queue.put((data, count))

    def tell(self, logger: Logger, now: float) -> None:
        """Log how many lines were dropped since that was last told, unless it just was."""
        dropped = self._refused + self._failed
        if dropped > self._told and now >= self._tell_at:
            logger.warning(
                "dropped lines of the access log: its file or reader is full or too slow",
                lines=dropped - self._told,
                total=dropped,
            )
            self._told = dropped
            self._tell_at = now + TELL_SECONDS

    def stop(self) -> None:
        """Write what waits, for a moment at most, and end."""
        self._queue.put(None)
        self._thread.join(STOP_SECONDS_MAX)

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            data, count = taken
            if not self._write(data):
                self._failed += count
            self._done_bytes += len(data)


def open_access_log(config: Config) -> LineWriter | None:
    """Open what `--access-log` names; raises ConfigError if it cannot be opened.

    A file is rotated, by the same rules as the log.
    """
    output = config.access_log
    if not output:
        return None
    if output in STREAMS:
        return LineWriter(write_to(STREAMS[output]))
    rules = rotation_rules(config.log_rotation_text)
    return LineWriter(opened(output, lambda path: RotatingFile(path, rules)).write)
