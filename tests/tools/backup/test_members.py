"""Members make backups by themselves: whoever leads does, with or without users."""

import re
import signal
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from kvorum.client import Client
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.points import spans_of
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from tests.cluster.members import running_cluster
from tests.kvorum import running_kvorum
from tests.tools.backup.harness import point_of, restored, state_in, state_of
from tests.waiting import WAIT_SECONDS_MAX, until


def has_recorded(store: DirectoryStore, revision: int) -> bool:
    """Return whether a revision can be restored."""
    return any(each.first <= revision <= each.last for each in spans_of(Archive(store)))


def has_more_snapshots(store: DirectoryStore, known: int) -> bool:
    return len(Archive(store).snapshots) > known


@pytest.mark.long
def test_the_leader_makes_the_backup(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    store = DirectoryStore(RealFiles(), str(place))
    flags = (f"--backup-to={place}", "--backup-log-interval=100ms")
    with running_cluster(tmp_path, "kvorum", 3, *flags) as cluster:
        leader = cluster.settle()
        first = leader.put(b"before").header.revision
        until("the first leader records", lambda: has_recorded(store, first))
        leader.kill()
        follower = cluster.others(leader)[0]
        second = follower.put(b"after").header.revision
        with Client(follower.address, timeout=WAIT_SECONDS_MAX) as client:
            expected = state_of(client, second)
        until("the second leader records", lambda: has_recorded(store, second))
    archive = Archive(store)
    assert find_problems(archive, lambda _: None) == []
    # Nothing was missed, and the newest snapshot is young: the new leader goes on with the log.
    assert len(archive.histories) == len(archive.snapshots) == 1
    restored(tmp_path / "restored", store, point_of(store, second))
    assert state_in(tmp_path / "restored", second, expected.compact_revision) == expected


@pytest.mark.long
def test_a_killed_leader_leaves_no_hole(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    store = DirectoryStore(RealFiles(), str(place))
    # Leaders are killed between a snapshot and the log behind it.
    flags = (f"--backup-to={place}", "--backup-log-interval=1h", "--backup-every=1s")
    with running_cluster(tmp_path, "kvorum", 3, *flags) as cluster:
        first = cluster.settle().put(b"key").header.revision
        until("there is a snapshot", lambda: Archive(store).snapshots)
        for _ in range(2):
            leader = cluster.settle()
            known = len(Archive(store).snapshots)
            for number in range(10):
                last = leader.put(b"key", b"%d" % number).header.revision
            until("there is another", partial(has_more_snapshots, store, known))
            leader.put(b"key", b"last")
            leader.kill()
            leader.start()
        last = cluster.settle().put(b"key", b"end").header.revision
        until("everything is recorded", lambda: has_recorded(store, last))
    archive = Archive(store)
    assert find_problems(archive, lambda _: None) == []
    assert len(archive.histories) == 1
    covered = spans_of(archive)[0]
    assert covered.first <= first + 1 and covered.last >= last


@pytest.mark.long
def test_a_member_takes_snapshots_from_time_to_time(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    store = DirectoryStore(RealFiles(), str(place))
    flags = (f"--backup-to={place}", "--backup-every=1s", "--backup-keep=2")
    with (
        running_kvorum(tmp_path / "data", *flags, "--backup-log-interval=50ms") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        until("there is a snapshot", lambda: Archive(store).snapshots)
        first = Archive(store).snapshots[0]
        client.auth.add_user("root", "password")
        client.auth.grant_role("root", "root")
        client.auth.enable()
        user = {"user": "root", "password": "password"}
        with Client(server.address, timeout=WAIT_SECONDS_MAX, **user) as root:  # type: ignore[arg-type]
            revision = root.put("a", "b").revision
        until("a snapshot has the change", lambda: is_in_snapshot(store, revision))
        until("the first one is gone", lambda: first not in Archive(store).snapshots)
        url = f"http://{server.address}/metrics"
        with urllib.request.urlopen(url) as response:
            text = response.read().decode()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
    found = re.findall(r"^kvorum_backup_(\w+) (\S+)$", text, re.M)
    shown = {name: float(value) for name, value in found}
    assert shown["failures_total"] == 0 and shown["snapshots_total"] >= 1
    assert shown["written_bytes_total"] > 0 and shown["snapshot_timestamp_seconds"] > 0
    assert find_problems(Archive(store), lambda _: None) == []


def is_in_snapshot(store: DirectoryStore, revision: int) -> bool:
    return any(each.revision >= revision for each in Archive(store).snapshots)


def test_a_failing_archive_harms_no_member(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    flags = (f"--backup-to={tmp_path}/file/archive",)
    with running_kvorum(tmp_path / "data", *flags) as server:
        until(
            "the failure is told", lambda: any("a backup failed" in each for each in server.lines)
        )
        with Client(server.address, timeout=WAIT_SECONDS_MAX) as client:
            assert client.put("a", "b").revision == 2
