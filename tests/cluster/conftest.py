"""Clusters that tests share: three members of ours, and in campaigns three of a real etcd."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.members import MAKES, Cluster, running_cluster

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


class Lender:
    """Lends one cluster to test after test, and makes another when one has failed."""

    def __init__(
        self, make: str, factory: pytest.TempPathFactory, *, is_patient: bool = False
    ) -> None:
        self._make = make
        self._factory = factory
        self._is_patient = is_patient
        self._running = ExitStack()
        self._cluster: Cluster | None = None

    def lend(self) -> Cluster:
        """Return three healthy members, whatever the test before did to them."""
        if self._cluster is None:
            directory = self._factory.mktemp("cluster")
            self._cluster = self._running.enter_context(running_cluster(directory, self._make))
            if self._is_patient:
                self._cluster.be_patient()
        self._cluster.settle()
        return self._cluster

    def give_up(self) -> None:
        """Print what the members of a failed test logged, and end them."""
        if self._cluster is not None:
            self._cluster.print_logs()
        self.close()

    def close(self) -> None:
        self._cluster = None
        self._running.close()


def make_of(name: str) -> object:
    """Return a parameter: what is expected of ours must hold for etcd, which campaigns check."""
    return pytest.param(name, marks=pytest.mark.campaign) if name == "etcd" else name


@pytest.fixture(scope="module", params=[make_of(name) for name in MAKES])
def make(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def lender(make: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    found = Lender(make, tmp_path_factory)
    yield found
    found.close()


@pytest.fixture(scope="module")
def patient_lender(make: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    found = Lender(make, tmp_path_factory, is_patient=True)
    yield found
    found.close()


def lent(lender: Lender, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    try:
        yield lender.lend()
    finally:
        if request.node.stash.get(FAILED, False):
            lender.give_up()


@pytest.fixture
def cluster(lender: Lender, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three members that the tests of a module share."""
    yield from lent(lender, request)


@pytest.fixture
def patient(patient_lender: Lender, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three others, among which no election happens that the test does not cause."""
    yield from lent(patient_lender, request)
