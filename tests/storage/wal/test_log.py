"""The writer's side: what must be durable, where it goes, and when a segment ends."""

import select
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import (
    Compare,
    InternalRaftRequest,
    LeaseCheckpointRequest,
    TxnRequest,
)
from kvorum.network.edge import open_edge
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import ConfState, HardState
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import SEGMENT_BYTES, Log, SnapshotRecord, create_log, open_log, read_log
from kvorum.storage.wal.segments import list_segments
from kvorum.storage.wal.version import minimal_etcd_version
from tests.waiting import WAIT_SECONDS_MAX

WAL = "/wal"


def entries(first: int, count: int, term: int = 1, length: int = 20) -> list[Entry]:
    return [Entry(0, term, first + each, b"d" * length) for each in range(count)]


def run(files: MemoryFiles, job: object) -> None:
    assert job is not None
    job.run(files)  # type: ignore[attr-defined]


@pytest.fixture
def calls() -> list[DiskCall]:
    return []


@pytest.fixture
def files(calls: list[DiskCall]) -> MemoryFiles:
    return MemoryFiles(calls.append)


@pytest.fixture
def log(files: MemoryFiles, calls: list[DiskCall]) -> Log:
    log = create_log(files, WAL, b"whose", 4096)
    calls.clear()
    return log


def test_a_batch_is_one_write_and_one_sync(
    log: Log, files: MemoryFiles, calls: list[DiskCall]
) -> None:
    run(files, log.save(HardState(1, 2, 3), entries(1, 20)))
    assert [call.name for call in calls] == ["pwrite", "fdatasync"]
    content = read_log(files, WAL, SnapshotRecord())
    assert (content.entries, content.state) == (entries(1, 20), HardState(1, 2, 3))


def test_what_must_be_durable(log: Log, files: MemoryFiles) -> None:
    assert log.save(None, []) is None
    run(files, log.save(HardState(1, 0, 0), []))  # a term
    run(files, log.save(HardState(1, 3, 0), []))  # a vote
    run(files, log.save(HardState(1, 3, 0), entries(1, 2)))
    assert log.save(HardState(1, 3, 1), []) is None  # a commit index alone
    assert read_log(files, WAL, SnapshotRecord()).state == HardState(1, 3, 0)
    run(files, log.save(None, entries(3, 1)))
    assert read_log(files, WAL, SnapshotRecord()).state == HardState(1, 3, 1)
    assert log.flush() is None
    assert log.save(HardState(1, 3, 2), []) is None
    run(files, log.flush())
    assert read_log(files, WAL, SnapshotRecord()).state == HardState(1, 3, 2)


def test_the_commit_that_makes_a_received_snapshot_count(log: Log, files: MemoryFiles) -> None:
    run(files, log.save(HardState(1, 1, 0), []))
    run(files, log.save_snapshot(50, 1, ConfState((1,))))
    run(files, log.save(HardState(1, 1, 50), []))
    assert read_log(files, WAL, SnapshotRecord(50, 1)).state.commit == 50
    assert log.save(HardState(1, 1, 50), []) is None


def test_the_record_of_an_own_snapshot_may_come_between(log: Log, files: MemoryFiles) -> None:
    run(files, log.save(HardState(1, 1, 2), entries(1, 3)))
    run(files, log.save_snapshot(50, 1, ConfState((1,))))
    run(files, log.save_snapshot(2, 1, ConfState((1,))))
    run(files, log.save(HardState(1, 1, 50), []))
    assert read_log(files, WAL, SnapshotRecord(50, 1)).state.commit == 50


def test_later_entries_replace_earlier_ones(log: Log, files: MemoryFiles) -> None:
    run(files, log.save(HardState(1, 1, 2), entries(1, 9)))
    run(files, log.save(HardState(2, 1, 2), entries(4, 2, term=2)))
    content = read_log(files, WAL, SnapshotRecord())
    assert content.entries == [*entries(1, 3), *entries(4, 2, term=2)]


def test_cut(log: Log, files: MemoryFiles, calls: list[DiskCall]) -> None:
    assert log.cut() is None
    run(files, log.save(HardState(1, 1, 0), entries(1, 5, length=1000)))
    assert log.cut() is None, "the next segment is not ready; this one grows"
    prepare = log.prepare()
    assert prepare is not None
    log.take_spare(prepare.run(files))
    assert log.prepare() is None
    assert files.list(WAL) == ["0.tmp", "0000000000000000-0000000000000000.wal"]
    calls.clear()
    run(files, log.cut())
    names = [call.name for call in calls]
    assert names == ["truncate", "pwrite", "fdatasync", "rename", "sync_directory"]
    run(files, log.save(HardState(2, 1, 0), entries(6, 1)))
    first, second = list_segments(files, WAL)
    assert (second.number, second.index) == (1, 6)
    assert read_file(files, f"{WAL}/{first.name}")[-8:] != bytes(8), "no zeros are left"
    content = read_log(files, WAL, SnapshotRecord())
    assert content.entries == [*entries(1, 5, length=1000), *entries(6, 1)]
    run(files, log.close())
    assert files.open_descriptors() == 0


