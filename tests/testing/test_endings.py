"""Nothing is left of stores and clusters, however a run of pytest ends."""

import os
import re
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kvorum.testing.cluster import start_cluster
from kvorum.testing.options import StoreOptions
from kvorum.testing.store import Stores
from kvorum.testing.store_pool import BUILDERS
from kvorum.testing.worker_process import WorkerError, WorkerProcess
from tests.testing.conftest import Run, loading
from tests.waiting import WAIT_SECONDS_MAX

HELD = """
    import os
    import re
    import signal
    import sys
    from pathlib import Path

    def children(process):
        listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [each for child in listed for each in (child, *children(child))]

    def test_it(kvorum, kvorum_cluster, kvorum_client):
        kvorum_client.put("key", "value")
        logs = kvorum.log + kvorum_cluster.log(0)
        directories = set(re.findall(r'data-dir=(/[^\\s",]+)', logs))
        assert len(directories) >= 2 and all(Path(each).exists() for each in directories)
        assert len(children(os.getpid())) >= 5
        Path("held").write_text(" ".join(children(os.getpid())) + "\\n" + " ".join(directories))
        ENDING

    def test_next(kvorum):
        pass
"""


def wait_gone(process: int) -> None:
    """Return when a process, which need not be a child, has ended."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], WAIT_SECONDS_MAX)[0], f"{process} runs on"
    finally:
        os.close(descriptor)


def check_gone(pytester: pytest.Pytester) -> None:
    processes, directories = (pytester.path / "held").read_text().split("\n")
    for process in processes.split():
        wait_gone(int(process))
    assert [each for each in directories.split() if Path(each).exists()] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("assert False", "1 failed"),
        ("os.kill(os.getpid(), signal.SIGINT)", "no tests ran|KeyboardInterrupt"),
        ("sys.exit(3)", ""),
    ],
    ids=["failure", "interrupt", "exit"],
)
def test_a_run_that_stops_early(
    pytester: pytest.Pytester, run_pytest: Run, ending: str, outcome: str
) -> None:
    pytester.makepyfile(HELD.replace("ENDING", ending))
    result = run_pytest("--exitfirst")
    assert result.ret != 0
    assert any(each in result.stdout.str() for each in outcome.split("|"))
    check_gone(pytester)


@pytest.mark.usefixtures("run_pytest")
def test_a_run_that_is_killed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HELD.replace("ENDING", "os.kill(os.getpid(), signal.SIGKILL)"))
    command = [*pytester._getpytestargs(), *loading(), "-p", "no:cacheprovider"]
    process = pytester.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.wait(WAIT_SECONDS_MAX) == -signal.SIGKILL
    check_gone(pytester)


def children(worker: WorkerProcess) -> list[int]:
    number = worker.process_id
    return list(map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split()))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_stores_end_with_the_process_that_keeps_them(how: signal.Signals) -> None:
    worker = WorkerProcess("kvorum.testing.store_pool")
    try:
        stores = Stores(worker)
        held = [stores.take(StoreOptions(), None) for _ in range(BUILDERS + 1)]
        builders = children(worker)
        assert len(builders) == BUILDERS
        directories = [directory_of(store.log) for store in held]
        assert all(each.exists() for each in directories)
        os.kill(worker.process_id, how)
        for builder in builders:
            wait_gone(builder)
    finally:
        worker.stop()
    assert not any(each.exists() for each in directories)


def test_a_process_that_makes_stores_and_is_killed_ends_all_of_them() -> None:
    worker = WorkerProcess("kvorum.testing.store_pool")
    try:
        store = Stores(worker).take(StoreOptions(), None)
        directory = directory_of(store.log)
        killed = children(worker)[0]
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"a process that builds stores has .*{killed}"):
            store.log  # noqa: B018 (it asks)
    finally:
        worker.stop()
    # Who is killed leaves its directory; nothing uses that any more.
    shutil.rmtree(directory, ignore_errors=True)


def directory_of(log: str) -> Path:
    found = re.search(r"data-dir=([^\s,\"]+)", log)
    assert found is not None
    return Path(found[1])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_members_end_with_the_process_that_runs_them(how: signal.Signals) -> None:
    worker = WorkerProcess("kvorum.testing.cluster_runner")
    try:
        cluster = start_cluster(worker, StoreOptions(), None)
        members = children(worker)
        assert len(members) == 3
        directory = directory_of(cluster.log(0)).parent
        os.kill(worker.process_id, how)
        for member in members:
            wait_gone(member)
        with pytest.raises(WorkerError, match="has ended"):
            cluster.leader()
    finally:
        worker.stop()
    # Who is killed leaves its directory; nothing uses that any more.
    assert directory.exists() == (how is signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.long
def test_workers_of_xdist_have_servers_of_their_own(
    pytester: pytest.Pytester, run_pytest: Run
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_store(kvorum_client, number):
            assert kvorum_client.put("key", "value").revision == 2

        @pytest.mark.parametrize("number", range(2))
        def test_cluster(kvorum_cluster, number, worker_id):
            assert worker_id in ("gw0", "gw1")
            assert kvorum_cluster.client(timeout=60).put("key", "value").revision == 2

        @pytest.mark.kvorum(tls=True)
        @pytest.mark.parametrize("number", range(4))
        def test_tls(kvorum_client, number):
            assert kvorum_client.put("key", "value").revision == 2
        """
    )
    run_pytest("-n2", "-p", "xdist").assert_outcomes(passed=12)


@pytest.mark.long
def test_a_store_whose_process_was_killed(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import os
        import signal

        def test_loses_it(kvorum):
            os.kill(kvorum._worker.process_id, signal.SIGKILL)
            assert False

        def test_next(kvorum_client):
            kvorum_client.put("key", "value")
        """
    )
    result = run_pytest()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*the process that runs kvorum.testing.store_pool has ended*"])
