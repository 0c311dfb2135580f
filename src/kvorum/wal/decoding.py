"""The bytes of one segment turned into records, and how damage is judged.

The data of a segment ends at a length word of zero or at the end of the file. Damage is one of two
things. A *tear* is what a power cut leaves of a batch that was never synced: in the last segment, a
record that the file is too short for, or one with a sector of nothing but zeros, or data behind the
end. Nothing behind a tear proves that it was synced, and one flipped bit does not explain it. A
tear may be cut off. Everything else is corruption of durable data, and is refused.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend

from kvorum.api.codec import read_varint
from kvorum.files import Files, Opening
from kvorum.wal.errors import CorruptLogError
from kvorum.wal.flips import find_flipped_bit
from kvorum.wal.framing import CRC, ENTRY, METADATA, RECORD_NAMES, SNAPSHOT, STATE
from kvorum.wal.segments import is_zero_from

SECTOR_BYTES = 512
# What a segment begins with; durable before the file has its name.
HEAD = {0: CRC, 1: METADATA}

_read_word = Struct("<Q").unpack_from
_LENGTH_MASK = (1 << 56) - 1

PIECE_BYTES = 1 << 20
"""How much of a segment is read at a time."""


def _size(files: Files, path: str) -> int:
    descriptor = files.open(path, Opening.READ)
    try:
        return files.size(descriptor)
    finally:
        files.close(descriptor)


class Record(NamedTuple):
    """A record as it lies in its file."""

    type: int
    data: bytes
    offset: int
    number: int


class Tear(NamedTuple):
    """The end of what is readable in the last segment: the rest has to be cut off."""

    path: str
    offset: int
    record: int
    problem: str
    bytes_lost: int

    def __str__(self) -> str:
        return (
            f"{self.path}: record {self.record} at offset {self.offset}: {self.problem}; "
            f"the {self.bytes_lost} bytes from there on were promised to nobody"
        )


class _Body(NamedTuple):
    type: int
    crc: int
    data: bytes


def _parse_body(segment: bytes, start: int, end: int) -> _Body | None:
    """Read a walpb.Record in its usual form; None if it has another."""
    try:
        if segment[start] != 0x08 or segment[start + 2] != 0x10:
            return None
        kind = segment[start + 1]
        crc, offset = read_varint(segment, start + 3)
        if offset == end:
            return _Body(kind, crc, b"")
        if segment[offset] != 0x1A:
            return None
        length, offset = read_varint(segment, offset + 1)
    except (IndexError, ValueError):
        return None
    if offset + length != end:
        return None
    return _Body(kind, crc, segment[offset:end])


def _whole_length(segment: bytes, start: int, crc: int) -> int | None:
    """Return a record's length according to its own fields; None if it is incomplete."""
    try:
        if segment[start] != 0x08 or segment[start + 2] != 0x10:
            return None
        stored, offset = read_varint(segment, start + 3)
        if segment[offset] != 0x1A:
            return None
        length, offset = read_varint(segment, offset + 1)
    except (IndexError, ValueError):
        return None
    end = offset + length
    if end > len(segment) or extend(crc, segment[offset:end]) != stored:
        return None
    return end - start


def _has_empty_sector(segment: bytes, start: int, end: int) -> bool:
    while start < end:
        stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        if segment.count(0, start, stop) == stop - start:
            return True
        start = stop
    return False


