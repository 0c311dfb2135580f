"""Checks the pages of a database file before LMDB may use them.

LMDB trusts its file: a damaged page or a file that is too short kills the process that reads it.
This module therefore reads the meta pages and walks the trees of a commit from their roots. It
checks that every page lies within the file, has its own number and is used once; that the entries
of a page fill exactly the space that is not free; that keys ascend, within pages and against the
keys of branches; that all leaves are equally deep; that each database has as many pages and entries
as its record claims; and that no free page is in use. It does not read values, because each value
has a checksum that every read verifies.

The check does not detect later changes of the file. `rust/storage/src/pages.rs` does the same walk,
faster.
"""

from struct import Struct
from typing import Final, NamedTuple

from kvorum.storage.backend.buckets import BUCKETS
from kvorum.storage.backend.encoding import KEY_BYTES_MAX, is_whole
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.files import Files

_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_PAGE_BYTES_MIN: Final = 512
_PAGE_BYTES_MAX: Final = 1 << 16
_META_PAGES: Final = 2
_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_OVERFLOW: Final = 0x04
_META: Final = 0x08
_IS_BIG: Final = 0x01
_IS_DATABASE: Final = 0x02
_FREE_FLAGS: Final = (0x0008, 0x4008)
"""Flags of the free list: integer keys, and perhaps LMDB's flag for a file without directory."""
_NO_PAGE: Final = (1 << 64) - 1
_DEPTH_MAX: Final = 32
_MAP_BYTES_MAX: Final = 1 << 47
_MISSING_PAGES_MAX: Final = 1 << 20
"""A file may lack this many free pages at its end, plus as many pages as it has."""
# Number, padding, kind; then the start and end of a page's free space, or a count of pages.
_PAGE: Final = Struct("=QHHHH")
_OVERFLOW_PAGE: Final = Struct("=QHHI")
_HEAD: Final = Struct("=IIQQ")
# Bytes of a page, flags, levels; branches, leaves, pages of long values, entries, root.
_DATABASE: Final = Struct("=IHHQQQQQ")
_TAIL: Final = Struct("=QQ")
_NODE: Final = Struct("=HHHH")
_NUMBER: Final = Struct("=Q")
HEAD_BYTES: Final = _PAGE.size + _HEAD.size
_FREE_AT: Final = HEAD_BYTES
_MAIN_AT: Final = _FREE_AT + _DATABASE.size
_META_BYTES: Final = _MAIN_AT + _DATABASE.size + _TAIL.size

_FREE, _MAIN, _BUCKET = range(3)
"""Kinds of database: free lists by the commit that freed the pages; bucket records; a bucket."""
_META_PLACE: Final = "bucket meta"
_ROOMS: Final = ("levels", "branches", "leaves", "pages of long values", "entries")


class PageError(Exception):
    """Raised for a file that is not a whole database; the text names the damage."""


class Commit(NamedTuple):
    """A commit as its meta page describes it."""

    number: int
    page_bytes: int
    page_count: int
    """The number of pages, including free ones, some of which the file may lack."""
    free: bytes
    """The record of the database that lists free pages."""
    main: bytes
    """The record of the database that lists the buckets."""

    @property
    def has_free_pages(self) -> bool:
        """Whether the commit lists free pages; a copy never does."""
        root: int = _DATABASE.unpack(self.free)[7]
        return root != _NO_PAGE


def is_database(head: bytes) -> bool:
    """Return whether the first `HEAD_BYTES` of a file have a database's magic number."""
    return len(head) >= HEAD_BYTES and _HEAD.unpack_from(head, _PAGE.size)[0] == _MAGIC


