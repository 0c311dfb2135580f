"""Fixtures of the edge's tests: each test runs against both edges, and some ask a real etcd."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kvorum.network.edge import Edge, Limits, Serves, TlsSettings, UpstreamSettings, open_edge
from tests.edges import EDGES
from tests.etcd import running_etcd
from tests.network.edge.caller import Caller
from tests.network.edge.service import METHODS, Service

OpenService = Callable[..., Service]
OpenEdge = Callable[..., tuple[Edge, str]]
OpenCaller = Callable[..., Caller]


@pytest.fixture(params=EDGES)
def edge_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which edge this test is about; `open_edge` opens it, in subprocesses too."""
    kind: str = request.param
    monkeypatch.setenv("KVORUM_EDGE", kind)
    return kind


@pytest.fixture
def open_service(edge_kind: str) -> Iterator[OpenService]:
    """Open services that are stopped when the test ends."""
    assert edge_kind
    with ExitStack() as stack:

        def open_it(
            limits: Limits | None = None,
            *addresses: str,
            tls: TlsSettings | None = None,
            http1_only: bool = False,
            serves: Serves = Serves.BOTH,
        ) -> Service:
            addresses = addresses or ("127.0.0.1:0",)
            opened = Service(limits, addresses, tls, http1_only=http1_only, serves=serves)
            stack.callback(opened.stop)
            return opened

        yield open_it


@pytest.fixture
def service(open_service: OpenService) -> Service:
    return open_service()


@pytest.fixture
def open_it(edge_kind: str) -> Iterator[OpenEdge]:
    """Open edges without a loop, at an address of their own."""
    assert edge_kind
    with ExitStack() as stack:

        def opening(limits: Limits | None = None, address: str = "127.0.0.1:0") -> tuple[Edge, str]:
            edge = open_edge(METHODS, (), limits)
            stack.callback(edge.stop)
            return edge, edge.listen(address)[1]

        yield opening


@pytest.fixture
def open_caller(edge_kind: str) -> Iterator[OpenCaller]:
    """Open calling sides with these settings, which are stopped when the test ends."""
    assert edge_kind
    with ExitStack() as stack:

        def opening(**settings: Any) -> Caller:
            caller = Caller(UpstreamSettings(**settings))
            stack.callback(caller.stop)
            return caller

        yield opening


@pytest.fixture
def caller(open_caller: OpenCaller) -> Caller:
    return open_caller()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a real etcd; returns its client address."""
    # Pings are too many if they come within this time of each other, however slow the machine is.
    flag = "--grpc-keepalive-min-time=1h"
    with running_etcd(tmp_path_factory.mktemp("etcd"), flag) as running:
        yield running.address
