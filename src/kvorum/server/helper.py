"""The helper: a process of its own for Python work that would hold up the loop.

It is started by exec when the first job needs it, opens the database as a reader, and runs one
job after the other. Jobs and results travel through its standard input and output as pickles,
each behind its length; standard error is the server's. It ends when its input does, so it never
outlives the server.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, BinaryIO

from kvorum.backend.real import LmdbEnvironments
from kvorum.edge import native_rows
from kvorum.files.real import RealFiles
from kvorum.member.jobs import JobLostError

if TYPE_CHECKING:
    # The helper itself has no loop, and starts a third faster without it.
    import asyncio

LENGTH = Struct("<Q")
READ_BYTES = 1 << 20

Outcome = tuple[object, Exception | None]
"""A result, or the error in its place."""


class Helper:
    """The server's end: sends work, reports outcomes in order."""

    __slots__ = ("_buffer", "_loop", "_process", "_report", "_waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, report: Callable[[Any, Outcome], None]
    ) -> None:
        self._loop = loop
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        # Who gets the next outcome, first come first served.
        self._waiting: deque[object] = deque()

    def run(self, token: object, work: object) -> None:
        """Run work in the helper; its outcome is reported with the token."""
        data = pickle.dumps(work)
        process = self._process or self._start()
        self._waiting.append(token)
        assert process.stdin is not None
        try:
            # Work is small, a few names and numbers; the pipe takes it at once.
            process.stdin.write(LENGTH.pack(len(data)) + data)
            process.stdin.flush()
        except OSError:
            self._died()

    def prepare(self) -> None:
        """Start the process: work will come, and need not wait for that."""
        if self._process is None:
            self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kvorum.server.helper"]
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._buffer.clear()
        self._loop.add_reader(self._process.stdout.fileno(), self._read)
        return self._process

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        data = self._process.stdout.read1(READ_BYTES)  # type: ignore[attr-defined]
        if not data:
            self._died()
            return
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            outcome = pickle.loads(self._buffer[LENGTH.size : end])  # noqa: S301 (our child)
            del self._buffer[:end]
            self._report(self._waiting.popleft(), outcome)

    def _died(self) -> None:
        code = self._end()
        waiting, self._waiting = self._waiting, deque()
        for token in waiting:
            error = JobLostError(f"the helper process ended with {code} before it answered")
            self._report(token, (None, error))

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None and process.stdout is not None
        self._loop.remove_reader(process.stdout.fileno())
        with suppress(OSError):  # it may have died with work in the pipe
            process.stdin.close()
        process.stdout.close()
        process.kill()
        return process.wait()

    def stop(self) -> None:
        """End the process; what it has not answered is lost."""
        self._end()


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Run jobs until there are no more: the helper's end."""
    files, environments = RealFiles(), LmdbEnvironments(native_rows())
    while head := source.read(LENGTH.size):
        (length,) = LENGTH.unpack(head)
        work = pickle.loads(source.read(length))  # noqa: S301 (our parent)
        try:
            data = pickle.dumps((work.run(files, environments), None))
        except Exception as error:
            data = pickle.dumps((None, _portable(error)))
        target.write(LENGTH.pack(len(data)) + data)
        target.flush()


def _portable(error: Exception) -> Exception:
    """Return an error that the server can make anew; not every one can be, from its pickle."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 (our own)
            return error
    except Exception:  # noqa: S110 (in words, then)
        pass
    return JobLostError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    # Ctrl-C reaches the whole group; the server decides when its helper ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A server that was killed takes no answer: the signal ends this process without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer)