def fill(log: Log, files: MemoryFiles, segments: int) -> None:
    for number in range(segments):
        prepare = log.prepare()
        assert prepare is not None
        log.take_spare(prepare.run(files))
        run(files, log.save(HardState(1, 1, 0), entries(1 + 5 * number, 5, length=1000)))
        run(files, log.cut())


def test_release_keeps_what_a_start_from_the_snapshot_reads(log: Log, files: MemoryFiles) -> None:
    fill(log, files, 4)  # the segments begin at 0, 6, 11, 16 and 21
    assert log.release_to(5) is None
    job = log.release_to(12)
    assert job is not None and len(job.descriptors) == 2
    run(files, log.save_snapshot(12, 1, ConfState((1,))))
    run(files, log.save(HardState(1, 1, 20), []))
    job.run(files)
    for segment in list_segments(files, WAL)[:2]:
        files.unlink(f"{WAL}/{segment.name}")
    expected = [*entries(13, 8, length=1000)]
    assert read_log(files, WAL, SnapshotRecord(12, 1)).entries == expected
    run(files, log.close())
    again, content = open_log(files, WAL, SnapshotRecord(12, 1), 4096)
    assert content.entries == expected
    assert again.release_to(12) is None


def test_a_prepared_segment_that_fails_leaves_nothing_and_may_be_tried_again(
    log: Log, files: MemoryFiles
) -> None:
    prepare = log.prepare()
    assert prepare is not None
    files.bytes_max = 5000
    with pytest.raises(OSError, match=r"0\.tmp"):
        prepare.run(files)
    assert files.list(WAL) == ["0000000000000000-0000000000000000.wal"]
    files.bytes_max = None
    log.take_spare(prepare.run(files))


def test_the_real_disk(tmp_path: Path) -> None:
    """The segment is preallocated to its full length, and private."""
    files, wal = RealFiles(), tmp_path / "wal"
    log = create_log(files, str(wal), b"whose")
    prepare = log.prepare()
    assert prepare is not None
    log.take_spare(prepare.run(files))
    job = log.save(HardState(1, 1, 1), entries(1, 100))
    assert job is not None
    job.run(files)
    (path,) = wal.glob("*.wal")
    assert path.name == "0000000000000000-0000000000000000.wal"
    assert path.stat().st_size == SEGMENT_BYTES == 64_000_000
    assert path.stat().st_blocks * 512 >= SEGMENT_BYTES
    assert path.stat().st_mode & 0o777 == 0o600 and wal.stat().st_mode & 0o777 == 0o700
    log.close().run(files)
    assert [each.name for each in wal.iterdir()] == [path.name]
    log, content = open_log(files, str(wal), SnapshotRecord())
    assert content.entries == entries(1, 100)
    log.close().run(files)


def test_the_oldest_etcd_that_understands_the_entries() -> None:
    def normal(request: InternalRaftRequest) -> Entry:
        return Entry(EntryType.NORMAL, 1, 1, request.SerializeToString())

    put = InternalRaftRequest()
    put.put.key = b"key"
    checkpoint = InternalRaftRequest(lease_checkpoint=LeaseCheckpointRequest())
    until = InternalRaftRequest(
        txn=TxnRequest(compare=[Compare(range_end=b"\0", target=Compare.VERSION)])
    )
    test = InternalRaftRequest()
    test.downgrade_version_test.ver = "9.8.7"
    version_2 = Entry(EntryType.NORMAL, 1, 1, b"\x08\x07\x12\x03PUT")
    assert minimal_etcd_version([]) == (3, 0)
    assert minimal_etcd_version([Entry(0, 1, 1), version_2, normal(put)]) == (3, 0)
    assert minimal_etcd_version([normal(put), normal(checkpoint)]) == (3, 4)
    assert minimal_etcd_version([normal(until)]) == (3, 3)
    assert minimal_etcd_version([normal(test)]) == (9, 8)
    with pytest.raises(ValueError, match="entry 7 holds no request"):
        minimal_etcd_version([Entry(EntryType.NORMAL, 1, 7, b"\xff\xff")])


def test_the_edges_log_writer_takes_a_batch(tmp_path: Path) -> None:
    files, wal = RealFiles(), str(tmp_path / "wal")
    log = create_log(files, wal, b"whose", 4096)
    edge = open_edge([], [])
    batches = [log.save(HardState(1, 1, 0), entries(1, 3)), log.save(None, entries(4, 2))]
    numbers = [edge.write_log(*batch, True) for batch in batches if batch is not None]
    done: list[tuple[int, int]] = []
    poller = select.poll()
    poller.register(edge.fileno(), select.POLLIN)
    while len(done) < 2:
        done += [(number, error) for number, error, _, _ in edge.written()]
        if len(done) < 2 and edge.announce_sleep():
            assert poller.poll(WAIT_SECONDS_MAX * 1000), "the log's writer has not ended"
            edge.awake()
    edge.stop()
    assert done == [(number, 0) for number in numbers]
    assert read_log(files, wal, SnapshotRecord()).entries == entries(1, 5)
    log.close().run(files)
