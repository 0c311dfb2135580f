"""Reads a bbolt file page by page and checks everything that can be checked.

A file may come from an untrusted source. The reader compares every number with the file's size, and
requires that keys ascend and that no page is reached twice, so that damage ends in an ImageError
and never in a loop or a wrong answer. Memory holds one path from the root to a leaf, however large
the file is.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from kvorum.storage.backend.bbolt.pages import (
    BRANCH,
    BRANCH_ELEMENT,
    BUCKET_HEADER,
    ELEMENT_BYTES,
    HEADER_BYTES,
    IS_BUCKET,
    LEAF,
    LEAF_ELEMENT,
    META_BYTES,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    PAGE_HEADER,
    PAGE_KINDS,
    ImageError,
    Meta,
    decode_meta,
    meta_words,
)
from kvorum.storage.backend.native import TakeLeaves
from kvorum.storage.files import Files, Opening

Leaf = tuple[int, list[tuple[bytes, bytes]]]
"""The common flags of a leaf's entries, and their keys and values."""
RUN_BYTES: Final = 1 << 20
"""The most bytes of neighbouring leaves to read at once."""
_TAKEN: Final = -1
"""Stands for the flags of entries that `take` has read."""


class Image:
    """An open file as of its newest whole transaction."""

    def __init__(self, files: Files, path: str, descriptor: int, length: int) -> None:
        self._files = files
        self.path = path
        self._descriptor = descriptor
        self._length = length
        self._meta = self._newest_meta()
        if self.size > length:
            words = f"file size too small {length}" if length < 2 * self._meta.page_bytes else ""
            problem = f"it has {length} bytes and should have {self.size}"
            raise ImageError(path, problem, words)
        # One byte per page: whether it was reached. A sound tree reaches no page twice.
        self._reached = bytearray(self._meta.page_count)
        self._roots = self._read_roots()

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._descriptor)

    @property
    def size(self) -> int:
        """The bytes of all pages, used or free, without any data after them."""
        return self._meta.page_count * self._meta.page_bytes

    def layout(self) -> tuple[Meta, dict[bytes, bytes]]:
        """Return the newest meta page and the root's entries, from which a writer continues."""
        return self._meta, dict(self._roots)

    def check_meta_pages(self) -> None:
        """Raise ImageError unless both meta pages have valid page headers, as etcd requires."""
        for number in (0, 1):
            offset = number * self._meta.page_bytes
            head = self._files.pread(self._descriptor, offset, HEADER_BYTES)
            own, kind, _, _ = PAGE_HEADER.unpack(head)
            if own != number:
                raise self._error(f"page {number} says that it is page {own}")
            if kind not in PAGE_KINDS:
                raise self._error(f"page {number} is of kind {kind:#x}")

    def buckets(self) -> list[bytes]:
        """Return the names of the buckets, in order."""
        return list(self._roots)

    def items(self, bucket: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a bucket in key order, only once; none for an unknown bucket."""
        return chain.from_iterable(self.leaves(bucket))

    def leaves(self, bucket: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the entries of a bucket leaf by leaf, which saves a generator's step per entry."""
        for _, elements in self.pieces(bucket, None):
            yield elements

    def pieces(
        self, bucket: bytes, take: TakeLeaves | None
    ) -> Iterator[tuple[bool, list[tuple[bytes, bytes]]]]:
        """Yield the entries of a bucket by leaf, or in pieces that `take` reads from many leaves.

        Each piece comes with whether `take` read it, since `take` may change the entries.
        """
        value = self._roots.pop(bucket, None)
        if value is None:
            return
        root, _ = BUCKET_HEADER.unpack_from(value)
        if root:
            leaves = self._walk(root, b"", take)
        else:
            leaves = iter([self._leaf(0, value[BUCKET_HEADER.size :], b"")])
        for flags, elements in leaves:
            if flags != _TAKEN and flags & IS_BUCKET:
                raise self._error(f"bucket {bucket!r} has a bucket in it")
            yield flags == _TAKEN, elements

    def items_back(self, bucket: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a bucket in reverse key order, only once; see `items`."""
        value = self._roots.pop(bucket, None)
        if value is None:
            return
        root, _ = BUCKET_HEADER.unpack_from(value)
        if root:
            leaves = self._walk_back(root)
        else:
            leaves = iter([self._leaf(0, value[BUCKET_HEADER.size :], b"")])
        for flags, elements in leaves:
            if flags & IS_BUCKET:
                raise self._error(f"bucket {bucket!r} has a bucket in it")
            yield from reversed(elements)

    def _walk_back(self, number: int) -> Iterator[Leaf]:
        """Yield the leaves below a page, the last leaf first."""
        before: bytes | None = None
        waiting = [(number, b"")]
        while waiting:
            number, first = waiting.pop()
            kind, count, page = self._page(number)
            if kind == LEAF:
                leaf = self._leaf(count, page, first, number)
                elements = leaf[1]
                if elements:
                    if before is not None and elements[-1][0] >= before:
                        raise self._error(f"the keys of page {number} are not in order")
                    before = elements[0][0]
                yield leaf
            elif kind == BRANCH:
                waiting += self._branch(number, count, page, first)
            else:
                raise self._error(f"page {number} is of kind {kind:#x}, not a branch or a leaf")

    def last_key(self, bucket: bytes) -> bytes | None:
        """Return the last key of a bucket; the bucket's entries cannot be read afterwards."""
        for key, _ in self.items_back(bucket):
            return key
        return None

    def used_bytes(self) -> int:
        """Return the bytes of the pages reached so far, including the meta pages."""
        return (2 + self._reached.count(1)) * self._meta.page_bytes

    def _newest_meta(self) -> Meta:
        first = self._files.pread(self._descriptor, 0, META_BYTES)
        metas = [decode_meta(first)]
        if metas[0] is not None:
            sizes = [metas[0].page_bytes]
        else:
            # Without the first meta page the page size is unknown, so try the second page at
            # every possible offset; it contains the size, too.
            sizes = [1 << bits for bits in range(9, 17)]
            assert sizes[0] == PAGE_BYTES_MIN and sizes[-1] == PAGE_BYTES_MAX
        for size in sizes:
            second = decode_meta(self._files.pread(self._descriptor, size, META_BYTES))
            if second is not None and second.page_bytes == size:
                metas.append(second)
        whole = [meta for meta in metas if meta is not None]
        if not whole:
            problem = "neither of its two meta pages is whole"
            raise ImageError(self.path, problem, meta_words(first))
        return max(whole, key=lambda meta: meta.transaction)

    def _read_roots(self) -> dict[bytes, bytes]:
        roots: dict[bytes, bytes] = {}
        for flags, elements in self._walk(self._meta.root, b""):
            for name, value in elements:
                if not flags & IS_BUCKET or len(value) < BUCKET_HEADER.size:
                    raise self._error(f"its entry {name!r} is not a bucket")
                roots[name] = value
        return roots

    def _walk(self, number: int, first: bytes, take: TakeLeaves | None = None) -> Iterator[Leaf]:
        """Yield the leaves below a page; their keys must not be less than `first`."""
        size = self._meta.page_bytes
        last: bytes | None = None
        # Pages still to visit, the next one last, each with the least key that it may have.
        waiting = [(number, first)]
        # Waiting pages from this position on are siblings; all are leaves if the first was one.
        leaves_from = 0
        are_leaves = False
        while waiting:
            if take is not None and are_leaves and len(waiting) > leaves_from:
                run = self._run(waiting, leaves_from)
                count, taken = take(self._pages(run), size, run, last or b"", self._reached)
                if count:
                    del waiting[-count:]
                    last = taken[-1][0]
                    yield _TAKEN, taken
                    continue
            number, first = waiting.pop()
            kind, count, page = self._page(number)
            if kind == LEAF:
                leaf = self._leaf(count, page, first, number)
                elements = leaf[1]
                if elements:
                    if last is not None and elements[0][0] <= last:
                        raise self._error(f"the keys of page {number} are not in order")
                    last = elements[-1][0]
                are_leaves = len(waiting) > leaves_from
                yield leaf
            elif kind == BRANCH:
                leaves_from, are_leaves = len(waiting), False
                waiting += reversed(self._branch(number, count, page, first))
            else:
                raise self._error(f"page {number} is of kind {kind:#x}, not a branch or a leaf")

    def _run(self, waiting: list[tuple[int, bytes]], start: int) -> list[tuple[int, bytes]]:
        """Return the next children in order, while their page numbers ascend within `RUN_BYTES`."""
        number = waiting[-1][0]
        # The read includes a leaf's overflow pages only if another leaf of the run follows.
        end = min(number + RUN_BYTES // self._meta.page_bytes, self._meta.page_count)
        run = []
        for child in waiting[: start - len(waiting) - 1 : -1]:
            if not number <= child[0] < end:
                break
            run.append(child)
            number = child[0] + 1
        return run

    def _pages(self, run: list[tuple[int, bytes]]) -> bytes:
        """Read all pages from the first to the last of a run."""
        if not run:
            return b""
        size, number = self._meta.page_bytes, run[0][0]
        length = (run[-1][0] + 1 - number) * size
        return self._files.pread(self._descriptor, number * size, length)

    def _page(self, number: int) -> tuple[int, int, bytes]:
        """Read a page with its overflow; return its kind, number of elements and bytes."""
        size, total = self._meta.page_bytes, self._meta.page_count
        if not 2 <= number < total:
            raise self._error(f"there is no page {number} among {total}")
        page = self._files.pread(self._descriptor, number * size, size)
        if len(page) < size:
            raise self._error(f"it ends within page {number}")
        own, kind, count, overflow = PAGE_HEADER.unpack_from(page)
        if own != number:
            raise self._error(f"page {number} says that it is page {own}")
        if number + overflow >= total:
            raise self._error(f"page {number} goes on behind the end")
        if any(self._reached[number : number + overflow + 1]):
            raise self._error(f"page {number} is reached twice")
        self._reached[number : number + overflow + 1] = b"\1" * (overflow + 1)
        if overflow:
            page = self._files.pread(self._descriptor, number * size, size * (overflow + 1))
        return kind, count, page

    def _leaf(self, count: int, page: bytes, first: bytes, number: int = 0) -> Leaf:
        if not number:
            if len(page) < HEADER_BYTES:
                raise self._error("a bucket within an entry is cut off")
            _, kind, count, _ = PAGE_HEADER.unpack_from(page)
            if kind != LEAF:
                raise self._error(f"a bucket within an entry is of kind {kind:#x}")
        end = HEADER_BYTES + count * ELEMENT_BYTES
        length = len(page)
        if end > length:
            raise self._error(f"page {number} has no room for {count} entries")
        elements: list[tuple[bytes, bytes]] = []
        last = first
        start = HEADER_BYTES
        common = -1
        for flags, position, key_length, value_length in LEAF_ELEMENT.iter_unpack(
            page[HEADER_BYTES:end]
        ):
            begin = start + position
            middle = begin + key_length
            behind = middle + value_length
            if begin < end or not key_length or behind > length:
                raise self._error(f"an entry of page {number} lies outside of it")
            key = page[begin:middle]
            # The first key may equal `first`; no key is empty.
            if key <= last and (elements or key != first):
                raise self._error(f"the keys of page {number} are not in order")
            # The other bits have no meaning.
            flags &= IS_BUCKET
            if flags != common:
                if elements:
                    raise self._error(f"page {number} holds buckets and entries")
                common = flags
            last = key
            elements.append((key, page[middle:behind]))
            start += ELEMENT_BYTES
        return max(common, 0), elements

    def _branch(
        self, number: int, count: int, page: bytes, first: bytes
    ) -> list[tuple[int, bytes]]:
        end = HEADER_BYTES + count * ELEMENT_BYTES
        if not count or end > len(page):
            raise self._error(f"page {number} cannot have {count} children")
        children: list[tuple[int, bytes]] = []
        last: bytes | None = None
        for start in range(HEADER_BYTES, end, ELEMENT_BYTES):
            position, key_length, child = BRANCH_ELEMENT.unpack_from(page, start)
            begin = start + position
            if begin < end or begin + key_length > len(page):
                raise self._error(f"a key of page {number} lies outside of it")
            key = page[begin : begin + key_length]
            if last is not None and key <= last:
                raise self._error(f"the keys of page {number} are not in order")
            last = key
            # In a file that is being written, the first child may have keys below its own.
            children.append((child, first if not children else key))
        return children

    def _error(self, problem: str) -> ImageError:
        return ImageError(self.path, problem)


def open_image(files: Files, path: str, length: int | None = None) -> Image:
    """Open a database file; for a snapshot, pass the length without the appended checksum.

    Raises ImageError if the file is no database, too short, or has a damaged list of buckets.
    """
    descriptor = files.open(path, Opening.READ)
    try:
        if length is None:
            length = files.size(descriptor)
        return Image(files, path, descriptor, length)
    except BaseException:
        files.close(descriptor)
        raise
