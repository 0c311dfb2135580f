"""All kinds of servers, and both clients: each runs all."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count

import pytest

from kvorum.client.sync.client import Client
from tests.client.embedded import client_here, embedded
from tests.client.recipes.blocking import asyncio_client
from tests.servers import RUNNING, running_server

_numbers = count()

Connect = Callable[[], AbstractContextManager[Client]]


@pytest.fixture(scope="session", params=[*RUNNING, "embedded"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "embedded":
        with embedded() as address:
            yield address
        return
    with running_server(request.param, tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest, server: str) -> Connect:
    """Return what makes another client of the same kind."""
    is_async = request.param == "asyncio"
    here = client_here(server, is_async=is_async)
    if here is not None:
        return lambda: asyncio_client(make=here, timeout=20) if is_async else here(timeout=20)
    if not is_async:
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
