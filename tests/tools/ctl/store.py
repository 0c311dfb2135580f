"""A store of its own for commands that etcdctl does not have, beside what it should hold."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvorum.client.sync.client import Client
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.tools.ctl.duel import PATIENCE, Outcome, run_here


class Store:
    """A server of some kind, a client of it, and kvorumctl."""

    def __init__(self, address: str, client: Client) -> None:
        self.address = address
        self.client = client

    def run(self, *words: str, stdin: bytes = b"", code: int = 0) -> Outcome:
        """Run a command line, and demand its exit code."""
        outcome = run_here([f"--endpoints={self.address}", *PATIENCE, *words], stdin)
        assert outcome.code == code, outcome
        return outcome

    def lines(self, *words: str, stdin: bytes = b"", code: int = 0) -> list[Any]:
        """Run a command line whose output is lines of JSON."""
        out = self.run(*words, stdin=stdin, code=code).out
        return [json.loads(line) for line in out.splitlines()]

    def clear(self) -> None:
        """Delete everything."""
        self.client.delete(prefix=b"")

    def content(self, prefix: bytes = b"", revision: int = 0) -> dict[bytes, bytes]:
        """Return all keys and values."""
        return {kv.key: kv.value for kv in self.client.range(prefix=prefix, revision=revision)}

    @property
    def revision(self) -> int:
        """The revision of the store."""
        return self.client.read(b"none", count_only=True).revision


@contextmanager
def store_of(kind: str, directory: Path) -> Iterator[Store]:
    """Start a server of a kind."""
    running = running_etcd if kind == "etcd" else running_kvorum
    with running(directory) as server, Client(server.address) as client:
        yield Store(server.address, client)
