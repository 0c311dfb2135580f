"""Two fresh single members for the clients of this directory: ours, and a real etcd beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd import running_etcd
from tests.kvorum import running_kvorum


@pytest.fixture
def kvorum(tmp_path: Path) -> Iterator[str]:
    with running_kvorum(tmp_path / "kvorum.data") as server:
        yield server.address


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    with running_etcd(tmp_path / "etcd.data") as server:
        yield server.address


@pytest.fixture(params=["kvorum", "etcd"])
def server(request: pytest.FixtureRequest) -> str:
    """One after the other: what a test expects of ours must hold for a real etcd, too."""
    address: str = request.getfixturevalue(request.param)
    return address
