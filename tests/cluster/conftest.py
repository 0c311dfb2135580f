"""Clusters that tests share: three members of ours, and in campaigns a real etcd's too."""

from collections.abc import Iterator

import pytest

from tests.cluster.members import MAKES, Cluster, running_cluster


def make_of(name: str) -> object:
    """Return a parameter: what is said of ours must be true of etcd; asked in campaigns."""
    return pytest.param(name, marks=pytest.mark.campaign) if name == "etcd" else name


both_makes = pytest.fixture(scope="module", params=[make_of(name) for name in MAKES])


@both_makes
def make(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def running(make: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three members that the tests of a module share."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), make) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Three members, all well and in agreement, whatever the test before did to them."""
    running.settle()
    return running
