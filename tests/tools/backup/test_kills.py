"""Whenever a backup is killed: nothing between two points is lost, and nothing is mixed up."""

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.client import Client
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.points import find_point, read_segment_of, spans_of
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.session import LEASE_SECONDS, BackupOptions
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from tests.kvorum import running_kvorum
from tests.tools.backup.archives import rows_at
from tests.tools.backup.harness import OPTIONS, RecordedReports
from tests.waiting import WAIT_SECONDS_MAX, until

PLACE = "/archive"


class Killed(BaseException):
    """The program is gone."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Return a client of a store in which nothing was written yet."""
    with (
        running_kvorum(tmp_path_factory.mktemp("server") / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        yield client


def store_of(files: MemoryFiles) -> DirectoryStore:
    return DirectoryStore(files, PLACE)


def run_once(
    client: Client, files: MemoryFiles, options: BackupOptions = OPTIONS
) -> RecordedReports:
    told = RecordedReports()
    Backup(client, store_of(files), options, told).run_once()
    return told


def fail(text: str) -> None:
    raise AssertionError(text)


def nothing(_: int) -> None:
    pass


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32),
    kills=st.lists(st.integers(0, 25), min_size=1, max_size=3),
    keep=st.integers(1, 3),
    log_seconds=st.sampled_from([0.001, 3600.0]),
    is_power_cut=st.booleans(),
)
# Between the snapshot and the log.
@example(seed=0, kills=[12], keep=3, log_seconds=3600.0, is_power_cut=False)
def test_a_backup_that_is_killed_at_any_step_leaves_no_hole(
    client: Client,
    seed: int,
    kills: list[int],
    keep: int,
    log_seconds: float,
    is_power_cut: bool,
) -> None:
    chance = random.Random(seed)
    options = BackupOptions(every_seconds=3600.0, keep=keep, log_seconds=log_seconds)
    reference, files = MemoryFiles(), MemoryFiles()
    run_once(client, reference)
    run_once(client, files, options)
    for calls in kills:
        for _ in range(chance.randint(1, 4)):
            client.put(f"key{chance.randrange(3)}", chance.randbytes(10))
        client.delete("key0")
        left = [calls]

        def before(_: DiskCall, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        files.before = before
        with suppress(Killed):
            run_once(client, files, options)
        files.before = None
        files.kill()
        if is_power_cut:
            files = files.after_power_cut(lambda: chance.random() < 0.5)
    client.put("key1", "last")
    told = run_once(client, files, options)
    run_once(client, reference)
    assert told.histories == [], told.reasons
    archive = Archive(store_of(files))
    assert find_problems(archive, nothing) == []
    (span,) = spans_of(archive)
    whole = Archive(store_of(reference))
    for revision in range(span.first, span.last + 1):
        expected = rows_at(whole.store, find_point(whole, revision, None, fail))
        assert rows_at(archive.store, find_point(archive, revision, None, fail)) == expected
    assert len(archive.snapshots) <= keep


def test_what_was_heard_of_a_killed_server_is_written_without_its_leases(tmp_path: Path) -> None:
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    told = RecordedReports()
    with running_kvorum(tmp_path / "data") as server:
        client = Client(server.address, timeout=WAIT_SECONDS_MAX)
        options = BackupOptions(every_seconds=3600.0, keep=3, log_seconds=3600.0)
        made = Backup(client, store, options, told)
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            told.wait(lambda: bool(told.taken))
            lease = client.lease(5000)
            last = client.put("a", "1", lease=lease.id).revision
            until("the backup has heard of it", lambda: made._session._recorder.last >= last)  # type: ignore[union-attr]
            server.process.kill()
            server.process.wait()
        finally:
            made.stop()
            thread.join(WAIT_SECONDS_MAX)
            client.close()
    assert not thread.is_alive()
    (name,) = told.segments
    assert name.last == last
    assert read_segment_of(store, name).leases == {lease.id: LEASE_SECONDS}
    assert any(f"get {LEASE_SECONDS} seconds" in each for each in told.warnings)
    assert find_problems(Archive(store), nothing) == []
