"""What is a tear and what is corruption, case by case; and the texts of the errors."""

import errno
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, HardState
from kvorum.storage.files import Opening
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.wal import (
    AppendLog,
    CorruptLogError,
    LogExistsError,
    LogLockedError,
    SegmentsMissingError,
    SnapshotNotInLogError,
    SnapshotRecord,
    create_log,
    open_log,
    read_log,
    valid_snapshots,
)
from kvorum.storage.wal.decoding import SegmentScanner
from kvorum.storage.wal.flips import find_flipped_bit
from kvorum.storage.wal.framing import CRC, ENTRY, METADATA, SNAPSHOT, STATE, Framer
from kvorum.storage.wal.segments import Segment, list_segments

WAL = "/wal"
PATH = "/wal/0000000000000000-0000000000000000.wal"
SIZE = 64 * 1024


def entry(index: int, length: int = 100) -> Entry:
    return Entry(0, 1, index, bytes([index % 255 + 1]) * length)


class Written:
    """A log of batches of three entries and a state, and where each batch begins."""

    def __init__(self, batches: int, length: int = 100, segment_bytes: int = SIZE) -> None:
        self.files = MemoryFiles()
        self.log = create_log(self.files, WAL, b"whose", segment_bytes)
        self.offsets: list[int] = []
        self.entries: list[Entry] = []
        for batch in range(batches):
            first = 3 * batch + 1
            self.append([entry(first + each, length) for each in range(3)])
        self.files.kill()

    def append(self, batch: list[Entry]) -> None:
        prepare = self.log.prepare()
        if prepare is not None:
            self.log.take_spare(prepare.run(self.files))
        job = self.log.save(HardState(1, 1, batch[-1].index), batch)
        assert job is not None
        job.run(self.files)
        self.offsets.append(job.offset)
        self.entries += batch
        cut = self.log.cut()
        if cut is not None:
            cut.run(self.files)

    def overwrite(self, offset: int, data: bytes, path: str = PATH) -> None:
        descriptor = self.files.open(path, Opening.WRITE)
        self.files.pwrite(descriptor, offset, data)
        self.files.close(descriptor)

    def truncate(self, length: int, path: str = PATH) -> None:
        descriptor = self.files.open(path, Opening.WRITE)
        self.files.truncate(descriptor, length)
        self.files.close(descriptor)

    def repaired_to(self, batches: int) -> None:
        """Check that the log opens with that many batches whole, and that the rest was kept."""
        before = read_file(self.files, PATH)
        log, content = open_log(self.files, WAL, SnapshotRecord(), SIZE)
        kept = self.entries[: 3 * batches]
        assert content.entries[: len(kept)] == kept
        assert content.entries == self.entries[: len(content.entries)]
        assert content.tear is not None and content.tear.path == PATH
        assert content.tear.offset == content.end >= [*self.offsets, 0][batches]
        torn = before[content.end :].rstrip(b"\0")
        assert torn and read_file(self.files, f"{PATH}.broken") == bytes(content.end) + torn
        after = read_file(self.files, PATH)
        assert after == before[: content.end] + bytes(SIZE - content.end)
        log.close().run(self.files)
        assert read_log(self.files, WAL, SnapshotRecord()).tear is None

    def refuses(self, text: str) -> CorruptLogError:
        before = read_file(self.files, PATH)
        with pytest.raises(CorruptLogError, match=text) as raised:
            open_log(self.files, WAL, SnapshotRecord(), SIZE)
        assert read_file(self.files, PATH) == before
        assert self.files.open_descriptors() == 0
        return raised.value


def test_a_file_cut_inside_a_record_is_repaired() -> None:
    written = Written(3)
    written.truncate(written.offsets[2] + 50)
    written.repaired_to(2)


