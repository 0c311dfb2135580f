"""Patroni nodes as real processes, each with a PostgreSQL server of its own.

PostgreSQL refuses to run as root, so the nodes run as the user of Debian's package, in a directory
that this user may enter.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.consumers import environment
from tests.ports import held_ports
from tests.waiting import until

SCOPE = "demo"
USER = "postgres"
LEASE_SECONDS, LOOP_SECONDS, RETRY_SECONDS = 20, 1, 5
"""The lowest that Patroni accepts for a lease."""
LOCALLY = ("local all all trust", "host all all 127.0.0.1/32 trust")
REPLICATION = "host replication all 127.0.0.1/32 trust"


def programs() -> Path:
    """Return the directory of PostgreSQL's programs, which Debian has one of for each version."""
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]


class Node:
    """One Patroni and the PostgreSQL that it looks after."""

    def __init__(
        self, directory: Path, name: str, ports: tuple[int, int], store: Mapping[str, object]
    ) -> None:
        """`store` is the section about the key-value store."""
        self.name = name
        self._directory = directory
        self._api, self._postgres = (f"127.0.0.1:{port}" for port in ports)
        self._data = directory / f"{name}.data"
        self.settings = directory / f"{name}.yml"
        self.settings.write_text(yaml.safe_dump(self._configuration(store)))
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return self.name

    def _configuration(self, store: Mapping[str, object]) -> dict[str, Any]:
        parameters = {
            "fsync": "off",
            "shared_buffers": "16MB",
            "unix_socket_directories": str(self._directory),
        }
        dynamic = {
            "ttl": LEASE_SECONDS,
            "loop_wait": LOOP_SECONDS,
            "retry_timeout": RETRY_SECONDS,
            "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
        }
        return {
            "scope": SCOPE,
            "name": self.name,
            "restapi": {"listen": self._api, "connect_address": self._api},
            "etcd3": dict(store),
            "bootstrap": {"dcs": dynamic, "initdb": [{"encoding": "UTF8"}, "no-sync"]},
            "postgresql": {
                "listen": self._postgres,
                "connect_address": self._postgres,
                "data_dir": str(self._data),
                "bin_dir": str(programs()),
                "pgpass": str(self._directory / f"{self.name}.pgpass"),
                "authentication": {
                    "superuser": {"username": USER, "password": "secret"},
                    "replication": {"username": "copier", "password": "secret"},
                },
                "parameters": parameters,
                "pg_hba": [*LOCALLY, REPLICATION],
            },
        }

    def _run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            user=USER,
            group=USER,
            extra_groups=[],
            cwd=self._directory,
            capture_output=True,
            text=True,
        )

    # The processes.

    def start(self) -> None:
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [environment.program("patroni"), self.settings],
                user=USER,
                group=USER,
                extra_groups=[],
                cwd=self._directory,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End both as a power cut of their machine would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None
        pid = int((self._data / "postmaster.pid").read_text().split("\n")[0])
        os.kill(pid, signal.SIGKILL)
        # Its children end by themselves when they notice; then the port is free.
        until(f"PostgreSQL of {self} has ended", lambda: not Path(f"/proc/{pid}").exists())

    def stop(self) -> None:
        """Ask Patroni to end, which ends PostgreSQL first."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(120)
            self._process = None

    def print_log(self) -> None:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        print(f"--- {self}:", *lines[-60:], sep="\n")  # noqa: T201

    # What it says.

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._api, timeout=30)
        try:
            connection.request(method, path, json.dumps(body) if body else None)
            response = connection.getresponse()
            return response.status, json.load(response)
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        """Return what it says about itself; nothing while it does not answer."""
        try:
            found: dict[str, Any] = self._ask("GET", "/patroni")[1]
        except OSError:
            return {}
        return found

    def is_primary(self, timeline: int = 1) -> bool:
        """Return whether it is the primary, and was promoted to a timeline."""
        found = self.status()
        return found.get("role") == "primary" and found.get("timeline") == timeline

    def is_streaming(self) -> bool:
        """Return whether it follows the primary, change by change."""
        found = self.status()
        return found.get("role") == "replica" and found.get("replication_state") == "streaming"

    def configuration(self) -> dict[str, Any]:
        """Return the settings of the whole cluster, as the key-value store has them."""
        found: dict[str, Any] = self._ask("GET", "/config")[1]
        return found

    def configure(self, **settings: object) -> None:
        """Change settings of the whole cluster."""
        status, answer = self._ask("PATCH", "/config", settings)
        assert status == 200, answer

    def switch_over(self, candidate: "Node") -> None:
        """Hand over from this node, with Patroni's command line."""
        done = self._run(
            environment.program("patronictl"),
            "--config-file",
            self.settings,
            "switchover",
            SCOPE,
            "--primary",
            self.name,
            "--candidate",
            candidate.name,
            "--force",
        )
        assert done.returncode == 0, done

    def _query(self, statement: str) -> subprocess.CompletedProcess[str]:
        host, _, port = self._postgres.rpartition(":")
        where = ("--host", host, "--port", port, "--username", USER, "--dbname", "postgres")
        return self._run("psql", *where, "--no-align", "--tuples-only", "--command", statement)

    def add_row(self, text: str) -> None:
        """Write a row to a table of its PostgreSQL, which is the primary."""
        table = "CREATE TABLE IF NOT EXISTS rows (text text)"
        done = self._query(f"{table}; INSERT INTO rows VALUES ('{text}')")
        assert done.returncode == 0, done

    def rows(self) -> set[str]:
        """Return the rows of that table; none while its PostgreSQL does not answer."""
        return set(self._query("SELECT text FROM rows").stdout.split())


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Make a directory that belongs to the user of the nodes, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="patroni") as name:
        shutil.chown(name, USER, USER)
        yield Path(name)


@contextmanager
def running_nodes(
    directory: Path, names: Sequence[str], store: Mapping[str, object]
) -> Iterator[list[Node]]:
    """Run nodes for as long as the block takes; the first becomes the primary."""
    with held_ports(2 * len(names)) as ports, ExitStack() as running:
        pairs = zip(ports[::2], ports[1::2], strict=True)
        nodes = [
            Node(directory, name, pair, store) for name, pair in zip(names, pairs, strict=True)
        ]
        try:
            for node in nodes:
                running.callback(node.stop)
            nodes[0].start()
            until(f"{nodes[0]} is the primary", nodes[0].is_primary)
            for node in nodes[1:]:
                node.start()
                until(f"{node} follows", node.is_streaming)
            yield nodes
        except BaseException:
            for node in nodes:
                node.print_log()
            raise