def read_commits(files: Files, descriptor: int) -> list[Commit]:
    """Return the commits of a file's two meta pages, the newest last; raise PageError."""
    # One call reads both meta pages, because a member may commit meanwhile.
    head = files.pread(descriptor, 0, _PAGE_BYTES_MAX + _META_BYTES)
    length = files.size(descriptor)
    size = 0
    commits = []
    for number in range(_META_PAGES):
        meta = head[number * size : number * size + _META_BYTES]
        if len(meta) < _META_BYTES:
            raise PageError(f"it has {length} bytes, which is too short for a database")
        own, _, kind, _, _ = _PAGE.unpack_from(meta)
        magic, version, _, map_bytes = _HEAD.unpack_from(meta, _PAGE.size)
        if own != number or kind != _META or magic != _MAGIC or version != _DATA_VERSION:
            raise PageError(f"page {number} is not a meta page")
        free, main = (meta[at : at + _DATABASE.size] for at in (_FREE_AT, _MAIN_AT))
        page_bytes, flags, *_ = _DATABASE.unpack(free)
        size = size or page_bytes
        is_size = _PAGE_BYTES_MIN <= size <= _PAGE_BYTES_MAX and not size & size - 1
        if not is_size or page_bytes != size:
            raise PageError(f"meta page {number} says that pages have {page_bytes} bytes")
        last, transaction = _TAIL.unpack_from(meta, _MAIN_AT + _DATABASE.size)
        of_file = length // size
        if (
            flags not in _FREE_FLAGS
            or _DATABASE.unpack(main)[1]
            or (transaction and transaction & 1 != number)
            or not (last + 1) * size <= max(map_bytes, length) < _MAP_BYTES_MAX
            or not _META_PAGES <= last + 1 <= 2 * of_file + _MISSING_PAGES_MAX
        ):
            raise PageError(f"meta page {number} is damaged")
        commits.append(Commit(transaction, size, last + 1, free, main))
    commits.sort(key=lambda commit: commit.number)
    if commits[1].number - commits[0].number > 1:
        raise PageError(
            f"its meta pages are of the commits {commits[0].number} and {commits[1].number}"
        )
    return commits


def check_pages(
    files: Files,
    descriptor: int,
    commit: Commit,
    native: NativeRows | None,
    *,
    is_copy: bool = False,
) -> list[tuple[bytes, bytes]]:
    """Raise PageError if a commit is not whole; its pages must not change meanwhile.

    With `is_copy`, also verify the checksums of values and the presence of all buckets, and return
    the entries of bucket `meta`.
    """
    if native is not None:
        _, page_bytes, page_count, free, main = commit
        problem, found = native.check_pages(
            descriptor, page_bytes, page_count, free, main, list(BUCKETS), is_copy
        )
        if problem is not None:
            raise PageError(problem)
        return found
    return _Walk(files, descriptor, commit, is_copy=is_copy).run()


