"""Runs our programs on directories that may be damaged, each in a child of its own.

A line of the input is a list in JSON: the program and its arguments. The answer is the exit code,
negative for a signal, and what it printed on its two outputs. A server is told to end once it is
ready. Whoever takes longer than `SECONDS_MAX` is killed, which the answer shows as SIGALRM.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

# Loaded once, so that no child has to.
import uvloop  # noqa: F401

import kvorum.process.startup
import kvorum.tools.backup.child
import kvorum.tools.doctor.stopped
import kvorum.tools.utl.defragment
import kvorum.tools.utl.dumps.running
import kvorum.tools.utl.hashing
import kvorum.tools.utl.migration
import kvorum.tools.utl.storage_version
import kvorum.tools.utl.verify  # noqa: F401
from kvorum.network.edge import native_rows
from kvorum.process.main import run as run_server
from kvorum.tools.ctl.main import run as run_ctl
from kvorum.tools.utl.main import run as run_utl
from tests.kvorum import READY
from tests.waiting import WAIT_SECONDS_MAX

PROGRAMS = {"kvorumutl": run_utl, "kvorumctl": run_ctl, "kvorum": run_server}
SECONDS_MAX = int(WAIT_SECONDS_MAX)
CPU_SECONDS_MAX = 30


def embed(arguments: list[str]) -> int:
    """Start a member in this process, and end it."""
    from kvorum.embed import Config, ConfigError, Server, StartError

    try:
        with Server(Config(data_dir=arguments[0])):
            pass
    except (ConfigError, StartError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def child(program: str, arguments: list[str], outputs: list[int]) -> None:
    """Run a program as its process would."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    # A handler would not run while LMDB loops.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS_MAX)
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
    code = 70
    try:
        code = embed(arguments) if program == "embed" else PROGRAMS[program](arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):
                stream.flush()
        os._exit(code & 0xFF)


def server(arguments: list[str]) -> tuple[int, str, str]:
    """Run a server until it is ready, or ends."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        child("kvorum", arguments, [writing, writing])
    os.close(writing)
    lines, asked = [], 0
    with os.fdopen(reading, errors="replace") as said:
        for line in said:
            lines.append(line)
            if READY in line:
                asked = -signal.SIGTERM
                os.kill(process, signal.SIGTERM)
    _, status = os.waitpid(process, 0)
    # A clean end is death by the signal that asked for it.
    return os.waitstatus_to_exitcode(status) - asked, "", "".join(lines)


def command(program: str, arguments: list[str]) -> tuple[int, str, str]:
    """Run a command to its end."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = os.fork()
        if not process:
            child(program, arguments, [output.fileno(), errors.fileno()])
        _, status = os.waitpid(process, 0)
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return os.waitstatus_to_exitcode(status), said[0], said[1]


def main() -> None:
    """Serve requests until the input ends."""
    native_rows()
    for line in sys.stdin:
        program, *arguments = json.loads(line)
        run = server(arguments) if program == "kvorum" else command(program, arguments)
        sys.stdout.write(json.dumps(run) + "\n")
        sys.stdout.flush()


class Mangler:
    """The process, as tests use it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.utl.mangler"],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str | Path) -> tuple[int, str, str]:
        """Run a program; return its exit code and what it printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(map(str, words))) + "\n")
        self._process.stdin.flush()
        code, output, errors = json.loads(self._process.stdout.readline())
        return code, output, errors

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    main()
