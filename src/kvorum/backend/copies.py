"""Copies of a database file, for members that keep theirs alike: made, told apart, checked.

A copy is an LMDB file without free pages, as one commit left it. What a member gets from another is
checked page by page before it counts: LMDB trusts its files, and one that is damaged could end the
process. Every page that is reached has to be what its parent says, none may be reached twice, keys
must ascend, each bucket must have as many entries as it claims, and every value the checksum that
fits its key and itself.
"""

import sys
from struct import Struct, calcsize
from typing import Final

from kvorum.backend.buckets import BUCKETS
from kvorum.backend.directory import FORMAT_VERSION
from kvorum.backend.encoding import KEY_BYTES_MAX, is_whole
from kvorum.backend.environment import Environments
from kvorum.backend.errors import BackendError
from kvorum.backend.native import NativeRows
from kvorum.backend.opening import begin_view
from kvorum.files import Files, Opening

COPY_FORMAT: Final = f"{FORMAT_VERSION}-lmdb-1-{sys.byteorder}-{8 * calcsize('P')}"
"""What members must have in common to take copies from each other."""

_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_PAGE_BYTES_MIN: Final = 512
_PAGE_BYTES_MAX: Final = 1 << 16
_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_OVERFLOW: Final = 0x04
_META: Final = 0x08
_IS_BIG: Final = 0x01
_IS_DATABASE: Final = 0x02
_NO_PAGE: Final = (1 << 64) - 1
_DEPTH_MAX: Final = 32
# Number, padding, kind; then where the free room of a page begins and ends, or how many pages.
_PAGE: Final = Struct("=QHHHH")
_OVERFLOW_PAGE: Final = Struct("=QHHI")
_HEAD: Final = Struct("=IIQQ")
_DATABASE: Final = Struct("=IHHQQQQQ")
_TAIL: Final = Struct("=QQ")
_NODE: Final = Struct("=HHHH")
_POINTER: Final = Struct("=H")
_NUMBER: Final = Struct("=Q")
_META_BYTES: Final = _PAGE.size + _HEAD.size + 2 * _DATABASE.size + _TAIL.size


class CopyError(BackendError):
    """A copy that cannot be used."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the copy of a database is damaged: {problem}")


class Copying:
    """What the newest commit holds, held for a copy: begun and ended on the loop."""

    __slots__ = ("_environment", "_environments", "view")

    def __init__(self, files: Files, environments: Environments, directory: str) -> None:
        self._environments = environments
        self._environment, self.view = begin_view(files, environments, directory)

    def write(self, files: Files, path: str) -> int:
        """Write the copy to a new file, off the loop; return its length. It need not be durable."""
        if files.exists(path):
            files.unlink(path)
        descriptor = files.open(path, Opening.CREATE)
        try:
            transaction = self.view.transaction
            self._environments.export(self._environment, transaction, path, descriptor)
            return files.size(descriptor)
        finally:
            files.close(descriptor)

    def end(self) -> None:
        """Let go of the commit."""
        self.view.end()
        self._environment.close()


def is_copy(files: Files, path: str) -> bool:
    """Return whether a received file is a copy of a database, and not one of etcd's files."""
    descriptor = files.open(path, Opening.READ)
    try:
        head = files.pread(descriptor, 0, _PAGE.size + _HEAD.size)
    finally:
        files.close(descriptor)
    return len(head) == _PAGE.size + _HEAD.size and _HEAD.unpack_from(head, 16)[0] == _MAGIC


def check_copy(files: Files, descriptor: int, native: NativeRows | None) -> None:
    """Raise CopyError if a file is not a whole copy with the buckets of a member."""
    if native is not None:
        problem = native.check_copy(descriptor, list(BUCKETS))
        if problem is not None:
            raise CopyError(problem)
    else:
        _Check(files, descriptor).run()


def check_received(files: Files, path: str, native: NativeRows | None) -> None:
    """Do what `check_copy` does, with the file of a name."""
    descriptor = files.open(path, Opening.READ)
    try:
        check_copy(files, descriptor, native)
    finally:
        files.close(descriptor)


