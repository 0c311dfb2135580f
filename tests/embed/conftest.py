"""Tests of the client, on a member of this process: their fixtures by the same names."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvorum.client.sync.client import Client
from kvorum.embed import Config, Server
from tests.client.both import Test, run_asyncio, run_threads
from tests.client.recipes.blocking import asyncio_client
from tests.client.recipes.conftest import Connect, name

__all__ = ["name"]

SERVERS: dict[str, Server] = {}


def _serving(**options: Any) -> Iterator[str]:
    with Server(Config(ephemeral=True, **options)) as server:
        address = server.client_url.removeprefix("http://")
        SERVERS[address] = server
        yield address
        del SERVERS[address]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from _serving()


@pytest.fixture(scope="module")
def lone_server() -> Iterator[str]:
    """A server for users, whose passwords are hashed quickly."""
    yield from _serving(bcrypt_cost=4)


@pytest.fixture(params=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a test, given as a coroutine function, on a client without a socket."""

    def run(test: Test, address: str, **options: Any) -> None:
        here = SERVERS[address]
        if request.param == "threads":
            run_threads(test, make=here.client, **options)
        else:
            run_asyncio(test, make=here.async_client, **options)

    return run


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest, server: str) -> Connect:
    """Return what makes another client of the same kind."""
    here = SERVERS[server]
    if request.param == "threads":
        return lambda: here.client(timeout=20)
    return lambda: asyncio_client(make=here.async_client, timeout=20)


@pytest.fixture
def client(connect: Connect) -> Iterator[Client]:
    with connect() as made:
        yield made
