"""Servers as processes: etcd's from its binary, ours forked from one with all imports done."""

import atexit
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Protocol

from tests.etcd import binary
from tests.process.fork_server import ForkServer
from tests.waiting import WAIT_SECONDS_MAX, until

ASKS_LONGER = f"""
from kvorum.server.peer.cluster import joining
joining.NEW_SECONDS_MAX = joining.MORE_SECONDS_MAX = {WAIT_SECONDS_MAX}
"""
"""A change of a server: where no other answers within a second, it founds a cluster, as etcd."""


class Process(Protocol):
    """A server that was started."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""

    def wait(self, timeout: float) -> int:
        """Wait for its exit code."""


class Forked:
    """A server of ours."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = _fork_server().poll(self.pid)
        return self._code

    def wait(self, timeout: float) -> int:
        until(f"process {self.pid} ends", lambda: self.poll() is not None, timeout)
        assert self._code is not None
        return self._code


@cache
def _fork_server() -> ForkServer:
    directory = tempfile.TemporaryDirectory()
    fork_server = ForkServer(Path(directory.name))
    atexit.register(directory.cleanup)
    atexit.register(fork_server.stop)
    return fork_server


def start(make: str, arguments: list[str], log: Path) -> Process:
    """Start a server of a make; its output is appended to a file, which is there at once."""
    log.touch()
    if make == "kvorum":
        return Forked(_fork_server().spawn(arguments, log))
    with log.open("ab") as output:
        return subprocess.Popen([str(binary("etcd")), *arguments], stdout=output, stderr=output)


def start_changed(change: str, arguments: list[str], log: Path) -> Process:
    """Start a server of ours whose process some lines of Python have changed before."""
    program = f"{change}\nfrom kvorum.process.main import main\nmain()\n"
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=output, stderr=output
        )
