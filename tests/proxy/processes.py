"""Proxies as users start them: processes, their lines, and where they listen."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.etcd import binary
from tests.waiting import WAIT_SECONDS_MAX

PROGRAM = str(Path(sys.executable).parent / "kvorum")
GATEWAY_READY = "ready to proxy client requests"
PROXY_READY = "started gRPC proxy"


def run(program: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command line that is expected to end."""
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )


def run_both(
    *arguments: str,
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Run a command line with our program and with etcd's, at the same time."""
    with ThreadPoolExecutor(2) as threads:
        ours = threads.submit(run, PROGRAM, *arguments)
        theirs = threads.submit(run, binary("etcd"), *arguments)
        return ours.result(), theirs.result()


class RunningProxy:
    """A proxy that runs, and what it logged."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.text: list[str] = []
        """Lines that are no JSON."""
        self._arrived = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._ready = ready

    @property
    def address(self) -> str:
        """Where it listens, as soon as it does."""
        return str(self.wait_for(self._ready)["address"])

    @property
    def place(self) -> tuple[str, int]:
        """The same, for a socket."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._arrived:
                    try:
                        self.lines.append(json.loads(line))
                    except ValueError:
                        self.text.append(line)
                    self._arrived.notify_all()
        with self._arrived:
            self.text.append("\0")
            self._arrived.notify_all()

    def matching_lines(self, message: str, **fields: object) -> list[dict[str, Any]]:
        """Return the lines with this message and these fields so far."""
        return [
            each
            for each in list(self.lines)
            if each["msg"] == message and fields.items() <= each.items()
        ]

    def wait_for(self, message: str, times: int = 1, **fields: object) -> dict[str, Any]:
        """Return the line with this message and these fields, the nth, when it is there."""
        with self._arrived:
            is_logged = self._arrived.wait_for(
                lambda: len(self.matching_lines(message, **fields)) >= times or "\0" in self.text,
                WAIT_SECONDS_MAX,
            )
        found = self.matching_lines(message, **fields)
        assert is_logged and len(found) >= times, f"{self.text}\n{self.lines}"
        return found[times - 1]

    def descriptors(self) -> int:
        """Return how many descriptors it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(WAIT_SECONDS_MAX)
        self._reader.join()
        return code


@contextmanager
def running_proxy(
    command: str, *flags: str, before: Sequence[str] = (), cwd: Path | None = None
) -> Iterator[RunningProxy]:
    """Run `kvorum gateway` or `kvorum grpc-proxy` at a free port while the block lasts."""
    process = subprocess.Popen(
        [*before, PROGRAM, command, "start", "--listen-addr=127.0.0.1:0", *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    running = RunningProxy(process, GATEWAY_READY if command == "gateway" else PROXY_READY)
    try:
        assert running.address
        yield running
    finally:
        process.kill()
        running.end()
