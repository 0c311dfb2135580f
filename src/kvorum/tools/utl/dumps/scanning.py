"""Find rows of bucket `key` page by page, without the tree, even in a damaged database.

The scan reads every page in the order of page numbers, including free ones. So it may find deleted
rows, and may find a row twice. It reports unreadable parts, and continues.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple

from kvorum.storage.backend.bbolt.pages import (
    BUCKET_HEADER,
    ELEMENT_BYTES,
    HEADER_BYTES,
    IS_BUCKET,
    LEAF,
    LEAF_ELEMENT,
    META_BYTES,
    PAGE_BYTES,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    PAGE_HEADER,
    decode_meta,
)
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.encoding import CHECKSUM_BYTES, is_whole, parse_row_key
from kvorum.storage.files import Files, Opening

Warn = Callable[[str], None]

# LMDB: page number, unused, kind, and the start and end of the room between node offsets and nodes.
_LMDB_HEADER = Struct("<QHHHH")
# The length of the data in two halves, flags, the length of the key.
_LMDB_NODE = Struct("<HHHH")
_LMDB_PAGE_BYTES_AT, _LMDB_LEAF, _LMDB_OVERFLOW = 40, 0x02, 0x04
_IS_ELSEWHERE, _IS_TREE = 0x01, 0x02


class FoundRow(NamedTuple):
    """A row with its page, its position there, and the number of entries on the page."""

    page: int
    position: int
    entries: int
    key: bytes
    value: bytes


class FilePages:
    """An open file, read in pages of one size."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self.length = files.size(descriptor)
        self.page_bytes = PAGE_BYTES

    @property
    def count(self) -> int:
        """The number of whole pages."""
        return self.length // self.page_bytes

    def head(self, offset: int, length: int) -> bytes:
        """Return bytes regardless of the page size; fewer at the end of the file."""
        return self._files.pread(self._descriptor, offset, length)

    def read(self, number: int, count: int = 1) -> bytes:
        """Return this many pages; raise ValueError if the file ends before."""
        if not 0 < count <= self.count - number:
            raise ValueError(f"the file ends before page {number + count}")
        size = self.page_bytes
        return self._files.pread(self._descriptor, number * size, count * size)


@contextmanager
def open_pages(files: Files, path: str) -> Iterator[FilePages]:
    """Open a database file of either kind, even a damaged one."""
    descriptor = files.open(path, Opening.READ)
    try:
        yield FilePages(files, descriptor)
    finally:
        files.close(descriptor)


def etcd_rows(pages: FilePages, warn: Warn) -> Iterator[FoundRow]:
    """Scan a database of etcd's."""
    end = _etcd_page_count(pages, warn)
    number = 2
    while number < end:
        try:
            page = pages.read(number)
            own, kind, count, overflow = PAGE_HEADER.unpack_from(page)
            if own != number:
                raise ValueError(f"unexpected page id: {own}, wanted: {number}")
            if kind == LEAF and overflow:
                page = pages.read(number, overflow + 1)
        except ValueError as error:
            warn(f"Reading page {number} failed: {error}. Continuing...")
            number += 1
            continue
        if kind != LEAF:
            number += 1
            continue
        yield from _leaf_rows(page, number, count, warn)
        number += overflow + 1


def _etcd_page_count(pages: FilePages, warn: Warn) -> int:
    """Set the page size, and return the number of pages that were ever used."""
    sizes = [1 << bits for bits in range(PAGE_BYTES_MIN.bit_length() - 1, 17)]
    assert sizes[-1] == PAGE_BYTES_MAX
    metas = [decode_meta(pages.head(offset, META_BYTES)) for offset in (0, *sizes)]
    whole = [meta for meta in metas if meta is not None]
    if not whole:
        warn(f"Neither meta page is whole; taking pages to have {PAGE_BYTES} bytes. Continuing...")
        return pages.count
    newest = max(whole, key=lambda meta: meta.transaction)
    pages.page_bytes = newest.page_bytes
    return min(newest.page_count, pages.count)