def test_no_flipped_bit_of_a_log_loses_what_was_durable() -> None:
    """A tear and a flipped bit look alike at the end of a log; only one of them may be cut off."""
    written = Written(2, length=150, segment_bytes=2048)
    length = len(read_file(written.files, PATH).rstrip(b"\0"))
    for bit in range(8 * written.offsets[1], 8 * length):
        written.files.flip(PATH, bit // 8, 1 << bit % 8)
        try:
            found = read_log(written.files, WAL, SnapshotRecord())
        except CorruptLogError:
            pass
        else:
            assert found.entries == written.entries, f"bit {bit}"
        written.files.flip(PATH, bit // 8, 1 << bit % 8)
    assert read_log(written.files, WAL, SnapshotRecord()).entries == written.entries


def with_zeros() -> tuple[Written, AppendLog]:
    """Return a log whose last batch is one entry with sectors of zeros of its own.

    Its length word is the last of a sector and has one bit; its data ends in zeros.
    """
    written = Written(0)
    log, content = open_log(written.files, WAL, SnapshotRecord(), SIZE)

    def framed(filler: int) -> int:
        batch = [Entry(0, 1, 1, b"f" * filler)]
        return content.end + len(Framer(content.crc).batch(batch, HardState(1, 1, 0)))

    filler = next(filler for filler in range(1000) if framed(filler) % 512 == 504)
    first = log.save(HardState(1, 1, 0), [Entry(0, 1, 1, b"f" * filler)])
    data = b"a" * 700 + bytes(1100) + b"b" * 600 + bytes(1100)
    last = log.save(None, [Entry(0, 1, 2, data.ljust(4096 - 20, b"\0"))])
    assert first is not None and last is not None
    assert last.offset % 512 == 504 and last.data[:8] == (1 << 12).to_bytes(8, "little")
    for job in (first, last):
        job.run(written.files)
    log.close().run(written.files)
    written.entries = read_log(written.files, WAL, SnapshotRecord()).entries
    return written, last


def test_no_flipped_bit_of_a_record_with_zeros_loses_it() -> None:
    """Its sectors of zeros are real content, and no sign of a tear."""
    written, last = with_zeros()
    bits = [*range(8 * 40), *range(8 * 40, 8 * len(last.data), 211)]
    for bit in (8 * last.offset + bit for bit in bits):
        written.files.flip(PATH, bit // 8, 1 << bit % 8)
        try:
            found = read_log(written.files, WAL, SnapshotRecord())
        except CorruptLogError:
            pass
        else:
            assert found.entries == written.entries, f"bit {bit}"
        written.files.flip(PATH, bit // 8, 1 << bit % 8)
    assert read_log(written.files, WAL, SnapshotRecord()).entries == written.entries


def test_every_lost_sector_of_a_record_with_zeros_is_a_tear() -> None:
    written, last = with_zeros()
    whole = read_file(written.files, PATH)
    end = last.offset + len(last.data)
    lost = 0
    for sector in range(last.offset // 512 * 512, end, 512):
        start, stop = max(sector, last.offset), min(sector + 512, end)
        if not whole[start:stop].strip(b"\0"):
            continue
        written.overwrite(start, bytes(stop - start))
        if start == last.offset:
            # One bit is all that this sector has of the batch: lost or flipped, it is the same.
            written.refuses("flipped back")
        else:
            lost += 1
            content = read_log(written.files, WAL, SnapshotRecord())
            assert content.tear is not None and content.entries == written.entries[:1]
        written.overwrite(start, whole[start:stop])
    assert lost >= 4


@given(
    before=st.integers(0, 0xFFFFFFFF),
    length=st.integers(1, 3000),
    seed=st.integers(0, 1000),
    place=st.floats(0, 1, exclude_max=True),
)
@settings(deadline=None)
@example(before=0, length=39, seed=0, place=0.203125)  # a checksum of more than 32 bits
def test_a_flipped_bit_is_found(before: int, length: int, seed: int, place: float) -> None:
    framer = Framer(before)
    data = Random(seed).randbytes(length)
    frame = framer.batch([Entry(0, 3, 1 << 40, data)], None)
    record_bits = 8 * (8 + (int.from_bytes(frame[:7], "little")))
    bit = int(place * record_bits)
    damaged = bytearray(b"before.." + frame)
    damaged[8 + bit // 8] ^= 1 << bit % 8
    found = find_flipped_bit(bytes(damaged), 8, before)
    # No checksum covers the type, and what is not covered cannot be detected.
    assert found == 64 + bit or bit // 8 == 9
    damaged[8 + (bit // 8 + 1) % (record_bits // 8)] ^= 0x42
    assert find_flipped_bit(bytes(damaged), 8, before) != 64 + bit


def test_a_failed_sync_is_made_good_by_the_next_start() -> None:
    """The system shows what it failed to write, and calls the next sync a success."""
    written = Written(2)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    batch = [entry(7)]
    job = log.save(HardState(1, 1, 6), batch)
    assert job is not None

    def before(call: DiskCall) -> None:
        if call.name == "fdatasync":
            raise OSError(errno.EIO, "Input/output error", call.path)

    written.files.before = before
    with pytest.raises(OSError, match="Input/output error"):
        job.run(written.files)
    written.files.before = None
    written.files.kill()
    _, content = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    assert content.entries == [*written.entries, *batch]
    disk = written.files.after_power_cut(lambda: False)
    assert read_log(disk, WAL, SnapshotRecord()).entries == content.entries


def test_a_record_with_an_empty_sector_is_repaired() -> None:
    written = Written(3, length=3000)
    sector = (written.offsets[2] + 1024) // 512 * 512
    written.overwrite(sector, bytes(512))
    written.repaired_to(2)


def test_data_behind_the_end_is_copied_and_wiped() -> None:
    written = Written(2)
    written.overwrite(SIZE // 2, b"garbage of a lost batch")
    written.repaired_to(2)
    content = read_log(written.files, WAL, SnapshotRecord())
    assert content.entries == written.entries
    assert read_file(written.files, f"{PATH}.broken").endswith(b"garbage of a lost batch")
    assert read_file(written.files, PATH)[content.end :].strip(b"\0") == b""


@pytest.mark.parametrize("damage", [bytes(100), b"\xff"])
def test_damage_smaller_than_a_sector_refuses(damage: bytes) -> None:
    written = Written(3, length=3000)
    written.overwrite(written.offsets[2] + 1024, damage)
    error = written.refuses("checksum 0x[0-9a-f]{8}, but 0x[0-9a-f]{8} stored")
    assert (error.path, error.offset) == (PATH, written.offsets[2])
    assert error.record == 2 + 1 + 2 * 4
    text = str(error)
    assert PATH in text and f"offset {error.offset}" in text and f"record {error.record}" in text
    assert "remove the member" in text


def test_an_empty_sector_before_batches_that_were_synced_refuses() -> None:
    """Etcd would drop everything from there on, though it was acknowledged."""
    written = Written(5, length=3000)
    sector = (written.offsets[1] + 1024) // 512 * 512
    written.overwrite(sector, bytes(512))
    written.refuses("written after it was durable")


def test_a_zero_length_word_before_batches_that_were_synced_refuses() -> None:
    written = Written(5)
    written.overwrite(written.offsets[1], bytes(8))
    written.refuses("no record, but data behind it")


def test_a_huge_length_before_batches_that_were_synced_refuses() -> None:
    written = Written(5)
    written.overwrite(written.offsets[1] + 5, b"\x01")
    written.refuses("but the record there has 118")


def test_a_snapshot_record_proves_too_that_what_is_before_it_was_synced() -> None:
    written = Written(2)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    for job in (log.save_snapshot(6, 1, ConfState((1,))), log.save(HardState(2, 1, 6), [])):
        assert job is not None
        job.run(written.files)
    log.close().run(written.files)
    written.overwrite(written.offsets[1], bytes(8))
    written.refuses("no record, but data behind it")


def test_lost_padding_marks_refuse() -> None:
    written = Written(3)
    written.overwrite(written.offsets[2] + 7, b"\x03")
    written.refuses("the length word is 0x03")


def test_damage_in_an_older_segment_refuses() -> None:
    written = Written(6, length=3000, segment_bytes=8192)
    first, second = list_segments(written.files, WAL)[:2]
    assert first.number == 0 and second.index == 4
    written.truncate(9000)
    written.refuses("not the last segment")


def test_a_segment_that_ends_early_does_not_fit_the_next() -> None:
    written = Written(6, length=3000, segment_bytes=8192)
    length = len(read_file(written.files, PATH))
    # The last record is the state; without it the file still ends at a record.
    *_, last = SegmentScanner(PATH, read_file(written.files, PATH), None, is_last=True)
    assert length - last.offset < 100
    written.truncate(last.offset)
    with pytest.raises(CorruptLogError, match="the checksum of the segments before is") as raised:
        read_log(written.files, WAL, SnapshotRecord())
    assert raised.value.path.endswith("0000000000000001-0000000000000004.wal")


def test_a_head_that_is_torn_refuses() -> None:
    written = Written(1)
    written.truncate(30)
    written.refuses("before the file had its name")
    written.truncate(0)
    written.refuses("ends before its checksum and metadata")


def test_a_missing_segment() -> None:
    written = Written(9, length=3000, segment_bytes=8192)
    names = [segment.name for segment in list_segments(written.files, WAL)]
    assert len(names) > 3
    written.files.unlink(f"{WAL}/{names[1]}")
    with pytest.raises(SegmentsMissingError, match=f"segment 1 between {names[0]} and {names[2]}"):
        read_log(written.files, WAL, SnapshotRecord())
    written.files.unlink(f"{WAL}/{names[0]}")
    with pytest.raises(SegmentsMissingError, match=r"begins at index 7 .* but index 0 is asked"):
        read_log(written.files, WAL, SnapshotRecord())
    assert [each.index for each in valid_snapshots(written.files, WAL)] == []


def test_no_log_at_all() -> None:
    files = MemoryFiles()
    for read in (read_log, open_log):
        with pytest.raises(SegmentsMissingError, match="there is no file of a log"):
            read(files, WAL, SnapshotRecord())
    with pytest.raises(SegmentsMissingError, match="there is no file of a log"):
        valid_snapshots(files, WAL)


def test_segments_of_another_member() -> None:
    files = MemoryFiles()
    log = create_log(files, WAL, b"whose", SIZE)
    log.close().run(files)
    framer = Framer(read_log(files, WAL, SnapshotRecord()).crc)
    write_file(
        files, f"{WAL}/{Segment(1, 1).name}", framer.checkpoint() + framer.metadata(b"other")
    )
    with pytest.raises(CorruptLogError, match="of another member or cluster") as raised:
        read_log(files, WAL, SnapshotRecord())
    assert (raised.value.record, raised.value.offset) == (1, 16)


def test_snapshots_the_log_does_not_know() -> None:
    written = Written(2)
    with pytest.raises(SnapshotNotInLogError, match="index 3, term 1: the log has none"):
        read_log(written.files, WAL, SnapshotRecord(3, 1))
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    log.save_snapshot(3, 1, ConfState((1,))).run(written.files)
    log.close().run(written.files)
    assert read_log(written.files, WAL, SnapshotRecord(3, 1)).entries == written.entries[3:]
    with pytest.raises(SnapshotNotInLogError, match="the log has one of term 1 at that index"):
        read_log(written.files, WAL, SnapshotRecord(3, 2))


def test_a_gap_between_entries_refuses() -> None:
    written = Written(1)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    job = log.save(HardState(1, 1, 3), [entry(5)])
    assert job is not None
    job.run(written.files)
    log.close().run(written.files)
    written.refuses("entry 5 follows entry 3; there is a gap")


def test_a_commit_index_behind_the_last_entry_refuses() -> None:
    written = Written(1)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    job = log.save(HardState(2, 1, 9), [])
    assert job is not None
    job.run(written.files)
    log.close().run(written.files)
    written.refuses("the log ends at index 3, but 9 was committed")


def test_a_log_is_opened_once_and_made_once() -> None:
    written = Written(1)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    with pytest.raises(LogLockedError, match=PATH):
        open_log(written.files, WAL, SnapshotRecord(), SIZE)
    with pytest.raises(LogExistsError, match="holds a log already"):
        create_log(written.files, WAL, b"whose", SIZE)
    log.close().run(written.files)
    assert written.files.open_descriptors() == 0


@pytest.mark.parametrize(
    ("kind", "becomes", "text"),
    [
        (STATE, ENTRY, "does not say how"),
        (STATE, SNAPSHOT, "not a readable snapshot"),
        (STATE, METADATA, "of another member or cluster"),
        (STATE, CRC, "the checksum of the segments before"),
        (ENTRY, STATE, "not a state in its only form"),
        (ENTRY, SNAPSHOT, "not a readable snapshot"),
        (ENTRY, 6, "a record of type 6 has no place here"),
        (SNAPSHOT, STATE, "not a state in its only form"),
    ],
)
def test_a_record_that_took_the_type_of_another(kind: int, becomes: int, text: str) -> None:
    """The checksum does not cover the type."""
    written = Written(2)
    records = SegmentScanner(PATH, read_file(written.files, PATH), None, is_last=True)
    offset = next(record.offset for record in records if record.type == kind)
    written.overwrite(offset + 9, bytes([becomes]))
    written.refuses(text)


@pytest.mark.parametrize(
    ("state", "batch", "text"),
    [
        (HardState(1, 1, 6), [Entry(0, 0, 7)], "term 0 follows term 1"),
        (HardState(1, 1, 6), [Entry(0, 2, 6)], "entry 6 would replace one, but 6 was committed"),
        (HardState(1, 1, 5), [Entry(0, 1, 7)], "goes back behind"),
        (HardState(0, 1, 6), [Entry(0, 1, 7)], "goes back behind"),
    ],
)
def test_what_raft_never_writes_refuses(state: HardState, batch: list[Entry], text: str) -> None:
    written = Written(2)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    job = log.save(state, batch)
    assert job is not None
    job.run(written.files)
    log.close().run(written.files)
    written.refuses(text)


def test_a_tear_may_leave_entries_of_a_term_that_no_state_tells_of() -> None:
    written = Written(2)
    log, _ = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    job = log.save(HardState(3, 0, 6), [Entry(0, 3, 7, b"d" * 600)])
    assert job is not None
    job.run(written.files)
    log.close().run(written.files)
    *_, state = SegmentScanner(PATH, read_file(written.files, PATH), None, is_last=True)
    written.truncate(state.offset + 8)
    log, content = open_log(written.files, WAL, SnapshotRecord(), SIZE)
    assert content.tear is not None
    assert (content.state.term, content.entries[-1].term) == (1, 3)
    # Whatever it does next in its old term can be read again.
    job = log.save(HardState(1, 2, 6), [])
    assert job is not None
    job.run(written.files)
    assert read_log(written.files, WAL, SnapshotRecord()).state == HardState(1, 2, 6)
