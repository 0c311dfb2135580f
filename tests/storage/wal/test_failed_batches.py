"""A log whose last batch before a cut failed: how it is judged, and how it is not."""

import errno
from dataclasses import replace
from random import Random

import pytest

from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState
from kvorum.storage.files import Opening
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.wal import (
    CorruptLogError,
    CutSegment,
    LogContent,
    SnapshotRecord,
    create_log,
    open_log,
    read_log,
    valid_snapshots,
)
from kvorum.storage.wal.segments import list_segments

WAL = "/wal"
SIZE = 8192
CHECKPOINT_BYTES = 16


def entries(first: int, count: int, length: int = 700, term: int = 1) -> list[Entry]:
    return [Entry(0, term, index, b"%c" % index * length) for index in range(first, first + count)]


class Written:
    """Two full segments and a third with three batches: the next one of five entries fills it."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.log = create_log(self.files, WAL, b"whose", SIZE)
        self.entries: list[Entry] = []
        while len(list_segments(self.files, WAL)) < 3:
            self.append(entries(len(self.entries) + 1, 4))
        for _ in range(2):
            self.append(entries(len(self.entries) + 1, 4))

    def append(self, batch: list[Entry], *, vouched: bool = True) -> None:
        """Write a batch and cut the segment behind it if it is full; the batch may fail."""
        prepare = self.log.prepare()
        if prepare is not None:
            self.log.take_spare(prepare.run(self.files))
        job = self.log.save(HardState(1, 1, len(self.entries)), batch)
        assert job is not None
        cut = self.log.cut()
        try:
            job.run(self.files)
            self.entries += batch
        finally:
            self.files.before = self.files.bytes_max = None
            if cut is not None:
                (cut if vouched else without_checkpoint(cut)).run(self.files)

    def fail(self, *, vouched: bool = False) -> None:
        """Let the batch that crosses the end of what is allocated find no room."""
        self.files.bytes_max = self.files.used_bytes() + SIZE
        with pytest.raises(OSError, match="No space left"):
            self.append(entries(len(self.entries) + 1, 5, length=3000), vouched=vouched)
        self.files.kill()

    def opened(self) -> LogContent:
        log, content = open_log(self.files, WAL, SnapshotRecord(), SIZE)
        assert content.entries[: len(self.entries)] == self.entries
        self.log = log
        return content

    def goes_on(self) -> None:
        """Use the log, across the next cut, and find all of it after a power cut."""
        content = self.opened()
        assert [each.index for each in valid_snapshots(self.files, WAL)] == [0]
        self.entries = content.entries
        for _ in range(5):
            self.append(entries(len(self.entries) + 1, 4))
        disk = self.files.after_power_cut(lambda: False)
        found = read_log(disk, WAL, SnapshotRecord())
        assert (found.entries, found.tear, found.void) == (self.entries, None, None)

    def refused(self, text: str) -> None:
        with pytest.raises(CorruptLogError, match=text):
            open_log(self.files, WAL, SnapshotRecord(), SIZE)
        with pytest.raises(CorruptLogError, match=text):
            valid_snapshots(self.files, WAL)


def without_checkpoint(cut: CutSegment) -> CutSegment:
    """Return a cut whose head does not prove the segment before durable, as etcd makes it."""
    return replace(cut, head=cut.head[:-CHECKPOINT_BYTES])


def fail_syncs(call: DiskCall) -> None:
    if call.name == "fdatasync":
        raise OSError(errno.EIO, "Input/output error", call.path)


def test_a_cut_behind_a_batch_without_room_is_undone() -> None:
    written = Written()
    written.fail()
    last, void = list_segments(written.files, WAL)[-2:]
    head = read_file(written.files, f"{WAL}/{void.name}").rstrip(b"\0")
    content = written.opened()
    assert content.tear is not None and content.tear.path == f"{WAL}/{last.name}"
    assert content.void == void and content.segments[-1] == last
    assert list_segments(written.files, WAL)[-1] == last
    assert read_file(written.files, f"{WAL}/{void.name}.broken").rstrip(b"\0") == head
    written.files.kill()
    written.goes_on()


def test_a_power_cut_on_the_way_back_harms_nothing() -> None:
    written = Written()
    written.fail()
    images: list[MemoryFiles] = []
    random = Random(1)
    fates = [lambda: False, lambda: True, lambda: random.random() < 0.5]

    def before(_: DiskCall) -> None:
        images.extend(written.files.after_power_cut(survives) for survives in fates)

    written.files.before = before
    written.opened()
    acknowledged = list(written.entries)
    assert len(images) > 30
    for image in images:
        written.files, written.entries = image, acknowledged
        written.goes_on()


def test_a_segment_that_lost_its_end_is_refused_where_its_durability_is_vouched_for() -> None:
    written = Written()
    written.fail(vouched=True)
    written.refused("not the last segment")


def test_a_segment_that_lost_its_end_is_refused_where_the_log_went_on() -> None:
    written = Written()
    written.files.bytes_max = written.files.used_bytes() + SIZE
    with pytest.raises(OSError, match="No space left"):
        written.append(entries(len(written.entries) + 1, 5, length=3000), vouched=False)
    job = written.log.save(None, [Entry(0, 1, len(written.entries) + 6, b"later")])
    assert job is not None
    job.run(written.files)
    written.files.kill()
    written.refused("not the last segment")


def test_a_flipped_bit_before_a_cut_is_refused() -> None:
    """Whether or not the head after it proves it durable."""
    for vouched in (True, False):
        written = Written()
        written.append(entries(len(written.entries) + 1, 5), vouched=vouched)
        written.files.kill()
        before, last = list_segments(written.files, WAL)[-2:]
        assert last.index == len(written.entries) + 1
        path = f"{WAL}/{before.name}"
        written.files.flip(path, len(read_file(written.files, path)) - 100, 4)
        written.refused("not the last segment" if vouched else "flipped back|checksum")


def test_an_older_segment_that_lost_its_end_is_refused() -> None:
    written = Written()
    written.append(entries(len(written.entries) + 1, 5), vouched=False)
    written.files.kill()
    path = f"{WAL}/{list_segments(written.files, WAL)[0].name}"
    descriptor = written.files.open(path, Opening.WRITE)
    written.files.truncate(descriptor, SIZE - 1000)
    written.refused("not the last segment")


def test_what_a_failed_sync_left_before_a_cut_becomes_durable() -> None:
    written = Written()
    batch = entries(len(written.entries) + 1, 5)
    written.files.before = fail_syncs
    with pytest.raises(OSError, match="Input/output error"):
        written.append(batch, vouched=False)
    written.files.kill()
    content = written.opened()
    assert (content.entries, content.void) == ([*written.entries, *batch], None)
    disk = written.files.after_power_cut(lambda: False)
    assert read_log(disk, WAL, SnapshotRecord()).entries == content.entries


def test_what_a_failed_sync_lost_before_a_cut_is_cut_off() -> None:
    written = Written()
    written.files.before = fail_syncs
    with pytest.raises(OSError, match="Input/output error"):
        written.append(entries(len(written.entries) + 1, 5), vouched=False)
    written.files = written.files.after_power_cut(lambda: False)
    content = written.opened()
    assert content.entries == written.entries and content.void is not None
    written.files.kill()
    written.goes_on()
