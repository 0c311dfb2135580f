"""Members of etcd taken over with everything they acknowledged, and given back."""

import shutil
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    InternalRaftRequest,
    MemberListRequest,
    PutRequest,
    RangeRequest,
)
from kvorum.raft.entries import EntryType
from kvorum.state.apply.incompatible_entries import describe_foreign, is_v2_request
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import SnapshotRecord, read_log
from kvorum.tools.utl.v2_requests import translate_entry
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.tools.utl.commands import done, refusal
from tests.tools.utl.history import Sight, ask, connected, perform, random_calls
from tests.waiting import WAIT_SECONDS_MAX

WRITERS = 4


def content_of(directory: Path) -> dict[str, str]:
    """Return what is in every file, but for LMDB's table of readers."""
    return {
        str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.endswith("-lock")
    }


def write_until_killed(address: str, kill: Callable[[], None]) -> dict[bytes, int]:
    """Put from several clients and kill the server; return the revisions that it acknowledged.

    The last put of each client is left out: etcd 3.5.1 answers before it has written its log.
    """
    acknowledged: dict[bytes, int] = {}
    enough = threading.Barrier(WRITERS + 1, timeout=WAIT_SECONDS_MAX)

    def write(writer: int) -> None:
        revisions: list[tuple[bytes, int]] = []
        with connected(address) as client:
            while True:
                key = b"w%d/%05d" % (writer, len(revisions))
                found = client.ask("KV/Put", PutRequest(key=key, value=key * 3))
                if isinstance(found, Status):
                    break
                revisions.append((key, found.header.revision))  # type: ignore[attr-defined]
                if len(revisions) == 50:
                    enough.wait()
        acknowledged.update(revisions[:-1])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    enough.wait()
    kill()
    for thread in threads:
        thread.join()
    return acknowledged


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--snapshot-count=50",)], ids=["log", "snapshots"])
def test_a_killed_etcd_is_taken_over_and_given_back(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source, copy, ours = tmp_path / "source", tmp_path / "copy", tmp_path / "ours"
    with running_etcd(source, *flags) as etcd:
        with connected(etcd.address) as oracle:
            perform(oracle, random_calls(7, 400), compactions=1)
        acknowledged = write_until_killed(etcd.address, etcd.process.kill)
    shutil.copytree(source, copy)
    before = content_of(source)
    done("kvorumutl", "migrate", "--data-dir", source, "--output-dir", ours)
    assert content_of(source) == before
    with running_etcd(copy) as etcd, connected(etcd.address) as oracle:
        expected = Sight(oracle)
        members = ask(oracle, "Cluster/MemberList", MemberListRequest())
    with running_kvorum(ours) as kvorum, connected(kvorum.address) as client:
        for key, revision in acknowledged.items():
            (found,) = ask(client, "KV/Range", RangeRequest(key=key)).kvs
            assert (found.mod_revision, found.value) == (revision, key * 3)
        # Nothing else either: what a real etcd makes of the same files is what we make of them.
        assert Sight(client) == expected
        mine = ask(client, "Cluster/MemberList", MemberListRequest())
        assert [member.ID for member in mine.members] == [member.ID for member in members.members]
        assert mine.header.cluster_id == members.header.cluster_id
        perform(client, random_calls(8, 200), compactions=1)
        grown = Sight(client)
    before = content_of(ours)
    back = ("migrate", "--data-dir", ours, "--output-dir", tmp_path / "back", "--to-etcd")
    done("kvorumutl", *back, "--target-version", "3.5")
    assert content_of(ours) == before
    with running_etcd(tmp_path / "back") as etcd, connected(etcd.address) as oracle:
        assert Sight(oracle) == grown
        perform(oracle, random_calls(9, 50))


@pytest.mark.long
def test_a_killed_kvorum_is_given_to_etcd(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    with running_kvorum(ours) as kvorum:
        # The version of the cluster is in the database before this ends, which 3.5 must not see.
        with connected(kvorum.address) as client:
            perform(client, random_calls(10, 200), compactions=1)
        acknowledged = write_until_killed(kvorum.address, kvorum.process.kill)
    done(
        *("kvorumutl", "migrate", "--to-etcd", "--target-version=3.5"),
        *("--data-dir", ours, "--output-dir", tmp_path / "etcd"),
    )
    with running_etcd(tmp_path / "etcd") as etcd, connected(etcd.address) as oracle:
        for key, revision in acknowledged.items():
            (found,) = ask(oracle, "KV/Range", RangeRequest(key=key)).kvs
            assert (found.mod_revision, found.value) == (revision, key * 3)
        expected = Sight(oracle)
    with running_kvorum(ours) as kvorum, connected(kvorum.address) as client:
        assert Sight(client) == expected


def test_a_received_database_that_waits_to_be_installed_counts(tmp_path: Path) -> None:
    source, early = tmp_path / "source", tmp_path / "early"
    snap = source / "member" / "snap"
    with running_etcd(source) as etcd:
        etcd.put(b"early", b"value")
    shutil.copy(snap / "db", early)
    with running_etcd(source, "--snapshot-count=20") as etcd, connected(etcd.address) as oracle:
        perform(oracle, random_calls(12, 100))
        expected = Sight(oracle)
    # As after a crash between the arrival of a leader's snapshot and its installation.
    index = max(path.stem.split("-")[1] for path in snap.glob("*.snap"))
    (snap / "db").rename(snap / f"{index}.snap.db")
    shutil.copy(early, snap / "db")
    migrate = ("migrate", "--data-dir", source, "--output-dir")
    done("kvorumutl", *migrate, tmp_path / "ours")
    with running_kvorum(tmp_path / "ours") as kvorum, connected(kvorum.address) as client:
        assert Sight(client) == expected
    (snap / f"{index}.snap.db").unlink()
    code, text = refusal(*migrate, tmp_path / "other")
    assert code == 1 and f"{index}.snap.db is missing" in text
    assert not (tmp_path / "other").exists()


def test_a_log_elsewhere_is_found_and_goes_elsewhere(tmp_path: Path) -> None:
    source, wal = tmp_path / "source", tmp_path / "source-log"
    with running_etcd(source, f"--wal-dir={wal}") as etcd, connected(etcd.address) as oracle:
        perform(oracle, random_calls(11, 50))
        expected = Sight(oracle)
    ours, log = tmp_path / "ours", tmp_path / "ours-log"
    migrate = ("migrate", "--data-dir", source, "--output-dir", ours)
    code, text = refusal(*migrate)
    assert code == 1 and "--wal-dir" in text
    done("kvorumutl", *migrate, "--wal-dir", wal, "--output-wal-dir", log)
    flags = [f"--wal-dir={log}"]
    with running_kvorum(ours, *flags) as kvorum, connected(kvorum.address) as client:
        assert Sight(client) == expected


def test_running_members_are_refused(tmp_path: Path) -> None:
    out = ("--output-dir", tmp_path / "out")
    with running_etcd(tmp_path / "etcd"):
        code, text = refusal("migrate", "--data-dir", tmp_path / "etcd", *out)
        assert code == 1 and "stop the etcd" in text
    with running_kvorum(tmp_path / "ours"):
        code, text = refusal("migrate", "--to-etcd", "--data-dir", tmp_path / "ours", *out)
        assert code == 1 and "stop the kvorum" in text
        code, text = refusal("defrag", "--timeout=1ms", "--data-dir", tmp_path / "ours")
        assert code == 2 and "timeout" in text
    assert not (tmp_path / "out").exists()


def test_directories_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    arguments = ("migrate", "--data-dir", tmp_path / "empty", "--output-dir", tmp_path / "out")
    for flags, owner in (((), "an etcd"), (("--to-etcd",), "a kvorum")):
        code, text = refusal(*arguments, *flags)
        assert code == 1 and f"is not the data directory of {owner}" in text
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("old_etcd")
def test_requests_of_version_2_get_the_form_of_version_3(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        address = etcd.address
        etcd.put(b"key", b"value")
    wal = tmp_path / "etcd" / "member" / "wal"
    entries = read_log(RealFiles(), str(wal), SnapshotRecord()).entries
    old = [entry for entry in entries if is_v2_request(entry.data)]
    found = [InternalRaftRequest.FromString(translate_entry(entry).data) for entry in old]
    (published,) = [each for each in found if each.HasField("cluster_member_attr_set")]
    attributes = published.cluster_member_attr_set.member_attributes
    assert (attributes.name, list(attributes.client_urls)) == ("default", [f"http://{address}"])
    assert "3.5.0" in [each.cluster_version_set.ver for each in found]
    others = [entry for entry in entries if entry not in old]
    assert any(entry.type == EntryType.CONF_CHANGE for entry in others)
    assert [translate_entry(entry) for entry in others] == others
    for entry in old:
        said = describe_foreign(entry.data, ValueError())
        assert "etcd 3.5 and older" in said and "newer member" not in said
