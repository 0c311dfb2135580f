"""One member for the consumers of a module: ours, and a real etcd, for which the same must hold."""

from collections.abc import Iterator

import pytest

from tests.etcd import running_etcd
from tests.kvorum import running_kvorum


@pytest.fixture(scope="module", params=["kvorum", "etcd"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a member that the tests of a module share; each has keys of its own."""
    directory = tmp_path_factory.mktemp("server") / "data"
    running = running_kvorum if request.param == "kvorum" else running_etcd
    with running(directory) as member:
        yield member.address
