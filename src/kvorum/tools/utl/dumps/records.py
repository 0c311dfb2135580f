"""Read the records of a log in the order of its files, even damaged ones.

A member refuses damaged records. This reader continues after a wrong checksum, and leaves it to the
caller whether to trust the rest. Memory holds one record at a time.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from google.protobuf.message import DecodeError
from google_crc32c import extend

from kvorum.api.pb import walpb
from kvorum.storage.files import Files, Opening
from kvorum.storage.wal.decoding import SECTOR_BYTES
from kvorum.storage.wal.framing import CRC

_WINDOW_BYTES = 1 << 20
_LENGTH_MASK = (1 << 56) - 1
_word = Struct("<Q")


class DumpedRecord(NamedTuple):
    """A record, and its position."""

    type: int
    crc: int
    data: bytes
    segment: str
    offset: int
    is_right: bool
    """Whether its checksum continues the chain of those before."""

    @property
    def place(self) -> str:
        """The position, in words."""
        return f"{self.segment} at offset {self.offset}"


class ReadProblem(NamedTuple):
    """Why reading ended before the end of the log."""

    segment: str
    offset: int
    text: str
    is_torn: bool
    """Whether the last record is incomplete, as a power cut leaves it."""

    def __str__(self) -> str:
        return f"{self.segment} at offset {self.offset}: {self.text}"


class RecordReader:
    """Reads segments in order; afterwards `problem` has the reason for an early end, if any."""

    def __init__(self, files: Files, directory: str, names: Sequence[str]) -> None:
        self._files = files
        self._directory = directory
        self._names = names
        self.problem: ReadProblem | None = None

    def __iter__(self) -> Iterator[DumpedRecord]:
        crc = 0
        for name in self._names:
            is_last = name == self._names[-1]
            for kind, stored, data, offset, is_sparse in self._segment(name, is_last=is_last):
                is_right = True
                if kind == CRC:
                    is_right = crc in (0, stored)
                    crc = stored
                else:
                    crc = extend(crc, data)
                    is_right = crc == stored
                    if not is_right and is_last and is_sparse:
                        self.problem = ReadProblem(name, offset, "a sector of it was lost", True)
                        return
                yield DumpedRecord(kind, stored, data, name, offset, is_right)
            if self.problem is not None:
                return

    def _segment(self, name: str, *, is_last: bool) -> Iterator[tuple[int, int, bytes, int, bool]]:
        """Yield type, checksum, data, offset, and whether a sector holds only zeros."""
        window = _Window(self._files, f"{self._directory}/{name}")
        offset = 0
        while (word := window.read(offset, 8)) and any(word):
            if len(word) < 8:
                self.problem = ReadProblem(name, offset, "the file ends within a length", True)
                return
            (number,) = _word.unpack(word)
            length = number & _LENGTH_MASK
            stop = offset + 8 + length + (number >> 56 & 7 if number >> 63 else 0)
            if stop > window.size:
                text = f"{length} bytes long, but the file has {window.size - offset - 8} more"
                self.problem = ReadProblem(name, offset, text, True)
                return
            frame = window.read(offset + 8, stop - offset - 8)
            is_sparse = _has_empty_sector(frame, offset + 8)
            try:
                record = walpb.Record.FromString(frame[:length])
            except DecodeError:
                is_torn = is_last and is_sparse
                self.problem = ReadProblem(name, offset, "this is no record", is_torn)
                return
            yield record.type, record.crc, record.data, offset, is_sparse
            offset = stop


class _Window:
    """A file read in order, in large pieces; it is open only while a piece is read."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self.size = 0
        self._start = 0
        self._data = b""
        self._fill(0, _WINDOW_BYTES)

    def read(self, offset: int, length: int) -> bytes:
        """Return this many bytes; fewer only at the end of the file."""
        begin = offset - self._start
        if begin + length > len(self._data) and offset + length <= self.size:
            self._fill(offset, max(length, _WINDOW_BYTES))
            begin = 0
        return self._data[begin : begin + length]

    def _fill(self, offset: int, length: int) -> None:
        descriptor = self._files.open(self._path, Opening.READ)
        try:
            self.size = self._files.size(descriptor)
            self._start = offset
            self._data = self._files.pread(descriptor, offset, length)
        finally:
            self._files.close(descriptor)


def _has_empty_sector(frame: bytes, offset: int) -> bool:
    start = 0
    while start < len(frame):
        stop = min(len(frame), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        if not any(frame[start:stop]):
            return True
        start = stop
    return False
