"""The pytest plugin: fixtures with stores and clusters, and the mark that configures them.

Every run of pytest loads it where Kvorum is installed, so it imports nothing that pytest has not
imported already. The first fixture imports the rest.
"""

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any, Protocol, TypeVar

    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client
    from kvorum.testing.certificates import Certificates
    from kvorum.testing.cluster import Cluster
    from kvorum.testing.options import StoreOptions
    from kvorum.testing.store import Store
    from kvorum.testing.worker_process import WorkerProcess

    Lent = TypeVar("Lent", bound=Store | Cluster, covariant=True)

    class Source(Protocol[Lent]):
        """Provides fresh stores or clusters."""

        def take(self, options: StoreOptions, certificates: Certificates | None) -> Lent:
            """Return a fresh store or cluster."""


MARK = (
    "kvorum(tls=False, auth=False, flags={}): what the store or cluster of a test is like: TLS, "
    "users (root, with the password root), flags of the kvorum command by their names"
)

_sources: "pytest.StashKey[dict[str, tuple[WorkerProcess, Any]]]" = pytest.StashKey()
_certificates = pytest.StashKey["Certificates"]()
_lent = pytest.StashKey["list[Store | Cluster]"]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def kvorum(request: pytest.FixtureRequest) -> "Iterator[Store]":
    """Provide a fresh, empty store for this test alone: a `kvorum.testing.Store`."""
    from kvorum.testing.store import Stores

    yield from _lend(request, "kvorum.testing.store_pool", Stores)


@pytest.fixture
def kvorum_client(kvorum: "Store") -> "Client":
    """Provide a client of the store of this test."""
    return kvorum.client()


@pytest.fixture
def kvorum_async_client(kvorum: "Store") -> "AsyncClient":
    """Provide a client of this test's store, for the event loop that first uses it."""
    return kvorum.async_client()


@pytest.fixture
def kvorum_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """Provide a cluster of three members for this test alone: a `kvorum.testing.Cluster`."""
    from kvorum.testing.cluster import Clusters

    yield from _lend(request, "kvorum.testing.cluster_runner", Clusters)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> "Generator[None, pytest.TestReport, pytest.TestReport]":
    """Add the logs of a failed test's members to its report."""
    report = yield
    if report.failed:
        for each in item.stash.get(_lent, ()):
            report.sections += _logs(each)
    return report


def _logs(lent: "Store | Cluster") -> "list[tuple[str, str]]":
    from kvorum.testing.worker_process import WorkerError

    try:
        return lent.logs()
    except WorkerError as error:
        return [("kvorum", str(error))]


def _lend(
    request: pytest.FixtureRequest,
    module: str,
    source: "Callable[[WorkerProcess], Source[Lent]]",
) -> "Iterator[Lent]":
    from kvorum.testing.options import MarkError, options_of
    from kvorum.testing.worker_process import WorkerError

    marks = [(mark.args, mark.kwargs) for mark in request.node.iter_markers("kvorum")]
    refusal = ""
    try:
        options = options_of(reversed(marks))
        certificates = _certificates_of(request) if options.tls else None
        made = _source(request.config, module, source).take(options, certificates)
    except (WorkerError, MarkError) as error:
        refusal = f"no {request.fixturename} for this test: {error}"
    if refusal:
        # Fail outside the except block, so that pytest does not show the caught error as well.
        pytest.fail(refusal, pytrace=False)
    lent = request.node.stash.setdefault(_lent, [])
    lent.append(made)
    try:
        yield made
    finally:
        lent.remove(made)
        made.end()


def _source(
    config: pytest.Config, module: str, make: "Callable[[WorkerProcess], Source[Lent]]"
) -> "Source[Lent]":
    """Return the source that uses a module's process, which runs until the end of the session."""
    from kvorum.testing.worker_process import WorkerProcess

    sources = config.stash.setdefault(_sources, {})
    if module not in sources or sources[module][0].has_ended:
        worker = WorkerProcess(module)
        config.add_cleanup(worker.stop)
        sources[module] = (worker, make(worker))
    source: Source[Lent] = sources[module][1]
    return source


def _certificates_of(request: pytest.FixtureRequest) -> "Certificates":
    """Return the certificates of this session."""
    if _certificates not in request.config.stash:
        from kvorum.testing.certificates import make_certificates

        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        request.config.stash[_certificates] = make_certificates(factory.mktemp("kvorum-tls"))
    return request.config.stash[_certificates]
