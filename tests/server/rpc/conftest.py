"""What the tests of the services share: an etcd to ask."""

from collections.abc import Iterator

import pytest

from tests.server.rpc.oracle import Oracle, running_oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running_oracle(tmp_path_factory.mktemp("oracle")) as found:
        yield found
