"""A small bucket of a bbolt file replaced where the file is, by one transaction.

The new pages go behind the last one that is used, and are durable before a meta page names them:
whatever happens, the file is as it was or as it should be. The pages that they replace are free
from then on; who opens the file to write finds that out.
"""

from collections.abc import Iterable

from kvorum.backend.bbolt.pages import (
    BUCKET_HEADER,
    HEADER_BYTES,
    IS_BUCKET,
    LEAF,
    PAGE_HEADER,
    Meta,
    encode_meta,
)
from kvorum.backend.bbolt.reading import open_image
from kvorum.backend.bbolt.writing import Entry, leaf_body
from kvorum.files import Files, Opening


def replace_bucket(files: Files, path: str, bucket: bytes, entries: Iterable[Entry]) -> None:
    """Give a bucket these entries and no others; they fit into memory, and keys ascend.

    Nobody else has the file open to write.
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
    """Return a leaf and the pages that it goes on for."""
    pages = -(-(HEADER_BYTES + len(body)) // meta.page_bytes)
    page = PAGE_HEADER.pack(number, LEAF, count, pages - 1) + body
    return page.ljust(pages * meta.page_bytes, b"\0")