class SegmentScanner:
    """Yields the records of a segment; afterwards `end`, `crc` and `tear` say how it ended."""

    __slots__ = (
        "_files",
        "_is_last",
        "_size",
        "_skim",
        "crc",
        "durable_end",
        "end",
        "number",
        "path",
        "segment",
        "start",
        "tear",
    )

    def __init__(
        self,
        path: str,
        segment: bytes,
        crc: int | None,
        *,
        is_last: bool,
        files: Files | None = None,
        skim: "Callable[[SegmentScanner], None] | None" = None,
    ) -> None:
        """Scan bytes; with `files`, the whole file, of which they are the beginning or nothing.

        `skim` may move it on. It is called behind each record but an entry, and where more of the
        file was read.
        """
        self.path = path
        self.crc = crc
        """The running checksum; None before the first segment that is read."""
        self.end = 0
        self.durable_end = 0
        """Records before this were synced before others behind it were written.

        A batch is entries and then at most one state. So an entry behind a state is of a later
        batch than the entry before the state; the state itself may not have been synced by etcd.
        """
        self.number = 0
        self.tear: Tear | None = None
        self.segment = segment
        """The part of the file that is in memory: a whole one would be new memory each time."""
        self.start = 0
        """Where that part begins."""
        self._files = files
        self._size = len(segment) if files is None else _size(files, path)
        self._is_last = is_last
        self._skim = skim

    def __iter__(self) -> Iterator[Record]:
        skim = self._skim
        kinds, before = (0, 0), 0
        while (offset := self.end) + 8 <= (size := self._size):
            if self._look(offset, 8):
                if skim is not None:
                    skim(self)
                    kinds = (0, 0)
                continue
            crc = self.crc or 0
            (word,) = _read_word(self.segment, offset - self.start)
            if not word:
                break
            length = word & _LENGTH_MASK
            start = offset + 8
            end = start + length
            stop = end + -length % 8
            if stop > size:
                self._check_length(crc, start, length)
                self._damage(f"{length} bytes long, but the file has {size - start} more")
                return
            if word >> 56 != (0x80 | stop - end if stop > end else 0):
                raise self._corrupt(f"the length word is {word:#018x}")
            if self._look(offset, stop - offset):
                if skim is not None:
                    skim(self)
                    kinds = (0, 0)
                continue
            body = _parse_body(self.segment, start - self.start, end - self.start)
            if body is None:
                self._check_length(crc, start, length)
                self._damage("not a record", start, stop)
                return
            kind, stored, data = body
            if kind == CRC:
                if self.crc is not None and self.crc != stored:
                    raise self._corrupt(
                        f"the checksum of the segments before is {self.crc:#010x}, "
                        f"but this one continues {stored:#010x}"
                    )
                crc = stored
            else:
                crc = extend(crc, data)
                if crc != stored:
                    self._damage(f"checksum {crc:#010x}, but {stored:#010x} stored", start, stop)
                    return
            if kind not in RECORD_NAMES or HEAD.get(self.number, kind) != kind:
                raise self._corrupt(f"a record of type {kind} has no place here")
            yield Record(kind, data, offset, self.number)
            if kind == ENTRY and kinds == (ENTRY, STATE):
                self.durable_end = before
            kinds, before = (kinds[1], kind), offset
            self.crc = crc
            self.number += 1
            self.end = stop
            if skim is not None and kind != ENTRY:
                skim(self)
                if self.end != stop:
                    kinds = (0, 0)
        self._end_of_data()

    def _look(self, offset: int, length: int) -> bool:
        """Have so many bytes in memory; return whether they had to be read."""
        if offset + length <= self.start + len(self.segment):
            return False
        self.segment = self._read(offset, max(length, PIECE_BYTES))
        self.start = offset
        if len(self.segment) < length:
            # A running member has cut off the zeros at the end meanwhile.
            self._size = offset + len(self.segment)
        return True

    def _load(self) -> None:
        """Have the whole file in memory, to judge damage."""
        if len(self.segment) < self._size:
            self.segment = self._read(0, self._size)
            self.start = 0

    def _read(self, offset: int, length: int) -> bytes:
        assert self._files is not None, "all there is was given"
        descriptor = self._files.open(self.path, Opening.READ)
        try:
            return self._files.pread(descriptor, offset, length)
        finally:
            self._files.close(descriptor)

    def _is_zero_from(self, offset: int) -> bool:
        while offset < self._size:
            self._look(offset, 1)
            if not is_zero_from(self.segment, offset - self.start):
                return False
            offset = self.start + len(self.segment)
        return True

    def _end_of_data(self) -> None:
        if self.number < len(HEAD):
            raise self._corrupt("the file ends before its checksum and metadata")
        if not self._is_zero_from(self.end):
            # A lost sector is all zeros from here on, not just in its length word.
            sector_end = self.end - self.end % SECTOR_BYTES + SECTOR_BYTES
            self._damage("no record, but data behind it", self.end, sector_end)

    def _check_length(self, crc: int, start: int, length: int) -> None:
        """Refuse a length that is wrong though the record itself is whole: no power cut does that.

        The length word is not covered by the checksum, but the record's fields give its length,
        too.
        """
        self._load()
        whole = _whole_length(self.segment, start, crc)
        if whole is not None and whole != length:
            raise self._corrupt(f"{length} bytes long, but the record there has {whole}")

    def _damage(self, problem: str, start: int = 0, stop: int = 0) -> None:
        """Treat it as a tear if it can be one: a record cut short, or with an empty sector."""
        if not self._is_last:
            raise self._corrupt(f"{problem}, and this is not the last segment")
        if self.number < len(HEAD):
            raise self._corrupt(f"{problem}, though it was durable before the file had its name")
        self._load()
        if stop and not _has_empty_sector(self.segment, start, stop):
            raise self._corrupt(problem)
        proof = _written_later(self.segment, self.end)
        if proof is not None:
            raise self._corrupt(
                f"{problem}, though the record at offset {proof} was written after it was durable"
            )
        flipped = find_flipped_bit(self.segment, self.end, self.crc or 0)
        if flipped is not None:
            raise self._corrupt(f"{problem}; with bit {flipped} flipped back it is whole")
        self.tear_here(problem)

    def tear_here(self, problem: str) -> None:
        """Note that the segment has to be cut off behind the last good record."""
        self._load()
        lost = len(self.segment.rstrip(b"\0")) - self.end
        self.tear = Tear(self.path, self.end, self.number, problem, max(0, lost))

    def _corrupt(self, problem: str) -> CorruptLogError:
        return CorruptLogError(self.path, self.end, self.number, problem)


