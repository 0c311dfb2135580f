"""What the client is tried on, and how: our server and a real etcd, threads and asyncio."""

from collections.abc import Callable, Iterator

import pytest

from tests.client.both import run_asyncio, run_threads
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum


@pytest.fixture(scope="module", params=["kvorum", "etcd"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    running = running_kvorum if request.param == "kvorum" else running_etcd
    with running(tmp_path_factory.mktemp("server")) as found:
        yield found.address


@pytest.fixture(params=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a test, given as a coroutine function that takes a client of what follows."""
    return run_threads if request.param == "threads" else run_asyncio
