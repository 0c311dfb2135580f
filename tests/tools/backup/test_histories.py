"""A history goes on as long as nothing is missing from it; otherwise another one begins."""

import socket
import time
from pathlib import Path

import pytest

from kvorum.client import Client
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup import session
from kvorum.tools.backup.archive import Archive, read_recorded_period
from kvorum.tools.backup.points import spans_of
from kvorum.tools.backup.session import BackupOptions
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from tests.kvorum import running_kvorum
from tests.tools.backup.harness import point_of, restored, running_backup, state_in, state_of
from tests.waiting import WAIT_SECONDS_MAX, until


def nothing(_: int) -> None:
    pass


def test_what_happened_between_two_runs_is_recorded(tmp_path: Path) -> None:
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        first = client.put("a", "1").revision
        with running_backup(client, store) as told:
            told.wait_recorded(first)
        states = {}
        for number in range(5):
            revision = client.put("b", str(number)).revision
            states[revision] = state_of(client, revision)
        with running_backup(client, store) as told:
            told.wait_recorded(revision)
            assert told.histories == [] and told.taken == []
    assert find_problems(Archive(store), nothing) == []
    for revision, expected in states.items():
        directory = tmp_path / str(revision)
        restored(directory, store, point_of(store, revision))
        assert state_in(directory, revision, expected.compact_revision) == expected


def test_a_history_may_begin_with_an_empty_store(tmp_path: Path) -> None:
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        with running_backup(client, store) as told:
            told.wait(lambda: bool(told.taken))
        revisions = [client.put("a", str(number)).revision for number in range(3)]
        with running_backup(client, store) as told:
            told.wait_recorded(revisions[-1])
            assert told.histories == []
    (span,) = spans_of(Archive(store))
    assert (span.first, span.last) == (1, revisions[-1])


def test_changes_that_were_compacted_begin_another_history(tmp_path: Path) -> None:
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        with running_backup(client, store) as told:
            told.wait(lambda: bool(told.taken))
            told.wait_recorded(client.put("a", "1").revision)
        client.put("a", "2")
        client.compact(client.put("a", "3").revision)
        newest = client.put("a", "4").revision
        with running_backup(client, store) as told:
            told.wait_recorded(newest)
            told.wait(lambda: bool(told.taken))
            assert len(told.histories) == 1 and "compacted" in told.reasons[0]
    archive = Archive(store)
    assert len(archive.histories) == 2
    assert find_problems(archive, nothing) == []
    assert not any(each.first <= newest - 2 <= each.last for each in spans_of(archive))


@pytest.mark.long
@pytest.mark.parametrize("is_bumped", [False, True])
def test_a_restored_store_begins_another_history(tmp_path: Path, is_bumped: bool) -> None:
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        early = client.put("a", "early").revision
        with running_backup(client, store) as told:
            told.wait(lambda: bool(told.taken))
            told.wait_recorded(client.put("a", "late").revision)
    flags = {
        "initial_cluster": "default=http://127.0.0.1:2",
        "peer_urls": "http://127.0.0.1:2",
        "bump_revision": 1000 if is_bumped else 0,
        "mark_compacted": is_bumped,
    }
    restored(tmp_path / "again", store, point_of(store, early), **flags)
    with (
        running_kvorum(tmp_path / "again") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        assert client.get("a").value == b"early"  # type: ignore[union-attr]
        # As many changes as the lost ones: only their content tells that they are others.
        newest = client.put("a", "other").revision
        assert newest == early + 1 + 1000 * is_bumped
        expected = state_of(client, newest)
        with running_backup(client, store) as told:
            told.wait(lambda: bool(told.taken))
            assert len(told.histories) == 1
    assert len(Archive(store).histories) == 2
    restored(tmp_path / "third", store, point_of(store, newest))
    assert state_in(tmp_path / "third", newest, expected.compact_revision) == expected


@pytest.mark.long
def test_that_nothing_happened_is_known_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "UNANSWERED_SECONDS_MAX", 0.2)
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")

    def watched_until() -> float:
        names = Archive(store).histories[0].watched
        return max((read_recorded_period(store, each).until for each in names), default=0.0)

    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        first = client.put("a", "1").revision
        with running_backup(client, store) as told:
            told.wait(lambda: bool(told.taken))
            quiet = time.time()
            until("quiet time is recorded", lambda: watched_until() > quiet)
            # A stream that begins anew after the last change tells no progress by itself.
            for connection, _ in list(client.shell._sockets.values()):
                connection.shutdown(socket.SHUT_RDWR)
            lost = time.time()
            until("it goes on", lambda: watched_until() > lost)
            told.wait_recorded(client.put("a", "2").revision)
    assert point_of(store, moment=quiet).revision == first
    assert len(Archive(store).histories) == 1


def test_snapshots_alone_restore_themselves(tmp_path: Path) -> None:
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    options = BackupOptions(every_seconds=0.01, keep=3, log_seconds=0.0)
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        client.put("a", "1")
        with running_backup(client, store, options) as told:
            told.wait(lambda: len(told.taken) >= 4)
            revision = client.put("a", "2").revision
            told.wait_recorded(revision)
        archive = Archive(store)
        assert len(archive.snapshots) == 3 and not archive.histories[0].segments
        assert find_problems(archive, nothing) == []
        expected = state_of(client, revision)
    restored(tmp_path / "restored", store, point_of(store, revision))
    assert state_in(tmp_path / "restored", revision, expected.compact_revision) == expected
