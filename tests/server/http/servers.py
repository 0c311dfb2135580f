"""Two servers that get the same requests: ours, and a real etcd.

With KVORUM_TWIN=etcd another etcd stands for ours: where the two differ, it is the test that is
wrong.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.server.http.asking import ask
from tests.state.auth.servers import OURS_IS_ETCD, QUICK
from tests.waiting import until


class Both(NamedTuple):
    """The addresses of the two, ours first."""

    ours: str
    theirs: str


@contextmanager
def running_ours(directory: Path, *flags: str, scheme: str = "http") -> Iterator[str]:
    """Run one of ours for as long as the block takes; return its address."""
    running = running_etcd if OURS_IS_ETCD else running_kvorum
    with running(directory, QUICK, *flags, scheme=scheme) as server:
        yield server.address


@contextmanager
def running_both(directory: Path, *flags: str, scheme: str = "http") -> Iterator[Both]:
    """Run both for as long as the block takes, each once it has settled."""
    need_the_target()
    with (
        running_ours(directory / "ours", *flags, scheme=scheme) as ours,
        running_etcd(directory / "theirs", QUICK, *flags, scheme=scheme) as etcd,
    ):
        yield Both(ours, etcd.address)


def need_the_target() -> None:
    """Skip a test that asks an etcd whose gateway differs from that of our target."""
    if not is_target():
        pytest.skip("the gateway of 3.5.1 writes other JSON; 'make oracle' builds 3.7.3")


def settle(both: Both) -> Both:
    """Return both once they have stored the version of their data, which Status tells."""
    for address in both:
        until("the version", lambda address=address: b"3.7.0" in _storage(address))  # type: ignore[misc]
    return both


def _storage(address: str) -> bytes:
    status = ask(address, "/v3/maintenance/status").json
    return str(status.get("storageVersion", "")).encode()


def metric(address: str, name: str) -> float:
    """Return a metric without labels, or the sum of one over all of them."""
    text = ask(address, "/metrics", method="GET").body.decode()
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"no metric {name}"
    return sum(map(float, found))
