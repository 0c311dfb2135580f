"""A program at a terminal of its own: what is typed, and what is seen."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.children import at_terminal
from tests.tools.ctl.duel import PATIENCE
from tests.tools.ctl.processes import until_it_waits
from tests.waiting import WAIT_SECONDS_MAX, until


class Terminal:
    """The side of a terminal where a person sits."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self.seen = b""
        """Everything that was shown so far, escapes included."""
        self._at = 0

    def type(self, text: str | bytes) -> None:
        """Press keys."""
        os.write(self._master, text.encode() if isinstance(text, str) else text)

    def wait_for(self, pattern: str | bytes) -> re.Match[bytes]:
        """Read on until something is seen that was not waited for before, and return it."""
        end = time.monotonic() + WAIT_SECONDS_MAX
        while (found := self._find(pattern)) is None:
            assert self._read(end), f"{pattern!r} was never seen in {self.seen[-600:]!r}"
        return found

    def interrupt(self) -> None:
        """Press Ctrl-C once the program waits."""
        until_it_waits(self.process)
        self.type("\x03")

    def translate_nothing(self) -> None:
        """Let the terminal show line feeds as they are, without a carriage return before them."""
        modes = termios.tcgetattr(self._master)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(self._master, termios.TCSANOW, modes)

    def is_echoing(self) -> bool:
        """Return whether the terminal shows what is typed."""
        flags: int = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ECHO)

    def wait_hidden(self, prompt: str | bytes) -> None:
        """Wait until a question was asked, and what is typed is not shown."""
        self.wait_for(prompt)
        until("what is typed is not shown", lambda: not self.is_echoing())

    def _find(self, pattern: str | bytes) -> re.Match[bytes] | None:
        wanted = re.compile(pattern.encode() if isinstance(pattern, str) else pattern, re.DOTALL)
        found = wanted.search(self.seen, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def end(self) -> int:
        """Read to the end; return the exit code."""
        end = time.monotonic() + WAIT_SECONDS_MAX
        while self._read(end):
            pass
        return self.process.wait(WAIT_SECONDS_MAX)

    def _read(self, end: float) -> bool:
        """Wait for output until some time, and read it; return False if none is left."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"nothing came in time after {self.seen[-600:]!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # The program has ended, and nobody else has the terminal.
            return False
        self.seen += data
        return bool(data)


@contextmanager
def terminal_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Run a program at a terminal of 100 columns and 40 lines until the block ends."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    process = subprocess.Popen(
        at_terminal(command),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**kept, "TERM": "xterm", "KVORUM_COMPILED": "0", **(env or {})},
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


@contextmanager
def kvorumctl(
    address: str, *words: str, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run kvorumctl at a terminal."""
    command = [
        sys.executable,
        "-m",
        "kvorum.tools.ctl.main",
        f"--endpoints={address}",
        *PATIENCE,
        *words,
    ]
    with terminal_of(command, env) as terminal:
        yield terminal
