"""Decodes the records of one segment, and classifies damage.

The data of a segment ends at a length word of zero or at the end of the file. Damage is a tear or
corruption. A power cut leaves a *tear* of a batch that was never synced: in the last segment, a
record that extends beyond the end of the file, a record with a sector of only zeros, or data after
the end of records. No later record proves that a tear was synced, and no single flipped bit
explains it. Recovery may cut off a tear. All other damage is corruption of durable data, and the
member refuses to start.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend

from kvorum.api.codec import read_varint
from kvorum.storage.files import Files, Opening
from kvorum.storage.wal.errors import CorruptLogError
from kvorum.storage.wal.flips import find_flipped_bit
from kvorum.storage.wal.framing import CRC, ENTRY, METADATA, RECORD_NAMES, SNAPSHOT, STATE
from kvorum.storage.wal.segments import is_zero_from

SECTOR_BYTES = 512
# The types of a segment's first records, which are durable before the file has its name.
HEAD = {0: CRC, 1: METADATA}

_read_word = Struct("<Q").unpack_from
_LENGTH_MASK = (1 << 56) - 1

PIECE_BYTES = 1 << 20
"""Bytes of a segment to read at once."""


def _size(files: Files, path: str) -> int:
    descriptor = files.open(path, Opening.READ)
    try:
        return files.size(descriptor)
    finally:
        files.close(descriptor)


class LogRecord(NamedTuple):
    """A record and its place in its file."""

    type: int
    data: bytes
    offset: int
    number: int


class Tear(NamedTuple):
    """The place in the last segment from which the rest must be cut off."""

    path: str
    offset: int
    record: int
    problem: str
    bytes_lost: int

    def __str__(self) -> str:
        return (
            f"{self.path}: record {self.record} at offset {self.offset}: {self.problem}; "
            f"the {self.bytes_lost} bytes from there on were never acknowledged"
        )


class _Body(NamedTuple):
    type: int
    crc: int
    data: bytes


def _parse_body(segment: bytes, start: int, end: int) -> _Body | None:
    """Parse a walpb.Record in its usual form; return None for any other form."""
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
    """Return a record's length according to its own fields; None if the record is not whole."""
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
    """Yields the records of a segment; afterwards `end`, `crc` and `tear` describe its end."""

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
        """Scan `segment`, or with `files` the whole file, of which `segment` is a prefix.

        `skim` may advance the scanner. The scanner calls it after each record except entries, and
        after reading more of the file.
        """
        self.path = path
        self.crc = crc
        """The running checksum; None at the start of the first segment to be read."""
        self.end = 0
        self.durable_end = 0
        """The offset before which every record was synced before a later one was written.

        A batch is entries and then at most one state. An entry after a state thus belongs to a
        later batch than the entry before the state; etcd may not have synced the state itself.
        """
        self.number = 0
        self.tear: Tear | None = None
        self.segment = segment
        """The part of the file in memory; loading whole files would allocate memory each time."""
        self.start = 0
        """The offset of that part in the file."""
        self._files = files
        self._size = len(segment) if files is None else _size(files, path)
        self._is_last = is_last
        self._skim = skim

    def __iter__(self) -> Iterator[LogRecord]:
        skim = self._skim
        kinds, before = (0, 0), 0
        while (offset := self.end) + 8 <= (size := self._size):
            if self._ensure_loaded(offset, 8):
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
            if self._ensure_loaded(offset, stop - offset):
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
            yield LogRecord(kind, data, offset, self.number)
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

    def _ensure_loaded(self, offset: int, length: int) -> bool:
        """Ensure that bytes are in memory; return whether they had to be read."""
        if offset + length <= self.start + len(self.segment):
            return False
        self.segment = self._read(offset, max(length, PIECE_BYTES))
        self.start = offset
        if len(self.segment) < length:
            # A running member has meanwhile cut off the zeros at the end.
            self._size = offset + len(self.segment)
        return True

    def _load(self) -> None:
        """Load the whole file into memory, to classify damage."""
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
            self._ensure_loaded(offset, 1)
            if not is_zero_from(self.segment, offset - self.start):
                return False
            offset = self.start + len(self.segment)
        return True

    def _end_of_data(self) -> None:
        if self.number < len(HEAD):
            raise self._corrupt("the file ends before its checksum and metadata")
        if not self._is_zero_from(self.end):
            # A lost sector has only zeros from here on, not just a length word of zero.
            sector_end = self.end - self.end % SECTOR_BYTES + SECTOR_BYTES
            self._damage("no record, but data behind it", self.end, sector_end)

    def _check_length(self, crc: int, start: int, length: int) -> None:
        """Raise CorruptLogError for a wrong length of a whole record, which no power cut causes.

        The checksum does not cover the length word, but the record's fields give its length, too.
        """
        self._load()
        whole = _whole_length(self.segment, start, crc)
        if whole is not None and whole != length:
            raise self._corrupt(f"{length} bytes long, but the record there has {whole}")

    def _damage(self, problem: str, start: int = 0, stop: int = 0) -> None:
        """Record damage as a tear if a power cut explains it; otherwise raise CorruptLogError.

        A tear is a record cut short, or one with an empty sector.
        """
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
        """Record that the segment must be cut off after the last good record."""
        self._load()
        lost = len(self.segment.rstrip(b"\0")) - self.end
        self.tear = Tear(self.path, self.end, self.number, problem, max(0, lost))

    def _corrupt(self, problem: str) -> CorruptLogError:
        return CorruptLogError(self.path, self.end, self.number, problem)


def unproved_checksum(path: str, segment: bytes) -> int | None:
    """Return a segment's first checksum if nothing in it proves the previous segment durable.

    Such a segment has only a head, without the checksum at its end. A writer that omits this
    checksum may have cut the segment although its last batch had failed. Return None for any other
    segment.
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
    """Return the offset of a record that proves the damaged place durable; None if there is none.

    A batch is entries and then at most one state, and the writer syncs it before it writes the next
    batch; the writer also syncs snapshot records. An entry that follows a state that follows an
    entry, or any record after a snapshot, thus belongs to a batch after the damaged one. States
    alone are not synced and prove nothing. A record counts only if its checksum continues the
    previous record's.
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
    """Yield offset, type and end of records from a position on, while checksums continue."""
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
