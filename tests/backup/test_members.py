"""Members make backups by themselves: whoever leads does, with or without users."""

import re
import signal
import urllib.request
from pathlib import Path

from kvorum.backup.archive import Archive
from kvorum.backup.points import spans_of
from kvorum.backup.stores import DirectoryStore
from kvorum.backup.verifying import problems_of
from kvorum.client import Client
from kvorum.files.real import RealFiles
from tests.backup.harness import point_of, restored, state_in, state_of
from tests.cluster.members import running_cluster, until
from tests.kvorum import running_kvorum


def has_recorded(store: DirectoryStore, revision: int) -> bool:
    """Return whether a revision can be restored."""
    return any(each.first <= revision <= each.last for each in spans_of(Archive(store)))


def test_whoever_leads_makes_the_backup(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    store = DirectoryStore(RealFiles(), str(place))
    flags = (f"--backup-to={place}", "--backup-log-interval=100ms")
    with running_cluster(tmp_path, "kvorum", 3, *flags) as cluster:
        leader = cluster.settle()
        with Client([each.address for each in cluster]) as client:
            first = client.put("before", "1").revision
            until("the first leader records", lambda: has_recorded(store, first))
            leader.kill()
            cluster.leader(cluster.others(leader))
            second = client.put("after", "2", timeout=60).revision
            expected = state_of(client, second)
            until("the second leader records", lambda: has_recorded(store, second))
    archive = Archive(store)
    assert problems_of(archive, lambda _: None) == []
    # Nothing was missed, and the newest snapshot is young: the new leader goes on with the log.
    assert len(archive.histories) == len(archive.snapshots) == 1
    restored(tmp_path / "restored", store, point_of(store, second))
    assert state_in(tmp_path / "restored", second, expected.compact_revision) == expected


def test_a_member_takes_snapshots_from_time_to_time(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    store = DirectoryStore(RealFiles(), str(place))
    flags = (f"--backup-to={place}", "--backup-every=100ms", "--backup-keep=2")
    with (
        running_kvorum(tmp_path / "data", *flags, "--backup-log-interval=50ms") as server,
        Client(server.address) as client,
    ):
        client.auth.add_user("root", "password")
        client.auth.grant_role("root", "root")
        client.auth.enable()
        with Client(server.address, user="root", password="password") as root:
            revision = root.put("a", "b").revision
            until("a snapshot has the change", lambda: is_in_snapshot(store, revision))
        url = f"http://{server.address}/metrics"
        with urllib.request.urlopen(url) as response:
            text = response.read().decode()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
    found = re.findall(r"^kvorum_backup_(\w+) (\S+)$", text, re.M)
    shown = {name: float(value) for name, value in found}
    assert shown["failures_total"] == 0 and shown["snapshots_total"] >= 1
    assert shown["written_bytes_total"] > 0 and shown["snapshot_timestamp_seconds"] > 0
    archive = Archive(store)
    assert 1 <= len(archive.snapshots) <= 2
    assert problems_of(archive, lambda _: None) == []


def is_in_snapshot(store: DirectoryStore, revision: int) -> bool:
    return any(each.revision >= revision for each in Archive(store).snapshots)


def test_a_failing_archive_harms_no_member(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    flags = (f"--backup-to={tmp_path}/file/archive",)
    with running_kvorum(tmp_path / "data", *flags) as server, Client(server.address) as client:
        until(
            "the failure is told", lambda: any("a backup failed" in each for each in server.lines)
        )
        assert client.put("a", "b").revision == 2