class _Walk:
    """The walk through one commit; `pages.rs` does the same."""

    def __init__(self, files: Files, descriptor: int, commit: Commit, *, is_copy: bool) -> None:
        self._files = files
        self._descriptor = descriptor
        self._commit = commit
        self._is_copy = is_copy
        self._length = files.size(descriptor)
        self._page_bytes = commit.page_bytes
        # One byte per page: whether a tree or the free list uses it.
        self._taken = bytearray(commit.page_count)
        self._taken[:_META_PAGES] = b"\1" * _META_PAGES

    def run(self) -> list[tuple[bytes, bytes]]:
        """Check the whole commit."""
        in_meta: list[tuple[bytes, bytes]] = []
        found = self._walk(self._commit.main, "the list of buckets", _MAIN)
        if [name for name, _ in found] != list(BUCKETS) and (self._is_copy or found):
            raise PageError("its buckets are not those of a member")
        for name, record in found:
            place = f"bucket {name.decode()}"
            flags = _DATABASE.unpack(record)[1]
            if flags:
                raise PageError(f"{place} is of kind {flags:#x}")
            in_meta += self._walk(record, place, _BUCKET)
        for _, value in self._walk(self._commit.free, "the list of free pages", _FREE):
            self._check_free(value)
        return in_meta

    def _walk(self, record: bytes, place: str, kind: int) -> list[tuple[bytes, bytes]]:
        """Check the pages of one database.

        Return the entries of a free list, of the bucket list, or of a copy's bucket `meta`.
        """
        _, _, *claimed, root = _DATABASE.unpack(record)
        found: list[tuple[bytes, bytes]] = []
        branches = leaves = overflows = entries = depth_of_leaves = 0
        last = b""
        # Pages still to visit, the next one last: number, least key, depth.
        waiting: list[tuple[int, bytes, int]] = [] if root == _NO_PAGE else [(root, b"", 1)]
        while waiting:
            number, least, depth = waiting.pop()
            of_page, page = self._page(number)
            if of_page != _LEAF and (of_page != _BRANCH or depth >= _DEPTH_MAX):
                raise PageError(f"page {number} is of kind {of_page:#x} at depth {depth}")
            nodes = self._nodes(number, page, is_leaf=of_page == _LEAF)
            # Every key before a branch's key must be less than it; later keys must not be.
            if least and not _is_less(kind, last, least):
                raise _unordered(number)
            if of_page == _BRANCH:
                branches += 1
                if len(nodes) < 2 and kind != _FREE:
                    raise PageError(f"page {number} leads to one page only")
                children: list[tuple[int, bytes, int]] = []
                for low, high, top, key, _ in nodes:
                    if len(key) > KEY_BYTES_MAX:
                        raise _unordered(number)
                    if children:
                        if not _is_key(kind, key) or not _is_less(kind, children[-1][1], key):
                            raise _unordered(number)
                        least = key
                    # LMDB gives the first key of a branch no meaning.
                    children.append((low | high << 16 | top << 32, least, depth + 1))
                waiting += reversed(children)
                continue
            leaves += 1
            if leaves > 1 and depth != depth_of_leaves:
                raise PageError(f"page {number} is at depth {depth}, not {depth_of_leaves}")
            depth_of_leaves = depth
            for low, high, flags, key, offset in nodes:
                length = low | high << 16
                if (
                    not _is_key(kind, key)
                    or (least and _is_less(kind, key, least))
                    or not _is_less(kind, last, key)
                ):
                    raise _unordered(number)
                last = key
                entries += 1
                if flags == _IS_BIG and kind != _MAIN:
                    value, count = self._overflow(page, offset, length, is_read=kind == _FREE)
                    overflows += count
                elif flags == (_IS_DATABASE if kind == _MAIN else 0):
                    value = page[offset : offset + length]
                else:
                    raise PageError(f"an entry of page {number} is of kind {flags:#x}")
                if kind == _BUCKET:
                    if self._is_copy and not is_whole(key, value):
                        raise PageError(f"the checksum of {key.hex()} in {place} does not fit")
                    if self._is_copy and place == _META_PLACE:
                        found.append((key, value))
                elif kind == _FREE or length == _DATABASE.size:
                    found.append((key, value))
                else:
                    raise _outside(number)
        counted = (depth_of_leaves, branches, leaves, overflows, entries)
        for claim, count, what in zip(claimed, counted, _ROOMS, strict=True):
            if claim != count:
                raise PageError(f"{place} has {count} {what} and should have {claim}")
        return found

    def _page(self, number: int) -> tuple[int, bytes]:
        self._take(number, 1)
        size = self._page_bytes
        page = self._files.pread(self._descriptor, number * size, size)
        own, _, kind, _, _ = _PAGE.unpack_from(page)
        if own != number:
            raise PageError(f"page {number} says that it is page {own}")
        return kind, page

    def _take(self, number: int, count: int) -> None:
        end = min(self._commit.page_count, self._length // self._page_bytes)
        if number < _META_PAGES or number + count > end:
            raise PageError(f"page {number} is not within the file of {self._length} bytes")
        if any(self._taken[number : number + count]):
            raise PageError(f"page {number} is used twice")
        self._taken[number : number + count] = b"\1" * count

    def _nodes(
        self, number: int, page: bytes, *, is_leaf: bool
    ) -> list[tuple[int, int, int, bytes, int]]:
        """Return the nodes of a page: three words, the key, and the offset of the value.

        Raise PageError unless the nodes fill exactly the space that is not free.
        """
        _, _, _, lower, upper = _PAGE.unpack_from(page)
        if not _PAGE.size < lower <= upper <= len(page) or lower & 1:
            raise PageError(f"page {number} has no room for its entries")
        inline_bytes_max = (len(page) - _PAGE.size) // 2 // 2 * 2 - 2
        nodes, spans = [], []
        for (start,) in Struct("=H").iter_unpack(page[_PAGE.size : lower]):
            if start < upper or start + _NODE.size > len(page):
                raise _outside(number)
            low, high, flags, key_bytes = _NODE.unpack_from(page, start)
            begin = start + _NODE.size
            value_at = begin + key_bytes
            if value_at > len(page):
                raise _outside(number)
            value_bytes = 0
            if is_leaf:
                value_bytes = _NUMBER.size if flags & _IS_BIG else low | high << 16
            length = value_at - start + value_bytes
            if length > inline_bytes_max:
                raise PageError(f"an entry of page {number} is too long")
            nodes.append((low, high, flags, page[begin:value_at], value_at))
            spans.append((start, length + length % 2))
        spans.sort(reverse=True)
        end = len(page)
        for start, length in spans:
            if start + length != end:
                raise _not_side_by_side(number)
            end = start
        if end != upper:
            raise _not_side_by_side(number)
        return nodes

    def _overflow(
        self, page: bytes, offset: int, length: int, *, is_read: bool
    ) -> tuple[bytes, int]:
        """Check a value on overflow pages; return it, or b"" if not needed, and its page count."""
        (first,) = _NUMBER.unpack_from(page, offset)
        size = self._page_bytes
        needed = -(-(_PAGE.size + length) // size)
        self._take(first, needed)
        wanted = length if is_read or self._is_copy else 0
        data = self._files.pread(self._descriptor, first * size, _PAGE.size + wanted)
        own, _, kind, count = _OVERFLOW_PAGE.unpack_from(data)
        # A value replaced within one commit may have more pages than it needs.
        if own != first or kind != _OVERFLOW or count < needed:
            raise PageError(f"page {first} does not begin {needed} pages of a value")
        self._take(first + needed, count - needed)
        return data[_PAGE.size :], count

    def _check_free(self, value: bytes) -> None:
        """Check a list of free pages: its length, and that its page numbers descend."""
        damaged = PageError("the list of free pages is damaged")
        if not value or len(value) % _NUMBER.size:
            raise damaged
        count, *numbers = (number for (number,) in _NUMBER.iter_unpack(value))
        if count > len(numbers):
            raise damaged
        before = self._commit.page_count
        for number in numbers[:count]:
            if not _META_PAGES <= number < before:
                raise damaged
            if self._taken[number]:
                raise PageError(f"page {number} is free and used, or free twice")
            self._taken[number] = 1
            before = number


def _is_key(kind: int, key: bytes) -> bool:
    """Return whether a key may be in a database."""
    return len(key) == _NUMBER.size if kind == _FREE else 0 < len(key) <= KEY_BYTES_MAX


def _is_less(kind: int, one: bytes, other: bytes) -> bool:
    """Return whether one key precedes another; the empty key precedes all."""
    if kind != _FREE or not one:
        return one < other
    is_less: bool = _NUMBER.unpack(one) < _NUMBER.unpack(other)
    return is_less


def _outside(number: int) -> PageError:
    return PageError(f"an entry of page {number} lies outside of it")


def _unordered(number: int) -> PageError:
    return PageError(f"the keys of page {number} are not in order")


def _not_side_by_side(number: int) -> PageError:
    return PageError(f"the entries of page {number} do not lie side by side")
