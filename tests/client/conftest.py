"""What the client is tried on, and how: our server and a real etcd, threads and asyncio.

Our server is a process, and a member of this process, which is called without a socket. Both
servers are called through a gRPC proxy too.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.client.both import run_asyncio, run_threads
from tests.client.embedded import embedded, made_here
from tests.servers import RUNNING, running_server


@pytest.fixture(scope="module", params=[*RUNNING, "embedded"])
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
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a test, given as a coroutine function that takes a client of what follows."""
    return made_here(run_threads if request.param == "threads" else run_asyncio)