class _Check:
    """The walk through one file; `copies.rs` does the same."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._page_bytes = 0
        self._page_count = 0
        self._reached = bytearray()

    def run(self) -> None:
        """Check the whole file."""
        first = self._files.pread(self._descriptor, 0, _META_BYTES)
        size = _DATABASE.unpack_from(first, 40)[0] if len(first) == _META_BYTES else 0
        if not _PAGE_BYTES_MIN <= size <= _PAGE_BYTES_MAX or size & size - 1:
            raise CopyError(f"its pages cannot have {size} bytes")
        metas = [first, self._files.pread(self._descriptor, size, _META_BYTES)]
        length = self._files.size(self._descriptor)
        newest, main = -1, None
        for number, meta in enumerate(metas):
            if len(meta) < _META_BYTES:
                raise CopyError(f"it has {length} bytes")
            own, _, kind, _, _ = _PAGE.unpack_from(meta)
            magic, version, _, _ = _HEAD.unpack_from(meta, 16)
            free = _DATABASE.unpack_from(meta, 40)
            last, transaction = _TAIL.unpack_from(meta, 136)
            if own != number or kind != _META or (magic, version) != (_MAGIC, _DATA_VERSION):
                raise CopyError(f"page {number} is not a meta page")
            if free[0] != size or free[7] != _NO_PAGE:
                raise CopyError(f"meta page {number} says that pages are free")
            if transaction > newest:
                newest, main = transaction, _DATABASE.unpack_from(meta, 88)
                self._page_count = last + 1
        assert main is not None
        if length != self._page_count * size:
            raise CopyError(f"it has {length} bytes and should have {self._page_count * size}")
        self._page_bytes = size
        self._reached = bytearray(self._page_count)
        self._reached[0] = self._reached[1] = 1
        found = self._walk(main, "the list of buckets", is_main=True)
        if [name for name, _ in found] != list(BUCKETS):
            raise CopyError("its buckets are not those of a member")
        for name, value in found:
            self._walk(_DATABASE.unpack(value), f"bucket {name.decode()}", is_main=False)

    def _walk(
        self, database: tuple[int, ...], place: str, *, is_main: bool
    ) -> list[tuple[bytes, bytes]]:
        """Check the pages of a bucket; return the entries of the list of buckets."""
        _, flags, _, _, _, _, entries, root = database
        if flags:
            raise CopyError(f"{place} is of kind {flags:#x}")
        found: list[tuple[bytes, bytes]] = []
        count = 0
        last: bytes | None = None
        # The children still to visit, the next one last: number, least key, depth.
        waiting: list[tuple[int, bytes, int]] = [] if root == _NO_PAGE else [(root, b"", 0)]
        while waiting:
            number, least, depth = waiting.pop()
            kind, page = self._page(number)
            nodes = self._nodes(number, page)
            if kind == _BRANCH and depth < _DEPTH_MAX:
                children: list[tuple[int, bytes, int]] = []
                for low, high, top, key, _ in nodes:
                    # The first key of a branch means nothing.
                    if children and key <= children[-1][1]:
                        raise CopyError(f"the keys of page {number} are not in order")
                    least = key if children else least
                    children.append((low | high << 16 | top << 32, least, depth + 1))
                waiting += reversed(children)
                continue
            if kind != _LEAF:
                raise CopyError(f"page {number} is of kind {kind:#x}, not a branch or a leaf")
            for low, high, node_flags, key, offset in nodes:
                length = low | high << 16
                if not 0 < len(key) <= KEY_BYTES_MAX or key < least or (last or b"") >= key:
                    raise CopyError(f"the keys of page {number} are not in order")
                last = key
                count += 1
                if node_flags == _IS_BIG and not is_main:
                    value = self._overflow(number, page, offset, length)
                elif node_flags == (_IS_DATABASE if is_main else 0):
                    value = page[offset : offset + length]
                else:
                    raise CopyError(f"an entry of page {number} is of kind {node_flags:#x}")
                if len(value) < length or (is_main and length != _DATABASE.size):
                    raise CopyError(f"an entry of page {number} lies outside of it")
                if is_main:
                    found.append((key, value))
                elif not is_whole(key, value):
                    raise CopyError(f"the checksum of {key.hex()} in {place} does not fit")
        if count != entries:
            raise CopyError(f"{place} has {count} entries and should have {entries}")
        return found

    def _page(self, number: int) -> tuple[int, bytes]:
        self._reach(number, 1)
        size = self._page_bytes
        page = self._files.pread(self._descriptor, number * size, size)
        own, _, kind, _, _ = _PAGE.unpack_from(page)
        if own != number:
            raise CopyError(f"page {number} says that it is page {own}")
        return kind, page

    def _reach(self, number: int, count: int) -> None:
        if number + count > self._page_count:
            raise CopyError(f"there is no page {number} among {self._page_count}")
        if any(self._reached[number : number + count]):
            raise CopyError(f"page {number} is reached twice")
        self._reached[number : number + count] = b"\1" * count

    def _nodes(self, number: int, page: bytes) -> list[tuple[int, int, int, bytes, int]]:
        """Return the nodes of a page: three words, the key, and where its value begins."""
        _, _, _, lower, upper = _PAGE.unpack_from(page)
        if not _PAGE.size < lower <= upper <= len(page) or lower & 1:
            raise CopyError(f"page {number} has no room for its entries")
        nodes = []
        for place in range(_PAGE.size, lower, _POINTER.size):
            (start,) = _POINTER.unpack_from(page, place)
            if start < upper or start + _NODE.size > len(page):
                raise CopyError(f"an entry of page {number} lies outside of it")
            low, high, flags, key_bytes = _NODE.unpack_from(page, start)
            begin = start + _NODE.size
            if begin + key_bytes > len(page):
                raise CopyError(f"an entry of page {number} lies outside of it")
            nodes.append((low, high, flags, page[begin : begin + key_bytes], begin + key_bytes))
        return nodes

    def _overflow(self, number: int, page: bytes, offset: int, length: int) -> bytes:
        """Return a value that has pages of its own."""
        if offset + _NUMBER.size > len(page):
            raise CopyError(f"an entry of page {number} lies outside of it")
        (first,) = _NUMBER.unpack_from(page, offset)
        size = self._page_bytes
        count = -(-(_PAGE.size + length) // size)
        self._reach(first, count)
        data = self._files.pread(self._descriptor, first * size, _PAGE.size + length)
        own, _, kind, pages = _OVERFLOW_PAGE.unpack_from(data)
        if own != first or kind != _OVERFLOW or pages != count:
            raise CopyError(f"page {first} does not begin {count} pages of a value")
        return data[_PAGE.size :]