def _leaf_rows(page: bytes, number: int, count: int, warn: Warn) -> Iterator[FoundRow]:
    foreign = 0
    for index in range(count):
        try:
            flags, key, value = _element(page, index)
            if flags & IS_BUCKET:
                if key == KEY and not BUCKET_HEADER.unpack_from(value)[0]:
                    # The content of a small bucket lies within its own entry.
                    inner = value[BUCKET_HEADER.size :]
                    yield from _leaf_rows(inner, number, PAGE_HEADER.unpack_from(inner)[2], warn)
                continue
        except (ValueError, IndexError) as error:
            warn(f"Reading entry {index} of page {number} failed: {error}. Continuing...")
            continue
        if _is_row_key(key):
            yield FoundRow(number, index, count, key, value)
        else:
            foreign += 1
    if foreign:
        warn(f"Entries of page {number} that are no rows: {foreign} of {count}. Continuing...")


def _element(page: bytes, index: int) -> tuple[int, bytes, bytes]:
    start = HEADER_BYTES + index * ELEMENT_BYTES
    if start + ELEMENT_BYTES > len(page):
        raise ValueError("it lies outside of the page")
    flags, position, key_bytes, value_bytes = LEAF_ELEMENT.unpack_from(page, start)
    begin = start + position
    middle = begin + key_bytes
    if middle + value_bytes > len(page):
        raise ValueError("it lies outside of the page")
    return flags, page[begin:middle], page[middle : middle + value_bytes]


def own_rows(pages: FilePages, warn: Warn) -> Iterator[FoundRow]:
    """Scan a database of ours; a row counts if its checksum is right."""
    size = int.from_bytes(pages.head(_LMDB_PAGE_BYTES_AT, 4), "little")
    if PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX and not size & size - 1:
        pages.page_bytes = size
    for number in range(2, pages.count):
        page = pages.read(number)
        own, _, kind, lower, _ = _LMDB_HEADER.unpack_from(page)
        # Only the first page of a large value has a header, so any other page may be data.
        if own == number and kind == _LMDB_LEAF:
            yield from _node_rows(pages, page, number, lower, warn)


def _node_rows(
    pages: FilePages, page: bytes, number: int, lower: int, warn: Warn
) -> Iterator[FoundRow]:
    header = _LMDB_HEADER.size
    offsets = page[header : min(max(lower, header), len(page))]
    count = len(offsets) // 2
    for index in range(count):
        start = int.from_bytes(offsets[2 * index : 2 * index + 2], "little")
        try:
            key, sealed = _node(pages, page, start)
        except ValueError as error:
            warn(f"Reading entry {index} of page {number} failed: {error}. Continuing...")
            continue
        if not _is_row_key(key):
            continue
        if is_whole(key, sealed):
            yield FoundRow(number, index, count, key, sealed[:-CHECKSUM_BYTES])
        else:
            warn(f"The checksum of row {key.hex()} on page {number} does not fit. Continuing...")


def _node(pages: FilePages, page: bytes, start: int) -> tuple[bytes, bytes]:
    begin = start + _LMDB_NODE.size
    if begin > len(page):
        raise ValueError("it lies outside of the page")
    low, high, flags, key_bytes = _LMDB_NODE.unpack_from(page, start)
    middle = begin + key_bytes
    length = low | high << 16
    if middle > len(page):
        raise ValueError("it lies outside of the page")
    key = page[begin:middle]
    if flags & _IS_TREE:
        return b"", b""
    if not flags & _IS_ELSEWHERE:
        if middle + length > len(page):
            raise ValueError("it lies outside of the page")
        return key, page[middle : middle + length]
    other = int.from_bytes(page[middle : middle + 8], "little")
    room = pages.read(other, -(-(_LMDB_HEADER.size + length) // pages.page_bytes))
    own, _, kind, _, _ = _LMDB_HEADER.unpack_from(room)
    if own != other or kind != _LMDB_OVERFLOW:
        raise ValueError(f"its value is not on page {other}")
    return key, room[_LMDB_HEADER.size : _LMDB_HEADER.size + length]


def _is_row_key(key: bytes) -> bool:
    try:
        parse_row_key(key)
    except ValueError:
        return False
    return True
