"""The servers that command lines are compared at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd import is_target
from tests.tools.ctl.duel import KINDS, Duel, duel_of
from tests.tools.ctl.store import Store, store_of


@pytest.fixture(scope="module", params=KINDS)
def duel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Duel]:
    """etcdctl and kvorumctl at servers of each kind, the same for a whole file."""
    if not is_target():
        pytest.skip("etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3")
    directory: Path = tmp_path_factory.mktemp(request.param)
    with duel_of(request.param, directory) as found:
        yield found


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A server of each kind, the same for a whole file."""
    with store_of(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found
