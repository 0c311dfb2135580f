"""Our server and a real etcd, and both clients: every test of recipes runs with each of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count

import pytest

from kvorum.client.sync.client import Client
from tests.client.recipes.blocking import asyncio_client
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum

_numbers = count()

Connect = Callable[[], AbstractContextManager[Client]]


@pytest.fixture(scope="session", params=["kvorum", "etcd"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    running = running_kvorum if request.param == "kvorum" else running_etcd
    with running(tmp_path_factory.mktemp("server")) as found:
        yield found.address


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest, server: str) -> Connect:
    """Return what makes another client of the same kind."""
    if request.param == "threads":
        return lambda: Client(server, timeout=20)
    return lambda: asyncio_client(server, timeout=20)


@pytest.fixture
def client(connect: Connect) -> Iterator[Client]:
    with connect() as made:
        yield made


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses."""
    return f"test{next(_numbers)}"
