"""Both directions with a real etcd: its directory reads here, and ours there."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import InternalRaftRequest, Metadata, PutRequest
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import HardState, Snapshot
from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap import WriteSnap, load_newest
from kvorum.storage.wal import (
    Log,
    LogContent,
    LogLockedError,
    SnapshotRecord,
    create_log,
    open_log,
    read_log,
    valid_snapshots,
)
from kvorum.storage.wal.version import minimal_etcd_version
from tests.etcd import binary, is_target, running_etcd
from tests.storage.wal.etcd import PUTS, value_of
from tests.waiting import WAIT_SECONDS_MAX

FILES = RealFiles()


def newest_snapshot(member: Path) -> Snapshot:
    valid = {(each.index, each.term) for each in valid_snapshots(FILES, str(member / "wal"))}
    snapshot, broken = load_newest(FILES, str(member / "snap"), valid)
    assert snapshot is not None and broken == []
    return snapshot


def puts_of(entries: list[Entry]) -> dict[bytes, bytes]:
    found = {}
    for entry in entries:
        if entry.type == EntryType.NORMAL and b"key" in entry.data:
            request = InternalRaftRequest.FromString(entry.data)
            found[request.put.key] = request.put.value
    return found


EXPECTED = {b"key %d" % number: value_of(number) for number in range(PUTS)}


def test_etcds_log_reads_completely(etcd_directory: Path) -> None:
    wal = str(etcd_directory / "member" / "wal")
    content = read_log(FILES, wal, SnapshotRecord())
    assert content.tear is None
    assert Metadata.FromString(content.metadata).NodeID
    assert [entry.index for entry in content.entries] == list(range(1, len(content.entries) + 1))
    assert puts_of(content.entries) == EXPECTED
    assert content.state.commit == len(content.entries)
    # 3.5 still writes requests of version 2 about the cluster, which ask for no newer etcd.
    assert minimal_etcd_version(content.entries) == ((3, 5) if is_target() else (3, 0))


def test_etcds_snapshots_and_the_log_after_them(etcd_directory: Path) -> None:
    member = etcd_directory / "member"
    snapshot = newest_snapshot(member)
    records = valid_snapshots(FILES, str(member / "wal"))
    assert records[0] == SnapshotRecord()
    assert len(records) > 2
    assert records[-1] == SnapshotRecord(snapshot.index, snapshot.term, snapshot.conf_state)
    whole = read_log(FILES, str(member / "wal"), SnapshotRecord())
    after = read_log(FILES, str(member / "wal"), records[-1])
    assert after.entries == whole.entries[snapshot.index :]
    assert after.state == whole.state


def test_we_and_etcd_lock_each_other_out(etcd_directory: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(etcd_directory, directory)
    wal, start = str(directory / "member" / "wal"), newest_snapshot(directory / "member")
    record = SnapshotRecord(start.index, start.term)
    with running_etcd(directory), pytest.raises(LogLockedError, match="locked by another"):
        open_log(FILES, wal, record)
    log, _ = open_log(FILES, wal, record)
    flags = [
        "--unsafe-no-fsync",
        f"--data-dir={directory}",
        "--listen-peer-urls=http://127.0.0.1:0",
    ]
    ended = subprocess.run(
        [binary("etcd"), *flags], capture_output=True, timeout=WAIT_SECONDS_MAX, check=False
    )
    assert b"file already locked" in ended.stderr
    log.close().run(FILES)


def put_entry(term: int, index: int, key: bytes, value: bytes) -> Entry:
    request = InternalRaftRequest(put=PutRequest(key=key, value=value))
    request.header.ID = index
    return Entry(0, term, index, request.SerializeToString())


def write_directory(source: Path, target: Path, segment_bytes: int) -> tuple[Log, LogContent]:
    """Write the log and snapshot of a member anew, in many segments; take etcd's database."""
    content = read_log(FILES, str(source / "member" / "wal"), SnapshotRecord())
    snapshot = newest_snapshot(source / "member")
    snap, wal = target / "member" / "snap", target / "member" / "wal"
    snap.mkdir(parents=True, mode=0o700)
    target.chmod(0o700)
    shutil.copy(source / "member" / "snap" / "db", snap)
    log = create_log(FILES, str(wal), content.metadata, segment_bytes)
    for entry in content.entries:
        prepare = log.prepare()
        if prepare is not None:
            log.take_spare(prepare.run(FILES))
        state = HardState(entry.term, content.state.vote, entry.index)
        jobs = [log.save(state, [entry])]
        if entry.index == snapshot.index:
            WriteSnap(str(snap), snapshot).run(FILES)
            jobs.append(log.save_snapshot(snapshot.index, snapshot.term, snapshot.conf_state))
        for job in [*jobs, log.cut()]:
            if job is not None:
                job.run(FILES)
    return log, content


@pytest.mark.parametrize("segment_bytes", [4096, 64_000_000])
def test_etcd_starts_from_a_directory_of_ours(
    etcd_directory: Path, tmp_path: Path, segment_bytes: int
) -> None:
    directory = tmp_path / "ours"
    log, content = write_directory(etcd_directory, directory, segment_bytes)
    term, last = content.state.term, len(content.entries)
    # Entries that only our log has: etcd must replay them.
    batch = [put_entry(term, last + 1 + each, b"our key %d" % each, b"new") for each in range(5)]
    append = log.save(HardState(term, content.state.vote, last + len(batch)), batch)
    assert append is not None
    append.run(FILES)
    log.close().run(FILES)
    segments = list((directory / "member" / "wal").glob("*.wal"))
    assert len(segments) > 3 if segment_bytes == 4096 else len(segments) == 1
    with running_etcd(directory) as etcd:
        for key, value in EXPECTED.items():
            assert etcd.get(key) == value
        assert all(etcd.get(entry_key) == b"new" for entry_key in [b"our key 0", b"our key 4"])
        etcd.put(b"their key", b"too")
    # And it goes on in our files, which we still can read.
    start = newest_snapshot(directory / "member")
    again = read_log(
        FILES, str(directory / "member" / "wal"), SnapshotRecord(start.index, start.term)
    )
    assert again.entries[: last - start.index] == content.entries[start.index :]
    assert puts_of(again.entries)[b"their key"] == b"too"


@pytest.mark.usefixtures("old_etcd")
def test_etcds_tool_reads_a_directory_of_ours(etcd_directory: Path, tmp_path: Path) -> None:
    directory, backup = tmp_path / "ours", tmp_path / "backup"
    log, content = write_directory(etcd_directory, directory, 4096)
    log.close().run(FILES)
    command = [
        str(binary("etcdutl")),
        "backup",
        f"--data-dir={directory}",
        f"--backup-dir={backup}",
    ]
    ended = subprocess.run([*command, "--with-v3"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    # The tool wrote what it read from our log into a new one.
    start = newest_snapshot(backup / "member")
    copy = read_log(FILES, str(backup / "member" / "wal"), SnapshotRecord(start.index, start.term))
    assert copy.state.commit == content.state.commit
    assert puts_of(copy.entries) == puts_of(content.entries[start.index :])
