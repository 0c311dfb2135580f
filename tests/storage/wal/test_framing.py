"""Frames against protobuf, against etcd's own bytes, and against the example of the format."""

from pathlib import Path

from google_crc32c import extend
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb import raftpb, walpb
from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, HardState
from kvorum.raft.wire import decode_entry, decode_hard_state, encode_entry
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal.decoding import SegmentScanner
from kvorum.storage.wal.framing import CRC, ENTRY, METADATA, SNAPSHOT, STATE, Framer
from kvorum.storage.wal.reading import SnapshotRecord, decode_snapshot_record
from tests.etcd import is_target

uint64 = st.integers(0, (1 << 64) - 1)
entries = st.lists(
    st.builds(Entry, st.integers(0, 2), uint64, uint64, st.binary(max_size=400)), max_size=8
)
nodes = st.lists(uint64, max_size=4).map(tuple)
members = st.builds(
    ConfState,
    st.lists(uint64, min_size=1, max_size=3).map(tuple),
    nodes,
    nodes,
    nodes,
    st.booleans(),
)


def framed_by_3_7(framer: Framer, entry: Entry) -> bytes:
    """Frame an entry as etcd 3.7 does: it leaves out a type of zero."""
    data = encode_entry(entry)
    framer.crc = extend(framer.crc, data)
    record = walpb.Record(type=ENTRY, crc=framer.crc, data=data).SerializeToString()
    padding = -len(record) % 8
    word = len(record) | ((0x80 | padding) << 56 if padding else 0)
    return word.to_bytes(8, "little") + record + bytes(padding)


def head(framer: Framer) -> bytes:
    return framer.checkpoint() + framer.metadata(b"whose")


@given(
    st.integers(0, (1 << 32) - 1), entries, st.builds(HardState, uint64, uint64, uint64), members
)
def test_frames_hold_what_protobuf_reads(
    crc: int, batch: list[Entry], state: HardState, conf_state: ConfState
) -> None:
    framer = Framer(crc)
    segment = head(framer) + framer.batch(batch, state)
    segment += framer.snapshot(7, 3, conf_state)
    assert len(segment) % 8 == 0
    records, offset = [], 0
    while offset < len(segment):
        length = int.from_bytes(segment[offset : offset + 7], "little")
        padding = segment[offset + 7] & 0x7F
        assert (segment[offset + 7] >> 7) == bool(padding) and (length + padding) % 8 == 0
        record = walpb.Record.FromString(segment[offset + 8 : offset + 8 + length])
        crc = record.crc if record.type == CRC else extend(crc, record.data)
        assert record.crc == crc
        records.append(record)
        offset += 8 + length + padding
    assert [record.type for record in records[:2]] == [CRC, METADATA]
    for entry, record in zip(batch, records[2:-2], strict=True):
        message = raftpb.Entry.FromString(record.data)
        assert record.type == ENTRY and message.HasField("Type")
        assert Entry(message.Type, message.Term, message.Index, message.Data) == entry
        assert decode_entry(record.data) == entry
    assert decode_hard_state(records[-2].data) == state
    snapshot = walpb.Snapshot.FromString(records[-1].data)
    assert (snapshot.index, snapshot.term) == (7, 3)
    assert tuple(snapshot.conf_state.voters) == conf_state.voters
    assert decode_snapshot_record(records[-1].data) == SnapshotRecord(7, 3, conf_state)


@given(st.one_of(st.none(), st.just(0)), entries)
def test_the_scanner_reads_what_was_framed(crc: int | None, batch: list[Entry]) -> None:
    framer = Framer(0)
    segment = head(framer) + framer.batch(batch, None)
    scanner = SegmentScanner("file", segment + bytes(512), crc, is_last=True)
    records = list(scanner)
    assert [decode_entry(record.data) for record in records[2:]] == batch
    assert (scanner.end, scanner.crc, scanner.tear) == (len(segment), framer.crc, None)
    assert [record.number for record in records] == list(range(len(records)))


def test_the_first_bytes_of_a_log() -> None:
    framer = Framer(0)
    metadata = bytes.fromhex("08fbfa8ba392e69eebdd0110b9aec4abb989e5f7a701")
    expected = """
        0400000000000084 0804100000000000
        2000000000000000 080110fcb588d4091a16 08fbfa8ba392e69eebdd0110b9aec4abb989e5f7a701
        0e00000000000082 080510a1efdecc0e1a04080010000000
    """
    segment = framer.checkpoint() + framer.metadata(metadata) + framer.snapshot(0, 0, None)
    assert segment == bytes.fromhex(expected)


def test_we_frame_etcds_records_byte_for_byte(etcd_directory: Path) -> None:
    (path,) = (etcd_directory / "member" / "wal").glob("*.wal")
    segment = read_file(RealFiles(), str(path))
    framer, framed = Framer(0), b""
    for kind, data, offset, _ in SegmentScanner("file", segment, None, is_last=True):
        assert offset == len(framed)
        if kind == CRC:
            framed += framer.checkpoint()
        elif kind == METADATA:
            framed += framer.metadata(data)
        elif kind == ENTRY:
            entry = decode_entry(data)
            framed += framed_by_3_7(framer, entry) if is_target() else framer.batch([entry], None)
        elif kind == STATE:
            framed += framer.batch((), decode_hard_state(data))
        elif kind == SNAPSHOT:
            known = decode_snapshot_record(data)
            conf_state = known.conf_state if known.index else None
            framed += framer.snapshot(known.index, known.term, conf_state)
    assert len(framed) > 10_000
    assert segment[: len(framed)] == framed


@given(entries)
def test_entries_as_etcd_3_7_writes_them(batch: list[Entry]) -> None:
    framer = Framer(0)
    segment = head(framer)
    for entry in batch:
        segment += framed_by_3_7(framer, entry)
    scanner = SegmentScanner("file", segment, None, is_last=True)
    assert [decode_entry(record.data) for record in list(scanner)[2:]] == batch
