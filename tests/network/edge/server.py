"""A service in a process of its own, so that its memory and descriptors are its own.

Run as a module it prints its address, and serves until its standard input ends.
"""

import os
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.network.edge.service import Service
from tests.waiting import WAIT_SECONDS_MAX

REPOSITORY = Path(__file__).parents[3]


class Server:
    """The process, seen from the test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.network.edge.server"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the server did not start"

    def memory(self) -> int:
        """Return its resident bytes."""
        fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))  # noqa: PTH208

    def stop(self) -> int:
        """Let it end by itself; returns its exit status."""
        self._process.communicate(timeout=WAIT_SECONDS_MAX)
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Nowhere(queue.Queue[Any]):
    """A key that nobody is going to ask for."""

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        pass


def main() -> None:
    service = Service()
    service.requests = service.events = Nowhere()
    sys.stdout.write(service.address + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    service.stop()


if __name__ == "__main__":
    main()
