"""Writes a bbolt file in one pass from sorted entries.

The writer fills leaves as entries arrive, and keeps only the first key and the number of each
written page, to build the branches above. A file of any size thus takes little memory. The writer
writes the meta pages last, so that an incomplete file does not look complete.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, Protocol

from kvorum.storage.backend.bbolt.pages import (
    BRANCH,
    BRANCH_ELEMENT,
    BUCKET_HEADER,
    ELEMENT_BYTES,
    HEADER_BYTES,
    IS_BUCKET,
    LEAF,
    LEAF_ELEMENT,
    PAGE_BYTES,
    PAGE_HEADER,
    Meta,
    encode_meta,
)
from kvorum.storage.files import Files

FILL_BYTES: Final = PAGE_BYTES * 9 // 10
"""A page ends before the entry that would exceed this, to leave space for etcd's insertions."""
INLINE_BYTES_MAX: Final = PAGE_BYTES // 4
"""The largest leaf that a bucket of one leaf stores inline, in its parent's entry."""
WRITE_BYTES: Final = 1 << 20
TRANSACTION: Final = 2

Entry = tuple[bytes, bytes]
Child = tuple[bytes, int]
"""The first key below a page, and the page's number."""


class PackedLeaves(Protocol):
    """A source of prebuilt leaves, for a bucket with pages of its own."""

    def next_leaves(self, number: int) -> tuple[bytes, list[Child]] | None:
        """Return the next leaves, the first with this number; None if there are no more."""


class _Pages:
    """Appends pages to a file in large writes."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._offset = 2 * PAGE_BYTES
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self.next = 2

    def add(self, kind: int, count: int, body: bytes) -> int:
        """Append a page with all of its elements; return its number."""
        number = self.next
        pages = -(-(HEADER_BYTES + len(body)) // PAGE_BYTES)
        page = PAGE_HEADER.pack(number, kind, count, pages - 1) + body
        self._parts.append(page.ljust(pages * PAGE_BYTES, b"\0"))
        self._waiting_bytes += pages * PAGE_BYTES
        self.next += pages
        if self._waiting_bytes >= WRITE_BYTES:
            self.flush()
        return number

    def add_packed(self, data: bytes) -> None:
        """Append pages that already contain their numbers."""
        assert len(data) % PAGE_BYTES == 0, f"{len(data)} bytes are not whole pages"
        self._parts.append(data)
        self._waiting_bytes += len(data)
        self.next += len(data) // PAGE_BYTES
        if self._waiting_bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the pages appended so far."""
        data = b"".join(self._parts)
        self._files.pwrite(self._descriptor, self._offset, data)
        self._offset += len(data)
        self._parts.clear()
        self._waiting_bytes = 0


def write_image(
    files: Files, descriptor: int, buckets: Iterable[tuple[bytes, Iterable[Entry] | PackedLeaves]]
) -> int:
    """Write all buckets to an empty file, names and keys ascending; return its length.

    The file is durable once the caller has synced it.
    """
    pages = _Pages(files, descriptor)
    roots = [
        (
            name,
            _write_bucket(pages, entries)
            if isinstance(entries, Iterable)
            else _write_packed(pages, entries),
        )
        for name, entries in buckets
    ]
    root = _build(pages, _leaves(roots), IS_BUCKET)
    pages.flush()
    for transaction in (TRANSACTION, TRANSACTION - 1):
        # As in etcd's snapshots, page 0 belongs to the newest transaction, page 1 to the previous.
        meta = Meta(PAGE_BYTES, root, pages.next, transaction)
        files.pwrite(descriptor, transaction % 2 * PAGE_BYTES, encode_meta(meta))
    return pages.next * PAGE_BYTES


def _write_bucket(pages: _Pages, entries: Iterable[Entry]) -> bytes:
    """Write a bucket's pages, if it needs any; return its entry in the root."""
    leaves = _leaves(entries)
    heads = list(islice(leaves, 2))
    if len(heads) < 2:
        (leaf,) = heads or [[]]
        body = leaf_body(leaf, 0)
        if HEADER_BYTES + len(body) <= INLINE_BYTES_MAX:
            return BUCKET_HEADER.pack(0, 0) + PAGE_HEADER.pack(0, LEAF, len(leaf), 0) + body
    return BUCKET_HEADER.pack(_build(pages, chain(heads, leaves), 0), 0)


def _write_packed(pages: _Pages, leaves: PackedLeaves) -> bytes:
    """Write a bucket's prebuilt leaves; return its entry in the root."""
    children: list[Child] = []
    while (packed := leaves.next_leaves(pages.next)) is not None:
        pages.add_packed(packed[0])
        children += packed[1]
    return BUCKET_HEADER.pack(_build_branches(pages, children), 0)


def _leaves(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Split entries into leaves; an entry larger than a page has a leaf to itself."""
    leaf: list[Entry] = []
    used = HEADER_BYTES
    last = b""
    fill_bytes, element_bytes = FILL_BYTES, ELEMENT_BYTES
    for entry in entries:
        key, value = entry
        assert key > last, f"{key!r} does not come after {last!r}"
        last = key
        used += element_bytes + len(key) + len(value)
        if used > fill_bytes and leaf:
            yield leaf
            leaf = []
            used = HEADER_BYTES + element_bytes + len(key) + len(value)
        leaf.append(entry)
    if leaf:
        yield leaf


def leaf_body(leaf: list[Entry], flags: int) -> bytes:
    """Encode a leaf without its header."""
    elements = bytearray()
    position = ELEMENT_BYTES * len(leaf)
    pack = LEAF_ELEMENT.pack
    contents: list[bytes] = []
    for key, value in leaf:
        elements += pack(flags, position, len(key), len(value))
        # Positions are relative to their element, and the next element is that much nearer.
        position += len(key) + len(value) - ELEMENT_BYTES
        contents += (key, value)
    return bytes(elements) + b"".join(contents)


def _build(pages: _Pages, leaves: Iterable[list[Entry]], flags: int) -> int:
    """Write leaves, and levels of branches above them up to one root; return its number."""
    children = [(leaf[0][0], pages.add(LEAF, len(leaf), leaf_body(leaf, flags))) for leaf in leaves]
    return _build_branches(pages, children)


def _build_branches(pages: _Pages, children: list[Child]) -> int:
    if not children:
        return pages.add(LEAF, 0, b"")
    while len(children) > 1:
        children = [
            (branch[0][0], pages.add(BRANCH, len(branch), _branch_body(branch)))
            for branch in _branches(children)
        ]
    return children[0][1]


def _branches(children: list[Child]) -> Iterator[list[Child]]:
    """Split child pages into branches of at least two."""
    branch: list[Child] = []
    used = HEADER_BYTES
    remaining = len(children)
    for child in children:
        size = ELEMENT_BYTES + len(child[0])
        # Never leave the last child alone, because a branch needs two children.
        if len(branch) >= 2 and used + size > FILL_BYTES and remaining >= 2:
            yield branch
            branch, used = [], HEADER_BYTES
        branch.append(child)
        used += size
        remaining -= 1
    yield branch


def _branch_body(branch: list[Child]) -> bytes:
    elements = bytearray()
    position = ELEMENT_BYTES * len(branch)
    for key, number in branch:
        elements += BRANCH_ELEMENT.pack(position, len(key), number)
        position += len(key) - ELEMENT_BYTES
    return bytes(elements) + b"".join(key for key, _ in branch)
