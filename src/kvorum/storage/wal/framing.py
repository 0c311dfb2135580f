"""Encodes records as walpb.Record in frames, each with a checksum of all data up to it.

A frame is a length word, the record, and zeros up to a multiple of eight bytes, so that no length
word ever straddles two sectors. The checksum, CRC-32C, covers only the data of records, through all
segments from the first on; a record has the checksum's value after its own data. This module
handles only bytes: the caller knows the file and writes.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from google_crc32c import extend

from kvorum.api.codec import CONTINUED, length_delimited, varint
from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, HardState
from kvorum.raft.wire import encode_conf_state

METADATA: Final = 1
ENTRY: Final = 2
STATE: Final = 3
CRC: Final = 4
SNAPSHOT: Final = 5
RECORD_NAMES: Final = {
    METADATA: "metadata",
    ENTRY: "entry",
    STATE: "state",
    CRC: "crc",
    SNAPSHOT: "snapshot",
}

_pack_word: Final = Struct("<Q").pack
# Indexed by the length modulo eight: the top byte of the length word, and the zeros.
_PADDING_MARK: Final = tuple((0x80 | 8 - rest) << 56 if rest else 0 for rest in range(8))
_PADDING: Final = tuple(bytes(-rest % 8) for rest in range(8))


def _frame(record: bytes) -> bytes:
    length = len(record)
    return _pack_word(length | _PADDING_MARK[length & 7]) + record + _PADDING[length & 7]


def _frame_data(kind: int, crc: int, data: bytes) -> bytes:
    return _frame(b"\x08%c\x10%b\x1a%b%b" % (kind, varint(crc), varint(len(data)), data))


# Nearly every checksum takes five bytes. The bytes around it and the data then depend only on the
# type and the length of the data, and a lookup of these bytes takes half the time of encoding them.
_FIVE_BYTES: Final = 1 << 28
_CONTINUED: Final = CONTINUED
_FINAL: Final = tuple(bytes((high,)) for high in range(1 << 4))


def _shape(kind: int, length: int) -> tuple[bytes, bytes, bytes]:
    framed = _frame_data(kind, _FIVE_BYTES, bytes(length))
    start = 16 + 1 + len(varint(length))
    return framed[:11], framed[16:start], framed[start + length :]


# Filled as lengths occur: most never do, and filling all of them would delay the start.
_ENTRY_SHAPES: Final[list[tuple[bytes, bytes, bytes] | None]] = [None] * 2048
_STATE_SHAPES: Final = tuple(_shape(STATE, length) for length in range(34))


class Framer:
    """Frames records in sequence and keeps the running checksum."""

    __slots__ = ("_prefix", "_term", "_vote", "crc")

    def __init__(self, crc: int) -> None:
        self.crc = crc
        # The encoded beginning of a state, valid while only the commit index changes.
        self._term = self._vote = -1
        self._prefix = b""

    def checkpoint(self) -> bytes:
        """Return the checksum record, which covers everything before it.

        Every segment begins with one, and the heads of later segments also end with one.
        """
        return _frame(b"\x08%c\x10%b" % (CRC, varint(self.crc)))

    def _record(self, kind: int, data: bytes) -> bytes:
        self.crc = extend(self.crc, data)
        return _frame_data(kind, self.crc, data)

    def metadata(self, data: bytes) -> bytes:
        """Return the record that identifies the member and cluster of the log."""
        return self._record(METADATA, data)

    def snapshot(self, index: int, term: int, conf_state: ConfState | None) -> bytes:
        """Return the record of a snapshot; only the snapshot at index 0 has no members."""
        assert index == 0 or (conf_state is not None and conf_state.voters), (index, conf_state)
        data = b"\x08%b\x10%b" % (varint(index), varint(term))
        if conf_state is not None:
            data += length_delimited(b"\x1a", encode_conf_state(conf_state))
        return self._record(SNAPSHOT, data)

    def batch(self, entries: Sequence[Entry], state: HardState | None) -> bytes:
        """Return the records of entries, followed by the record of the state if given.

        Each entry has its type even if that is zero, because etcd's tools expect it.
        """
        crc = self.crc
        frames: list[bytes] = []
        entry_type = term = -1
        prefix = b""
        # This loop is inlined because it runs once for every entry that the member accepts.
        for entry in entries:
            if entry.term != term or entry.type != entry_type:
                entry_type, term = entry.type, entry.term
                prefix = b"\x08%c\x10%b\x18" % (entry_type, varint(term))
            data = entry.data
            if data:
                data = b"%b%b\x22%b%b" % (prefix, varint(entry.index), varint(len(data)), data)
            else:
                data = prefix + varint(entry.index)
            crc = extend(crc, data)
            if crc >= _FIVE_BYTES and len(data) < len(_ENTRY_SHAPES):
                shape = _ENTRY_SHAPES[len(data)]
                if shape is None:
                    shape = _ENTRY_SHAPES[len(data)] = _shape(ENTRY, len(data))
                before, between, behind = shape
                frames += (
                    before,
                    _CONTINUED[crc & 0x3FFF],
                    _CONTINUED[crc >> 14 & 0x3FFF],
                    _FINAL[crc >> 28],
                    between,
                    data,
                    behind,
                )
            else:
                frames.append(_frame_data(ENTRY, crc, data))
        if state is not None:
            term, vote, commit = state
            if term != self._term or vote != self._vote:
                self._term, self._vote = term, vote
                self._prefix = b"\x08%b\x10%b\x18" % (varint(term), varint(vote))
            data = self._prefix + varint(commit)
            crc = extend(crc, data)
            if crc >= _FIVE_BYTES:
                before, between, behind = _STATE_SHAPES[len(data)]
                frames += (
                    before,
                    _CONTINUED[crc & 0x3FFF],
                    _CONTINUED[crc >> 14 & 0x3FFF],
                    _FINAL[crc >> 28],
                    between,
                    data,
                    behind,
                )
            else:
                frames.append(_frame_data(STATE, crc, data))
        self.crc = crc
        return b"".join(frames)
