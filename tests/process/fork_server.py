"""Starts servers quickly: a process that has imported everything and forks one server per start.

Each server is a process of its own with its own descriptors and threads, as `kvorum` makes it;
only the imports, which take a second, are shared. Its log goes to a named pipe that the test reads.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.kvorum import READY, command
from tests.ports import held_port

RUNNING = 1000
"""Stands for the exit code of a process that is still running."""


class Child:
    """A server that a fork server started."""

    def __init__(self, pid: int, address: str, log: IO[str], fork_server: "ForkServer") -> None:
        self.pid = pid
        self.address = address
        self._log = log
        self._fork_server = fork_server
        self.lines: list[str] = []

    def wait_ready(self) -> None:
        for line in self._log:
            self.lines.append(line)
            if READY in line:
                return
        raise AssertionError(f"the server ended with {self.wait()}:\n{''.join(self.lines)}")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def terminate(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return how the process ended: its exit code, or the signal as a negative number."""
        self.lines += self._log
        self._log.close()
        return self._fork_server.wait(self.pid)


class ForkServer:
    """The test's end of the process that forks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._count = 0
        self._ports = ExitStack()

    def _ask(self, *question: object) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, data: Path, *flags: str) -> Child:
        """Start a server on a data directory; it may not be ready yet."""
        address = f"127.0.0.1:{self._ports.enter_context(held_port())}"
        self._count += 1
        pipe = self._directory / f"log{self._count}"
        os.mkfifo(pipe)
        pid = self._ask("start", str(pipe), command(data, address, *flags)[1:])
        return Child(pid, address, pipe.open(), self)

    def spawn(self, arguments: list[str], log: Path) -> int:
        """Start a server with any arguments and a file for its log; return its process."""
        return self._ask("start", str(log), arguments)

    def wait(self, pid: int) -> int:
        return self._ask("wait", pid)

    def poll(self, pid: int) -> int | None:
        """Return how a process ended, or None while it runs."""
        code = self._ask("poll", pid)
        return None if code == RUNNING else code

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._ports.close()


@contextmanager
def fork_server(directory: Path) -> Iterator[ForkServer]:
    made = ForkServer(directory)
    try:
        yield made
    finally:
        made.stop()


def main() -> None:
    import kvorum.process.startup  # noqa: F401 (what a start would import)
    from kvorum.process.main import run

    children: set[int] = set()
    for line in sys.stdin:
        action, *rest = json.loads(line)
        if action == "start":
            pipe, arguments = rest
            pid = os.fork()
            if pid == 0:
                log = os.open(pipe, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.dup2(log, 2)
                os.close(log)
                # As a service manager starts it: empty input, and descriptors 0 to 2 in use.
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(2, 1)
                os._exit(run(arguments))
            children.add(pid)
            answer = pid
        else:
            pid, status = os.waitpid(rest[0], os.WNOHANG if action == "poll" else 0)
            children.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else RUNNING
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()


@contextmanager
def running(servers: ForkServer, directory: Path, *flags: str) -> Iterator[Child]:
    """Run a server, which is ready, until the block ends."""
    server = servers.start(directory, *flags)
    server.wait_ready()
    try:
        yield server
    finally:
        server.terminate()
