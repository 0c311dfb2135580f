"""Our own program as users start it: a process on a data directory, until the block ends."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import held_port

READY = "ready to serve client requests"
HAS_VERSION = "set initial cluster version"


class Kvorum:
    """A running member that is a cluster by itself."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.process = process
        self.lines: list[str] = []
        """What it logged so far."""


def command(directory: Path, address: str, *flags: str, scheme: str = "http") -> list[str]:
    """Return the command line of a member that is a cluster by itself."""
    return [
        str(Path(sys.executable).parent / "kvorum"),
        f"--data-dir={directory}",
        f"--listen-client-urls={scheme}://{address}",
        f"--advertise-client-urls={scheme}://{address}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--initial-advertise-peer-urls=http://127.0.0.1:2",
        "--initial-cluster=default=http://127.0.0.1:2",
        "--heartbeat-interval=10",
        "--election-timeout=50",
        *flags,
    ]


@contextmanager
def running_kvorum(directory: Path, *flags: str, scheme: str = "http") -> Iterator[Kvorum]:
    """Run a member on a data directory for as long as the block takes."""
    with held_port() as port, _running(directory, port, *flags, scheme=scheme) as server:
        yield server


@contextmanager
def _running(directory: Path, port: int, *flags: str, scheme: str) -> Iterator[Kvorum]:
    address = f"127.0.0.1:{port}"
    # A new member serves a little before its cluster has a version, which downgrades need.
    signs = {READY} if (directory / "member").exists() else {READY, HAS_VERSION}
    process = subprocess.Popen(
        command(directory, address, *flags, scheme=scheme), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    server = Kvorum(address, process)
    reader = threading.Thread(target=lambda: server.lines.extend(process.stderr or ()))
    try:
        for line in process.stderr:
            server.lines.append(line)
            signs -= {sign for sign in signs if sign in line}
            if not signs:
                break
        else:
            raise AssertionError(f"kvorum ended with {process.wait()}:\n{''.join(server.lines)}")
        # Its log is read all the time, so that it never waits for a full pipe.
        reader.start()
        yield server
        process.terminate()
        reader.join()
    finally:
        process.kill()
        process.wait()
        if reader.is_alive():
            reader.join()
        process.stderr.close()
