"""Replaces a small bucket of a bbolt file in place, by one transaction.

The new pages follow the last used page and are durable before a meta page refers to them, so a
crash leaves either the old or the new state. The replaced pages become free; the next program that
opens the file for writing detects them.
"""

from collections.abc import Iterable

from kvorum.storage.backend.bbolt.pages import (
    BUCKET_HEADER,
    HEADER_BYTES,
    IS_BUCKET,
    LEAF,
    PAGE_HEADER,
    Meta,
    encode_meta,
)
from kvorum.storage.backend.bbolt.reading import open_image
from kvorum.storage.backend.bbolt.writing import Entry, leaf_body
from kvorum.storage.files import Files, Opening


def replace_bucket(files: Files, path: str, bucket: bytes, entries: Iterable[Entry]) -> None:
    """Replace a bucket's entries by these, which must ascend and fit into memory.

    No other process may have the file open for writing.
    """
    image = open_image(files, path)
    try:
        meta, roots = image.layout()
    finally:
        image.close()
    leaf = list(entries)
    body = leaf_body(leaf, 0)
    pages, number = b"", meta.page_count
    if HEADER_BYTES + len(body) <= meta.page_bytes // 4:
        within = PAGE_HEADER.pack(0, LEAF, len(leaf), 0) + body
        roots[bucket] = BUCKET_HEADER.pack(0, 0) + within
    else:
        pages = _page(meta, number, len(leaf), body)
        roots[bucket] = BUCKET_HEADER.pack(number, 0)
        number += len(pages) // meta.page_bytes
    root = number
    pages += _page(meta, root, len(roots), leaf_body(sorted(roots.items()), IS_BUCKET))
    used = meta.page_count + len(pages) // meta.page_bytes
    renewed = Meta(meta.page_bytes, root, used, meta.transaction + 1)
    descriptor = files.open(path, Opening.WRITE)
    try:
        files.pwrite(descriptor, meta.page_count * meta.page_bytes, pages)
        files.fdatasync(descriptor)
        place = renewed.transaction % 2 * meta.page_bytes
        files.pwrite(descriptor, place, encode_meta(renewed))
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)


def _page(meta: Meta, number: int, count: int, body: bytes) -> bytes:
    """Encode a leaf and its overflow pages."""
    pages = -(-(HEADER_BYTES + len(body)) // meta.page_bytes)
    page = PAGE_HEADER.pack(number, LEAF, count, pages - 1) + body
    return page.ljust(pages * meta.page_bytes, b"\0")
