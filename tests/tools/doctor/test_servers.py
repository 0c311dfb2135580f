"""Single servers of both kinds that run out of something, or are set up wrongly."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from kvorum.client.errors import KvorumError
from kvorum.client.sync.client import Client
from kvorum.client.values import MemberStatus
from tests.certificates import Authority
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.tools.ctl.duel import KINDS, run_here
from tests.tools.doctor.examining import changed_kvorum, client_of, of_endpoints, until_found
from tests.waiting import until
from tools import etcds

USUAL = {"single-member"}
QUOTA_BYTES = 4 << 20
SLOW_SYNCS = """
import os, time
sync = os.fdatasync
os.fdatasync = lambda descriptor: (time.sleep(0.13), sync(descriptor))
"""
SLOW_COMMITS = """
import time
from kvorum.storage.backend.real import LmdbWrite
commit = LmdbWrite.commit
LmdbWrite.commit = lambda self: (time.sleep(0.26), commit(self))
"""
WRONG_CLOCK = """
import time
clock = time.time
time.time = lambda: clock() + 3600
"""


class Server(Protocol):
    """A server that runs."""

    @property
    def address(self) -> str:
        """Where."""


@contextmanager
def running(kind: str, directory: Path, *flags: str, scheme: str = "http") -> Iterator[Server]:
    start = running_etcd if kind == "etcd" else running_kvorum
    with start(directory, *flags, scheme=scheme) as server:
        yield server


def run(line: str) -> None:
    """Run a command line of a finding as a user would."""
    program, *words = shlex.split(line)
    assert program == "kvorumctl"
    assert run_here(words).code == 0, line


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_by_itself_is_healthy(tmp_path: Path, kind: str) -> None:
    with running(kind, tmp_path / "data") as server:
        assert of_endpoints(server.address).keys() == USUAL
        assert b"single-member" in run_here([f"--endpoints={server.address}", "doctor"]).out


def fill(client: Client) -> None:
    """Put many times what the quota has room for: how much there is shows a little later."""
    for _ in range(50 * QUOTA_BYTES // 100_000):
        client.put("key", "v" * 100_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quota_that_is_near_and_then_reached(tmp_path: Path, kind: str) -> None:
    flags = (f"--quota-backend-bytes={QUOTA_BYTES}", "--unsafe-no-fsync")
    with running(kind, tmp_path / "data", *flags) as server, client_of(server.address) as client:
        # What is in use before the first put does not tell of any commit.
        written = client.maintenance.status(server.address).database_bytes_used

        def is_near() -> bool:
            """Put a little more; it shows when it has been committed to the disk."""
            nonlocal written
            client.put("key", "v" * 50_000)
            written += 50_000
            until(f"{written} bytes are used", lambda: status().database_bytes_used >= written)
            return status().database_bytes >= QUOTA_BYTES * 0.82

        def status() -> MemberStatus:
            return client.maintenance.status(server.address)

        until("the quota is near", is_near)
        near = of_endpoints(server.address)
        assert near.keys() == USUAL | {"quota-near"}
        assert near["quota-near"][0]["evidence"]["quota_bytes"] == QUOTA_BYTES
        with pytest.raises(KvorumError, match="database space exceeded"):
            fill(client)
        found = of_endpoints(server.address)
        assert found.keys() == USUAL | {"alarm-nospace"}
        # What the finding says to run heals it.
        for line in found["alarm-nospace"][0]["run"]:
            run(line)
        client.put("key", "value")
        assert of_endpoints(server.address).keys() == USUAL


@pytest.mark.parametrize("kind", KINDS)
def test_an_alarm_of_corruption(tmp_path: Path, kind: str) -> None:
    with running(kind, tmp_path / "data") as server, client_of(server.address) as client:
        (member,) = client.members.list()
        client.maintenance.raise_alarm("corrupt", member.id)
        found = of_endpoints(server.address)
        assert found.keys() == USUAL | {"alarm-corrupt"}
        assert f"{member.id:x}" in found["alarm-corrupt"][0]["subject"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_database_that_is_mostly_free(tmp_path: Path, kind: str) -> None:
    flags = ("--unsafe-no-fsync",)
    with running(kind, tmp_path / "data", *flags) as server, client_of(server.address) as client:
        for _ in range(75):
            revision = client.put("key", b"v" * (1 << 20)).revision
        client.compact(revision, physical=True)
        found = of_endpoints(server.address)
        assert found.keys() == USUAL | {"fragmentation"}
        (line,) = found["fragmentation"][0]["run"]
        run(line)
        assert of_endpoints(server.address).keys() == USUAL


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("days", "name"), [(10, "certificate-ends-soon"), (-1, "certificate-expired")]
)
def test_certificates(tmp_path: Path, kind: str, days: int, name: str) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.issue("server", days=days)
    flags = (f"--cert-file={pair.cert}", f"--key-file={pair.key}")
    with running(kind, tmp_path / "data", *flags, scheme="https") as server:
        # Nobody who checks one that has expired is answered.
        names = {name, "quorum-lost", "member-unreachable"} if days < 0 else USUAL | {name}
        words = (f"--cacert={authority.cert}", "--command-timeout=2s")
        found = until_found(names, lambda: of_endpoints(server.address, *words))
        (certificate,) = found[name]
        assert certificate["subject"] == server.address
        assert days - 1 <= certificate["evidence"]["days_left"] <= days


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_endpoints_of_different_clusters(tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(kind, tmp_path / name, f"--initial-cluster-token={name}"))
            for name in ("one", "other")
        ]
        found = of_endpoints(",".join(each.address for each in servers))
        assert "several-clusters" in found
        assert len(found["several-clusters"][0]["run"]) == 2


def test_a_version_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = min(etcds.at_hand(), default=None)
    if old is None or old.version >= (3, 6):
        pytest.skip("no etcd at hand is older than 3.6")
    monkeypatch.setenv(etcds.CHOICE, str(old))
    # Both are the only member of the cluster that is called so, and have its id.
    with running("etcd", tmp_path / "old") as first, running("kvorum", tmp_path / "new") as second:
        found = of_endpoints(f"{first.address},{second.address}", "--hash=false")
        assert "versions-incompatible" in found
        assert str(old) in found["versions-incompatible"][0]["evidence"]["versions"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_downgrade_that_is_under_way(tmp_path: Path, kind: str) -> None:
    if kind == "etcd" and not is_target():
        pytest.skip("etcd 3.5.1 cannot be downgraded")
    with running(kind, tmp_path / "data") as server, client_of(server.address) as client:
        client.maintenance.downgrade("3.6")
        found = of_endpoints(server.address)
        assert found.keys() == USUAL | {"downgrade-under-way"}
        (line,) = found["downgrade-under-way"][0]["run"]
        run(line)
        assert of_endpoints(server.address).keys() == USUAL


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_that_are_served_elsewhere(tmp_path: Path, kind: str) -> None:
    if kind == "etcd" and not is_target():
        pytest.skip("etcd 3.5.1 has no URLs for HTTP alone")
    with held_port() as port:
        flag = f"--listen-client-http-urls=http://127.0.0.1:{port}"
        with running(kind, tmp_path / "data", flag) as server:
            found = of_endpoints(server.address)
            assert found.keys() == USUAL | {"metrics-unreadable"}


@pytest.mark.long
def test_disks_that_are_slow(tmp_path: Path) -> None:
    with changed_kvorum(tmp_path / "data", SLOW_SYNCS) as address, client_of(address) as client:
        for _ in range(25):
            client.put("key", "value")
        # A page of metrics may be as old as a second.
        slow = until(
            "slow syncs are found",
            lambda: of_endpoints(address, judges_disks=True).get("log-disk-slow"),
        )
        assert slow[0]["evidence"]["p99_seconds"] > 0.1


@pytest.mark.long
def test_databases_that_commit_slowly(tmp_path: Path) -> None:
    flags = ("--unsafe-no-fsync", "--backend-batch-interval=1ms")
    with (
        changed_kvorum(tmp_path / "data", SLOW_COMMITS, *flags) as address,
        client_of(address) as client,
    ):

        def found() -> list[dict[str, Any]] | None:
            client.put("key", "value")
            found = of_endpoints(address, interval="100ms", judges_disks=True)
            return found.get("database-disk-slow")

        slow = until("slow commits are found", found)
        assert slow[0]["evidence"]["p99_seconds"] > 0.25


@pytest.mark.long
def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    with changed_kvorum(tmp_path / "data", WRONG_CLOCK) as wrong:
        found = of_endpoints(wrong)
        assert found.keys() == USUAL | {"clock-skew"}
        # It may be this machine's.
        assert found["clock-skew"][0]["certainty"] == "possible"
        with running_kvorum(tmp_path / "right") as right:
            found = of_endpoints(f"{wrong},{right.address}", "--hash=false")
            (skew,) = found["clock-skew"]
            assert skew["subject"] == wrong and skew["certainty"] == "certain"
            # However long the answer took.
            ahead = skew["evidence"]
            assert ahead["ahead_seconds_min"] <= 3600 <= ahead["ahead_seconds_max"]


def test_misuse_is_reported() -> None:
    assert b"no arguments" in run_here(["doctor", "x"]).err
    assert b"not supported" in run_here(["doctor", "-w", "fields"]).err
    words = ["doctor", "--data-dir=a", "--data-dir=b", "--wal-dir=c"]
    outcome = run_here(words)
    assert outcome.code == 128 and b"--wal-dir" in outcome.err
