"""The command line `etcdctl` 3.5.1, run against one server."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from tests.etcd import binary


class Outcome(NamedTuple):
    """How a command ended. Errors are its last line, without the address of the server."""

    code: int
    output: str
    error: str


def _command(address: str, arguments: tuple[str, ...]) -> list[str]:
    # Answers come at once, or late from a busy machine.
    patience = ("--dial-timeout=60s", "--command-timeout=60s")
    return [str(binary("etcdctl")), f"--endpoints={address}", *patience, *arguments]


def run(address: str, *arguments: str, text: str = "") -> Outcome:
    """Run one command to its end."""
    done = subprocess.run(
        _command(address, arguments), input=text, capture_output=True, text=True, timeout=120
    )
    return Outcome(done.returncode, done.stdout, _reason(done.stderr))


def _reason(stderr: str) -> str:
    """Return the error that the user reads: the last line, in JSON or not."""
    last = (stderr.strip().splitlines() or [""])[-1]
    if last.startswith("{"):
        logged: dict[str, Any] = json.loads(last)
        return str(logged.get("error", logged.get("msg")))
    return last


def answer(address: str, *arguments: str) -> Any:
    """Run one command that succeeds, and return its answer as JSON."""
    done = run(address, *arguments, "--write-out=json")
    assert done.code == 0, done
    return json.loads(done.output)


class Session:
    """A command that keeps running, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin: IO[str] = process.stdin
        self._stdout: IO[str] = process.stdout

    def say(self, line: str) -> None:
        """Type a line."""
        self._stdin.write(f"{line}\n")
        self._stdin.flush()

    def hear(self) -> str:
        """Wait for the next line it prints."""
        return self._stdout.readline().rstrip("\n")

    def interrupt(self) -> int:
        """Ask it to end, as Control-C does; return the exit code.

        Not by SIGINT itself: tests that run in the background of a shell ignore it, and so do their
        children.
        """
        self._process.terminate()
        return self._process.wait(30)


@contextmanager
def session(address: str, *arguments: str) -> Iterator[Session]:
    """Run a command for as long as the block takes."""
    process = subprocess.Popen(
        _command(address, arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Session(process)
    finally:
        process.kill()
        process.communicate()
