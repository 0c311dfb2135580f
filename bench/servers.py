"""Start and stop the compared servers in the same way, each on a directory of its own.

`kvorum` is the program of this checkout. `etcd` is the newest available: 3.7.3 after `make oracle`,
3.5.1 otherwise. A single member of 3.5.1 answers a put before the put is durable
(etcd-io/etcd#14370), so with 3.5.1 a single client's latency is compared with `etcd-3.4`, which is
Debian's 3.4.23.
"""

import http.client
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bench.hosts import Host
from tools import etcds

DEBIAN_PACKAGE = "etcd-server"
CACHE = Path(__file__).parent / "results" / "cache"
START_SECONDS_MAX = 300
KEEPS_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""If set, every start compiles every source, which takes longer than the rest of the start."""


def opponent() -> etcds.Etcd:
    """Return the etcd to compare with."""
    chosen = etcds.chosen()
    if chosen is None:
        raise SystemExit("no etcd to compare with: 'make oracle' or 'make setup-dev' gets one")
    return chosen


def single_client_etcd() -> str:
    """Return the etcd that answers a single client only when its put is durable, as ours does."""
    return "etcd" if opponent().version >= (3, 6) else "etcd-3.4"


def debian_etcd() -> str:
    """Return the path of Debian's etcd, unpacked but not installed as a service."""
    program = CACHE / "usr" / "bin" / "etcd"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(
                ["apt-get", "download", "-qq", DEBIAN_PACKAGE], cwd=directory, check=True
            )
            (package,) = Path(directory).glob("*.deb")
            subprocess.run(["dpkg", "-x", package, CACHE], check=True)
    return str(program)


def program(name: str) -> str:
    """Return the program of a server by its name in the tables."""
    if name == "kvorum":
        return str(Path(sys.executable).parent / "kvorum")
    return debian_etcd() if name == "etcd-3.4" else str(opponent().programs / "etcd")


def _environment() -> dict[str, str]:
    """Return a server's environment: it may store bytecode, as an installed program does."""
    return {name: value for name, value in os.environ.items() if name != KEEPS_NO_BYTECODE}


def free_port() -> int:
    """Return a TCP port that is currently free."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


class Server:
    """A member as a process of its own; its addresses stay the same over restarts."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *flags: str,
        scheme: str = "http",
        host: Host | None = None,
    ) -> None:
        self.name = name
        self.host = host
        """The simulated host on which the server runs; None for the machine itself."""
        self.port = free_port()
        self._ip = "127.0.0.1" if host is None else host.address
        self.address = f"{self._ip}:{self.port}"
        self.peer_url = f"http://{self._ip}:{free_port()}"
        self.directory = directory
        self.flags = [f"--initial-cluster=default={self.peer_url}", *flags]
        """Command-line flags; the last of several equal flags counts."""
        self.prefix: list[str] = [] if host is None else host.command
        """A command that starts the program, such as one that sets limits."""
        self.start_seconds = 0.0
        self._scheme = scheme
        self.log = directory.parent / f"{directory.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, program(self.name), *self.arguments()],
                stdout=log,
                stderr=log,
                env=_environment(),
            )

    def arguments(self) -> list[str]:
        """Return the arguments of the program."""
        client_url = f"{self._scheme}://{self.address}"
        return [
            f"--data-dir={self.directory}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            "--quota-backend-bytes=8589934592",
            *self.flags,
        ]

    def wait_until_healthy(self) -> None:
        """Wait until the server answers linearizable reads."""
        while not self._is_healthy():
            took_too_long = time.monotonic() > self._began + START_SECONDS_MAX
            if self._running().poll() is not None or took_too_long:
                raise SystemExit(f"{self.name} does not serve; its log is {self.log}")
            time.sleep(0.01)
        self.start_seconds = time.monotonic() - self._began

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was never launched"
        return self._process

    def _is_healthy(self) -> bool:
        if self._scheme == "https":
            unchecked = ssl._create_unverified_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._ip, self.port, timeout=10, context=unchecked
            )
        else:
            connection = http.client.HTTPConnection(self._ip, self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._running().poll() is None

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._running().pid

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory of the process."""
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        found = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
        assert found is not None, rollup
        return int(found[1]) * 1024

    def processor_seconds(self) -> float:
        """Return the processor time that the process has used, all threads together."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Terminate the process, as an operator would."""
        self._running().terminate()
        self._running().wait(60)

    def restart(self) -> None:
        """Stop the process, and start it again on the same directory."""
        self.stop()
        self.launch()
        self.wait_until_healthy()

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Proxy(Server):
    """A gRPC proxy in front of a server, as a process of its own."""

    def __init__(self, name: str, directory: Path, member: Server) -> None:
        super().__init__(name, directory)
        self.member = member

    def arguments(self) -> list[str]:
        """Return the arguments of the program."""
        flags = [f"--listen-addr={self.address}", f"--endpoints={self.member.address}"]
        return ["grpc-proxy", "start", *flags, f"--data-dir={self.directory}"]


@contextmanager
def running(name: str, directory: Path, *flags: str, scheme: str = "http") -> Iterator[Server]:
    """Run a new server within the block."""
    with serving(Server(name, directory / name, *flags, scheme=scheme)) as server:
        yield server


Serving = TypeVar("Serving", bound=Server)


@contextmanager
def serving(server: Serving) -> Iterator[Serving]:
    """Run a given server within the block."""
    try:
        server.launch()
        server.wait_until_healthy()
        yield server
    finally:
        server.kill()
