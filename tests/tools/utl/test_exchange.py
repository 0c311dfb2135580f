"""A history goes from etcd to us and back through snapshots, and looks the same everywhere."""

from pathlib import Path

import pytest

from kvorum.storage.backend.bbolt import open_image
from kvorum.storage.files.real import RealFiles
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.tools.utl.commands import answer, done, refusal
from tests.tools.utl.history import Sight, connected, perform, random_calls
from tests.tools.utl.logs import logged

ETCD_RESTORE = (
    "--initial-cluster=default=http://127.0.0.1:2",
    "--initial-advertise-peer-urls=http://127.0.0.1:2",
)


def save(address: str, path: Path) -> Path:
    done("etcdctl", f"--endpoints={address}", "snapshot", "save", path)
    return path


def check_status(path: Path, live_keys: int) -> None:
    """Hold what we say of a snapshot to what etcd's tool says of it."""
    ours, theirs = (
        answer("kvorumutl", "snapshot", "status", path),
        answer("etcdutl", "snapshot", "status", path),
    )
    for name in ("hash", "revision", "totalSize"):
        assert ours[name] == theirs[name], name
    assert ours["totalKey"] == live_keys
    if is_target():
        assert theirs["totalKey"] == live_keys
        return
    # 3.5 counts entries of every kind.
    image = open_image(RealFiles(), str(path), path.stat().st_size - 32)
    count = sum(1 for bucket in image.buckets() for _ in image.items(bucket))
    image.close()
    assert theirs["totalKey"] == count


@pytest.mark.long
def test_a_history_looks_the_same_on_both_sides_of_a_snapshot(tmp_path: Path) -> None:
    calls = random_calls(1, 3_000)
    more = random_calls(2, 500)
    with running_etcd(tmp_path / "etcd") as etcd, connected(etcd.address) as oracle:
        perform(oracle, calls, compactions=4)
        first = save(etcd.address, tmp_path / "first")
        original = Sight(oracle)
        assert original.compacted > 1_000 and len(original.leases) > 20
        done("kvorumutl", "snapshot", "restore", first, "--data-dir", tmp_path / "kvorum")
        with running_kvorum(tmp_path / "kvorum") as kvorum, connected(kvorum.address) as client:
            assert Sight(client) == original
            # Both go on alike, so what we send on is not only what we were given.
            for server in (oracle, client):
                perform(server, more, compactions=1)
            grown = Sight(oracle)
            assert Sight(client) == grown != original
            second = save(kvorum.address, tmp_path / "second")
            third = tmp_path / "third"
            told = done("kvorumutl", "snapshot", "save", third, "--endpoints", kvorum.address)
            assert told.splitlines()[0] == f"Snapshot saved at {third}"
    check_status(first, len(original.keys))
    for path in (second, third):
        check_status(path, len(grown.keys))
    revision = max(grown.hashes)
    found = answer("kvorumutl", "hashkv", second, "--rev", str(revision))
    assert found == {
        "hash": grown.hashes[revision],
        "hashRevision": revision,
        "compactRevision": grown.compacted,
    }
    assert answer("kvorumutl", "hashkv", tmp_path / "kvorum", "--rev", str(revision)) == found
    again = tmp_path / "again"
    done("etcdutl", "snapshot", "restore", second, "--data-dir", again, *ETCD_RESTORE)
    with running_etcd(again) as etcd, connected(etcd.address) as oracle:
        assert Sight(oracle) == grown


@pytest.mark.long
def test_a_revision_that_was_bumped_is_never_reached_again(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "old") as kvorum, connected(kvorum.address) as client:
        perform(client, random_calls(3, 150))
        before = Sight(client)
        saved = save(kvorum.address, tmp_path / "saved")
    bump = ("--bump-revision", "1000000", "--mark-compacted")
    done("kvorumutl", "snapshot", "restore", saved, "--data-dir", tmp_path / "new", *bump)
    with running_kvorum(tmp_path / "new") as kvorum, connected(kvorum.address) as client:
        after = Sight(client)
        assert after.keys == before.keys
        assert (after.revision, after.compacted) == (before.revision + 1_000_000,) * 2
        perform(client, random_calls(4, 150), compactions=1)
        grown = Sight(client)
        saved = save(kvorum.address, tmp_path / "grown")
    # And a snapshot with the mark in it is like any other, for etcd too.
    done("etcdutl", "snapshot", "restore", saved, "--data-dir", tmp_path / "etcd", *ETCD_RESTORE)
    with running_etcd(tmp_path / "etcd") as etcd, connected(etcd.address) as oracle:
        assert Sight(oracle) == grown
    with running_kvorum(tmp_path / "new") as kvorum, connected(kvorum.address) as client:
        assert Sight(client) == grown


def test_a_member_of_several_is_restored_with_the_ids_etcd_gives(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "one") as kvorum, connected(kvorum.address) as client:
        perform(client, random_calls(5, 20))
        saved = save(kvorum.address, tmp_path / "saved")
    names = {name: f"http://127.0.0.1:{port}" for port, name in enumerate("ab", 10_000)}
    cluster = ",".join(f"{name}={url}" for name, url in names.items())
    for name, url in names.items():
        flags = (
            *("--name", name, "--initial-cluster", cluster, "--initial-cluster-token=x"),
            *("--initial-advertise-peer-urls", url),
        )
        for program in ("kvorumutl", "etcdutl"):
            where = ("--data-dir", tmp_path / program / name)
            done(program, "snapshot", "restore", saved, *flags, *where)
        ours, theirs = (tmp_path / each / name / "member" for each in ("kvorumutl", "etcdutl"))
        assert [path.name for path in (ours / "snap").iterdir()] == [
            path.name for path in (theirs / "snap").glob("*.snap")
        ]
        assert logged(ours / "wal") == logged(theirs / "wal")


def test_a_database_without_its_checksum_is_restored_only_if_that_is_asked_for(
    tmp_path: Path,
) -> None:
    with running_etcd(tmp_path / "etcd") as etcd, connected(etcd.address) as oracle:
        perform(oracle, random_calls(6, 50))
        sight = Sight(oracle)
    database = tmp_path / "etcd" / "member" / "snap" / "db"
    arguments = ("snapshot", "restore", database, "--data-dir", tmp_path / "kvorum")
    expected = (1, "snapshot missing hash but --skip-hash-check=false")
    assert refusal(*arguments) == expected
    assert not (tmp_path / "kvorum").exists()
    done("kvorumutl", *arguments, "--skip-hash-check=true", "--wal-dir", tmp_path / "log")
    assert not (tmp_path / "kvorum" / "member" / "wal").exists()
    flags = [f"--wal-dir={tmp_path / 'log'}"]
    with running_kvorum(tmp_path / "kvorum", *flags) as kvorum, connected(kvorum.address) as client:
        assert Sight(client) == sight