def unproved_checksum(path: str, segment: bytes) -> int | None:
    """Return the checksum a segment begins with, if nothing in it proves the one before durable.

    That is a head without the checksum at its end, and nothing behind it: a writer that leaves this
    checksum out may have cut the segment although its last batch had failed. None otherwise.
    """
    scanner = SegmentScanner(path, segment, None, is_last=True)
    checksum: int | None = None
    kinds = []
    try:
        for record in scanner:
            kinds.append(record.type)
            if record.number == 1:
                checksum = scanner.crc
    except CorruptLogError:
        return None
    is_bare = kinds in ([CRC, METADATA], [CRC, METADATA, STATE]) and scanner.tear is None
    return checksum if is_bare else None


def _written_later(segment: bytes, damaged: int) -> int | None:
    """Find a record that could only be written when the damaged place was already durable.

    A batch is entries and then at most one state, and it is synced before the next batch is
    written; a snapshot record is synced too. So an entry that follows a state that follows an
    entry, or anything behind a snapshot, belongs to a batch after the damaged one. States alone are
    not synced and prove nothing. Records count if their checksum continues that of the one before.
    """
    size = len(segment.rstrip(b"\0"))
    entry_seen = state_seen = snapshot_seen = False
    position = damaged + 8
    while position < size:
        chain = list(_chain(segment, position))
        if len(chain) < 2:
            position += 8
            continue
        for offset, kind, stop in chain:
            if snapshot_seen or (state_seen and kind == ENTRY):
                return offset
            snapshot_seen = kind == SNAPSHOT
            state_seen = state_seen or (entry_seen and kind == STATE)
            entry_seen = entry_seen or kind == ENTRY
            position = stop
    return None


def _chain(segment: bytes, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield offset, type and end of records from a place on, as long as checksums continue."""
    crc: int | None = None
    while position + 8 <= len(segment):
        (word,) = _read_word(segment, position)
        length = word & _LENGTH_MASK
        end = position + 8 + length
        stop = end + -length % 8
        if not word or stop > len(segment):
            return
        body = _parse_body(segment, position + 8, end)
        if body is None or body.type not in RECORD_NAMES:
            return
        if crc is not None and extend(crc, body.data) != body.crc:
            return
        yield position, body.type, stop
        crc = body.crc
        position = stop
