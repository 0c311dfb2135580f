"""Two servers that get the same: ours, and a real etcd. Passwords are hashed quickly in both.

With KVORUM_TWIN=etcd another etcd stands for ours: where the two differ, it is the test that is
wrong.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.client import Client, Metadata
from tests.cluster.processes import Process, start
from tests.etcd import is_target, running_etcd
from tests.kvorum import READY, command
from tests.ports import held_port
from tests.state.auth.asking import Heard, comparable, hear
from tests.waiting import until

OURS_IS_ETCD = os.environ.get("KVORUM_TWIN") == "etcd"
QUICK = "--bcrypt-cost=4"


class Server:
    """A client of one of the two, and the tokens that it gave."""

    def __init__(self, address: str, tokens: dict[str, list[str]] | None = None) -> None:
        self.address = address
        self.client = Client(address)
        self.tokens = {} if tokens is None else tokens
        """The tokens of each user, the oldest first; members of a cluster share them."""

    def metadata_of(self, user: str) -> Metadata:
        """Return the metadata of a user who has logged in."""
        return (("token", self.tokens[user][-1]),)

    def log_in(self, user: str, password: str) -> None:
        request = pb.AuthenticateRequest(name=user, password=password)
        self.tokens.setdefault(user, []).append(self.answer("Auth/Authenticate", request).token)

    def take(self, request: Any, heard: Heard) -> None:
        """Keep the token of whoever has just logged in."""
        if isinstance(request, pb.AuthenticateRequest) and not heard.is_refusal:
            self.tokens.setdefault(request.name, []).append(heard.messages[0].token)

    @property
    def revision(self) -> int:
        """The revision of the store, which even those who are nobody may ask for."""
        revision: int = self.answer("Auth/AuthStatus", pb.AuthStatusRequest()).header.revision
        return revision

    def answer(self, name: str, request: Any, user: str = "") -> Any:
        """Make a unary call that succeeds, as nobody or as a user."""
        answer = self.client.ask(name, request, metadata=self.metadata_of(user) if user else ())
        assert not isinstance(answer, Status), f"{name} {request}: {answer}"
        return answer


class Servers:
    """Servers that get the same calls; iterates over them."""

    def __init__(self, *servers: Server) -> None:
        self._servers = servers

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def answer(self, name: str, request: Any, user: str = "") -> None:
        """Make a call to all that succeeds and is not compared."""
        for server in self:
            server.answer(name, request, user)


class Both(Servers):
    """The two, ours first."""

    def __init__(self, ours: Server, oracle: Server) -> None:
        super().__init__(ours, oracle)
        self.ours = ours
        self.oracle = oracle

    def settle(self) -> None:
        """Wait until both have agreed on a version with themselves, soon after their start.

        Before that, Status and Downgrade may answer differently. Authentication is still off.
        """
        status = pb.StatusRequest()
        for server in self if is_target() else ():
            until(
                "the version",
                lambda server=server: (  # type: ignore[misc]
                    server.answer("Maintenance/Status", status).storageVersion == "3.7.0"
                ),
            )

    def check(
        self, name: str, request: Any, metadata: Sequence[Metadata], what: object
    ) -> list[Heard]:
        """Make a call to both, each with its metadata, and compare; return both answers."""
        answers = [
            hear(server.client, name, request, each)
            for server, each in zip(self, metadata, strict=True)
        ]
        found, expected = (comparable(name, request, each) for each in answers)
        assert found == expected, f"{what}: {name} {request}: {found}, expected {expected}"
        return answers


@contextmanager
def running_ours(directory: Path, *flags: str) -> Iterator[Server]:
    """Run one of ours for as long as the block takes."""
    if OURS_IS_ETCD:
        with running_oracle(directory, *flags) as server:
            yield server
        return
    log = directory.with_name(f"{directory.name}.log")
    log.unlink(missing_ok=True)
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        process = start("kvorum", command(directory, address, QUICK, *flags)[1:], log)
        try:
            until("it serves", lambda: _is_ready(process, log))
            with _connected(address) as server:
                yield server
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
                process.wait(60)


def _is_ready(process: Process, log: Path) -> bool:
    said = log.read_text() if log.exists() else ""
    assert process.poll() is None, said
    return READY in said


@contextmanager
def running_oracle(directory: Path, *flags: str) -> Iterator[Server]:
    """Run a real etcd for as long as the block takes."""
    with running_etcd(directory, QUICK, *flags) as etcd, _connected(etcd.address) as server:
        yield server


@contextmanager
def _connected(address: str) -> Iterator[Server]:
    server = Server(address)
    yield server
    server.client.close()


@contextmanager
def running_both(directory: Path, *, with_old: bool = False) -> Iterator[Both]:
    """Run both for as long as the block takes; with an old etcd only if a test knows how."""
    if not is_target() and not with_old:
        pytest.skip("3.5.1 refuses other calls and in other words; 'make oracle' builds 3.7.3")
    with (
        running_ours(directory / "ours") as ours,
        running_oracle(directory / "etcd") as oracle,
    ):
        yield Both(ours, oracle)
