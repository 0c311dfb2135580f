"""Clocks that are wrong: they date what is recorded, and decide nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.client import Client
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup import running, session, taking
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.session import BackupOptions
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from tests.kvorum import running_kvorum
from tests.tools.backup.harness import (
    RecordedReports,
    point_of,
    restored,
    running_backup,
    state_in,
    state_of,
)
from tests.waiting import WAIT_SECONDS_MAX

AHEAD = 7200.0


class Clock:
    """Stands in for module `time` where backups are made."""

    def __init__(self) -> None:
        self.offset = 0.0

    def time(self) -> float:
        """Return what the wall clock shows."""
        return time.time() + self.offset

    @staticmethod
    def monotonic() -> float:
        """Return a clock that never jumps."""
        return time.monotonic()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (running, session, taking):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        yield client


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(RealFiles(), f"{tmp_path}/archive")


def nothing(_: int) -> None:
    pass


def run_once(client: Client, store: DirectoryStore, keep: int) -> RecordedReports:
    told = RecordedReports()
    Backup(
        client, store, BackupOptions(every_seconds=3600, keep=keep, log_seconds=0.02), told
    ).run_once()
    return told


@pytest.mark.parametrize("keep", [1, 3])
def test_a_history_that_began_in_the_future_hides_no_later_one(
    clock: Clock, client: Client, store: DirectoryStore, tmp_path: Path, keep: int
) -> None:
    clock.offset = AHEAD
    client.put("a", "early")
    for _ in range(keep):
        run_once(client, store, keep)
    clock.offset = 0.0
    client.put("a", "lost")
    client.compact(client.put("a", "late").revision)
    for number in range(keep + 1):
        newest = client.put("a", str(number)).revision
        told = run_once(client, store, keep)
        assert len(told.warnings) == (number == 0)
        (taken,) = told.taken
        archive = Archive(store)
        assert taken.name == archive.snapshots[-1] and len(archive.snapshots) <= keep
        assert find_problems(archive, nothing) == []
        point = point_of(store)
        assert (point.revision, point.snapshot) == (newest, taken.name)
    expected = state_of(client, newest)
    restored(tmp_path / "restored", store, point_of(store))
    assert state_in(tmp_path / "restored", newest, expected.compact_revision) == expected


def test_a_snapshot_of_the_future_is_due(
    clock: Clock, client: Client, store: DirectoryStore
) -> None:
    clock.offset = AHEAD
    client.put("a", "early")
    run_once(client, store, 3)
    clock.offset = 0.0
    with running_backup(client, store) as told:
        told.wait(lambda: bool(told.taken))
        (warning,) = told.warnings
        assert "is dated" in warning and "a clock was or is wrong" in warning
    # The same history goes on, and the next snapshot is due in an hour.
    assert told.histories == []
    with running_backup(client, store) as told:
        told.wait_recorded(client.put("a", "late").revision)
        assert not told.taken


@pytest.mark.parametrize("jump", [-AHEAD, AHEAD])
def test_a_clock_that_jumps_while_a_backup_runs_stops_nothing(
    clock: Clock, client: Client, store: DirectoryStore, jump: float
) -> None:
    with running_backup(client, store) as told:
        told.wait_recorded(client.put("a", "1").revision)
        told.wait(lambda: len(told.taken) == 1)
        clock.offset = jump
        newest = client.put("a", "2").revision
        told.wait_recorded(newest)
        told.wait(lambda: len(told.taken) == 2)
        assert len(told.warnings) == (jump < 0) and len(told.histories) == 1
        moment = clock.time()
        # That nothing happens after it is known, too.
        told.wait_recorded(client.put("a", "3").revision)
    assert find_problems(Archive(store), nothing) == []
    assert point_of(store, moment=moment).revision == newest
