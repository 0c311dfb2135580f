"""A tool as a process that is talked to: through pipes, or at a terminal."""

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.children import at_terminal
from tests.waiting import WAIT_SECONDS_MAX, until


def until_it_waits(process: "subprocess.Popen[Any]") -> None:
    """Return once a process sleeps, or has ended: then it notices a signal.

    Python misses one that comes after it looked for signals and before it sleeps, until the next
    one comes. A process that is starved stands there for long.
    """
    stat = Path(f"/proc/{process.pid}/stat")

    def waits() -> bool:
        return process.poll() is not None or stat.read_text().rpartition(")")[2].split()[0] == "S"

    until("the program waits", waits)


class Outcome(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: bytes
    err: bytes


class Program:
    """A process whose output is read all the time."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, has_terminal: bool = False
    ) -> None:
        if has_terminal:
            self._input, ours = pty.openpty()
            # A session of its own, whose terminal this is: its keys are signals there.
            self.process = subprocess.Popen(
                at_terminal(command),
                stdin=ours,
                stdout=ours,
                stderr=subprocess.PIPE,
                env=env,
            )
            os.close(ours)
            source = self._input
        else:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
            )
            assert self.process.stdin is not None and self.process.stdout is not None
            self._input = os.dup(self.process.stdin.fileno())
            self.process.stdin.close()
            source = self.process.stdout.fileno()
        assert self.process.stderr is not None
        self._has_input = True
        self._has_terminal = has_terminal
        self._out, self._err = bytearray(), bytearray()
        self._changed = threading.Condition()
        self._open = 2
        self._seen = 0
        self._readers = [
            threading.Thread(target=self._read, args=each)
            for each in ((source, self._out), (self.process.stderr.fileno(), self._err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, source: int, into: bytearray) -> None:
        while True:
            try:
                data = os.read(source, 4096)
            except OSError:
                # A terminal that nobody has open any more.
                data = b""
            with self._changed:
                into += data
                self._open -= not data
                self._changed.notify_all()
            if not data:
                return

    def expect(self, pattern: bytes, *, in_err: bool = False) -> "re.Match[bytes]":
        """Wait until it has written this, after what was waited for before."""
        text, start = (self._err, 0) if in_err else (self._out, self._seen)
        with self._changed:
            while (found := re.search(pattern, bytes(text[start:]))) is None:
                told = f"no {pattern!r} in {bytes(self._out)!r}, {bytes(self._err)!r}"
                assert self._open, told
                assert self._changed.wait(WAIT_SECONDS_MAX), told
        if not in_err:
            self._seen += found.end()
        return found

    def send(self, data: bytes) -> None:
        """Type something."""
        os.write(self._input, data)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal once it waits."""
        until_it_waits(self.process)
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """Type Ctrl-C once it waits."""
        until_it_waits(self.process)
        self.send(b"\x03")

    def end(self) -> Outcome:
        """End the input, wait for the end of the process, and return how that was."""
        if not self._has_terminal:
            self.close_input()
        code = self.process.wait(WAIT_SECONDS_MAX)
        for reader in self._readers:
            reader.join(WAIT_SECONDS_MAX)
        return Outcome(code, bytes(self._out), bytes(self._err))

    def close_input(self) -> None:
        """End the input."""
        if self._has_input:
            self._has_input = False
            os.close(self._input)

    def close(self) -> None:
        """Make sure that nothing of it is left."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(WAIT_SECONDS_MAX)
        self.close_input()
        for each in (self.process.stdout, self.process.stderr):
            if each is not None:
                each.close()
