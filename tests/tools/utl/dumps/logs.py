"""Logs written by hand, from histories in which entries replace others, in several segments."""

from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from kvorum.api.codec import length_delimited, varint
from kvorum.api.pb.etcdserverpb import InternalRaftRequest, Metadata, PutRequest
from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState
from kvorum.storage.wal.framing import Framer

METADATA = Metadata(NodeID=0xA1, ClusterID=0xC2).SerializeToString()


def v2_request(method: bytes, path: bytes, value: bytes) -> bytes:
    """Return a request of version 2 as etcd 3.5 writes it: every field, set or not."""
    texts = ((0x12, method), (0x1A, path), (0x22, value))
    beginning = b"\x08\x05" + b"".join(length_delimited(bytes([tag]), text) for tag, text in texts)
    rest = b"".join(bytes([number << 3]) + varint(0) for number in (5, 7, 9, 10, 11, 12, 13, 14))
    return beginning + length_delimited(b"\x32", b"") + rest + b"\x78" + varint(1_234_567_890)


def _put(key: bytes, value: bytes) -> bytes:
    request = InternalRaftRequest(put=PutRequest(key=key, value=value))
    request.header.ID = 7
    return request.SerializeToString()


DATA = st.one_of(
    st.just(b""),
    st.builds(_put, st.binary(max_size=20), st.binary(max_size=700)),
    st.builds(
        v2_request,
        st.sampled_from([b"PUT", b"QGET", b"DELETE", b"SYNC"]),
        st.binary(max_size=200),
        st.binary(max_size=200),
    ),
    st.just(b"\xff\xff"),
)


@dataclass
class Batch:
    """What is written at once: so many entries are taken back, and these follow."""

    taken_back: int
    data: list[bytes]
    is_cut: bool
    """Whether a new segment follows."""


BATCHES = st.lists(
    st.builds(Batch, st.integers(0, 3), st.lists(DATA, min_size=1, max_size=4), st.booleans()),
    min_size=1,
    max_size=8,
)


@dataclass
class WrittenLog:
    """A data directory with a log, and what it says."""

    directory: Path
    entries: list[Entry] = field(default_factory=list)

    @property
    def wal(self) -> Path:
        return self.directory / "member" / "wal"

    @property
    def segments(self) -> list[Path]:
        return sorted(self.wal.glob("*.wal"))


def write_log(directory: Path, batches: list[Batch], padding_bytes: int = 4096) -> WrittenLog:
    """Make a log; behind its end the last segment has room, as a member leaves it."""
    log = WrittenLog(directory)
    log.wal.mkdir(parents=True, exist_ok=True)
    (directory / "member" / "snap").mkdir(exist_ok=True)
    for left in log.segments:
        left.unlink()
    framer, number, first, term = Framer(0), 0, 0, 1
    content = framer.checkpoint() + framer.metadata(METADATA) + framer.snapshot(0, 0, None)
    for batch in batches:
        if batch.taken_back:
            term += 1
            del log.entries[max(0, len(log.entries) - batch.taken_back) :]
        made = [
            Entry(0, term, len(log.entries) + 1 + place, data)
            for place, data in enumerate(batch.data)
        ]
        log.entries += made
        content += framer.batch(made, HardState(term, 0xA1, 0))
        if batch.is_cut:
            (log.wal / f"{number:016x}-{first:016x}.wal").write_bytes(content)
            number, first = number + 1, len(log.entries) + 1
            content = framer.checkpoint() + framer.metadata(METADATA)
            content += framer.batch((), HardState(term, 0xA1, 0)) + framer.checkpoint()
    (log.wal / f"{number:016x}-{first:016x}.wal").write_bytes(content + bytes(padding_bytes))
    return log
