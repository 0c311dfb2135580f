"""Helper processes, for work that would hold up the loop.

The first job starts a helper by exec. The helper opens the database as a reader, and runs one job
after the other. Jobs and results travel through its standard input and output as pickles, each
after its length; it shares the server's standard error. The helper ends when its input does, so it
never outlives the server.

The loop never waits for a pipe: it sends one job at a time, as fast as the pipe takes it.

The helper imports its modules from the same place as the server, and never from the working
directory, where any user may have left a module.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, BinaryIO

from kvorum.member.jobs import JobLostError
from kvorum.network.edge import native_rows
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles

if TYPE_CHECKING:
    # The helper has no event loop, and starts a third faster without this import.
    import asyncio

    from kvorum.server.jobs import Outcome

LENGTH = Struct("<Q")
READ_BYTES = 1 << 20
PACKAGES = Path(__file__).parents[2]
START = "import sys; sys.path.append(sys.argv[1]); from kvorum.process.helper import main; main()"
"""Appends the directory of this package to the path, so that it is found without installation."""


class Helper:
    """The server's end: sends one piece of work at a time, and reports its outcome."""

    __slots__ = (
        "_buffer",
        "_is_writing",
        "_loop",
        "_niceness",
        "_process",
        "_report",
        "_token",
        "_unsent",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Any, Outcome], None],
        niceness: int = 0,
    ) -> None:
        """Make a helper whose priority is lower than the server's by `niceness`.

        The process lowers its priority with its first job: otherwise its start would take seconds
        on a busy host.
        """
        self._loop = loop
        self._niceness = niceness
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        # The token of the current job, and the bytes of that job not sent yet.
        self._token: object = None
        self._unsent = memoryview(b"")
        self._is_writing = False

    @property
    def is_started(self) -> bool:
        """Whether the process exists; it may still be starting."""
        return self._process is not None

    def run(self, token: object, work: object) -> None:
        """Run work in the helper; report its outcome with the token, after this call returned."""
        assert self._token is None, "the helper is busy"
        self._token = token
        data = pickle.dumps(work)
        self._unsent = memoryview(LENGTH.pack(len(data)) + data)
        try:
            if self._process is None:
                self._start()
        except OSError as error:
            lost = JobLostError(f"the helper process cannot be started: {error}")
            self._loop.call_soon(self._ended, (None, lost))
        else:
            self._write()

    def prepare(self) -> None:
        """Start the process early, so that the first job need not wait for it."""
        if self._process is None:
            with suppress(OSError):  # `run` will report it
                self._start()

    def _start(self) -> None:
        # Without `-P`, modules in the working directory would come first. With `-I`, the helper
        # would not find packages that are installed for one user or named by PYTHONPATH.
        isolation = "-I" if sys.flags.isolated else "-P"
        command = [sys.executable, isolation, "-c", START, str(PACKAGES), str(self._niceness)]
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process
        self._buffer.clear()
        self._loop.add_reader(process.stdout.fileno(), self._read)

    def _write(self) -> None:
        """Send as much as the pipe takes, and the rest once it is writable again."""
        assert self._process is not None and self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(pipe, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            # The process has ended. `_read` reports that at the end of its output, after `run`
            # returned.
            self._unsent = memoryview(b"")
        if bool(self._unsent) != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(pipe, self._write)
            else:
                self._loop.remove_writer(pipe)

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._died()
            return
        self._buffer += data
        if len(self._buffer) < LENGTH.size:
            return
        (length,) = LENGTH.unpack_from(self._buffer)
        end = LENGTH.size + length
        if len(self._buffer) < end:
            return
        outcome = pickle.loads(self._buffer[LENGTH.size : end])  # noqa: S301 (our child)
        del self._buffer[:end]
        self._ended(outcome)

    def _died(self) -> None:
        """Report the current job as lost; the next job starts a new process."""
        code = self._end()
        if self._token is not None:
            text = f"the helper process ended with {code} before it answered"
            self._ended((None, JobLostError(text)))

    def _ended(self, outcome: Outcome) -> None:
        token, self._token = self._token, None
        self._report(token, outcome)

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None and process.stdout is not None
        self._loop.remove_reader(process.stdout.fileno())
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        process.kill()
        return process.wait()

    def stop(self) -> None:
        """Kill the process, without reporting the current job."""
        self._end()


def serve(source: BinaryIO, target: BinaryIO, niceness: int = 0) -> None:
    """Run jobs from `source` until it ends, and write their outcomes: the helper's side."""
    files, environments = RealFiles(), LmdbEnvironments(native_rows())
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        data = source.read(length)
        if len(data) < length:
            return  # the server was killed
        work = pickle.loads(data)  # noqa: S301 (our parent)
        if niceness:
            # Only now: the imports, which the unpickling completed, take longer than most jobs.
            os.nice(niceness)
            niceness = 0
        try:
            data = pickle.dumps((work.run(files, environments), None))
        except Exception as error:
            data = pickle.dumps((None, _portable(error)))
        target.write(LENGTH.pack(len(data)) + data)
        target.flush()


def _portable(error: Exception) -> Exception:
    """Return the error if it survives pickling, or else a JobLostError with its text."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 (our own)
            return error
    except Exception:  # noqa: S110 (return the text instead)
        pass
    return JobLostError(f"{type(error).__name__}: {error}")


def main() -> None:
    """Run the helper process."""
    # Ctrl-C reaches the whole process group, but the server decides when its helper ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If the server was killed, SIGPIPE ends this process without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[2]))
