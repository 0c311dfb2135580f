"""The layout of a bbolt file: pages, their elements, and the two meta pages.

All numbers are little-endian, as on every machine that runs etcd. A page begins with its own
number; elements point to their keys relative to themselves.
"""

from struct import Struct
from typing import Final, NamedTuple

MAGIC: Final = 0xED0CDAED
VERSION: Final = 2
PAGE_BYTES: Final = 4096
"""The page size of written files; reading accepts other sizes."""
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 512, 65536

BRANCH: Final = 0x01
LEAF: Final = 0x02
META: Final = 0x04
FREELIST: Final = 0x10
PAGE_KINDS: Final = (BRANCH, LEAF, META, FREELIST)
IS_BUCKET: Final = 0x01
NO_FREELIST: Final = 0xFFFFFFFFFFFFFFFF

PAGE_HEADER: Final = Struct("<QHHI")
"""Page number, kind, number of elements, number of overflow pages."""
LEAF_ELEMENT: Final = Struct("<IIII")
"""Flags, position, length of key, length of value; the value follows the key."""
BRANCH_ELEMENT: Final = Struct("<IIQ")
"""Position, length of key, number of the child page."""
BUCKET_HEADER: Final = Struct("<QQ")
"""Root page, or 0 if an inline page follows; sequence."""
_META_BODY: Final = Struct("<IIIIQQQQQ")
_CHECKSUM: Final = Struct("<Q")
HEADER_BYTES: Final = PAGE_HEADER.size
ELEMENT_BYTES: Final = LEAF_ELEMENT.size
META_BYTES: Final = HEADER_BYTES + _META_BODY.size + _CHECKSUM.size

_FNV_OFFSET, _FNV_PRIME, _UINT64 = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class ImageError(Exception):
    """Raised for a file that is not a whole database of etcd's; names the file and the problem."""

    def __init__(self, path: str, problem: str, words: str = "") -> None:
        super().__init__(
            f"{path} is not a whole database file of etcd: {problem}; "
            "use another copy of the snapshot or of the member's directory"
        )
        self.path = path
        self.problem = problem
        self.words = words
        """The error text of etcd's own reader, if that does not open the file at all."""


class Meta(NamedTuple):
    """The content of a meta page."""

    page_bytes: int
    root: int
    page_count: int
    """The number of pages; later pages have never been used."""
    transaction: int


def encode_meta(meta: Meta) -> bytes:
    """Encode a meta page; the transaction's number decides which of the two it is."""
    body = _META_BODY.pack(
        MAGIC,
        VERSION,
        meta.page_bytes,
        0,
        meta.root,
        0,
        NO_FREELIST,
        meta.page_count,
        meta.transaction,
    )
    head = PAGE_HEADER.pack(meta.transaction % 2, META, 0, 0)
    return (head + body + _CHECKSUM.pack(_fnv(body))).ljust(meta.page_bytes, b"\0")


def decode_meta(page: bytes) -> Meta | None:
    """Return the content of a meta page; None if it is not whole."""
    if len(page) < META_BYTES:
        return None
    body = page[HEADER_BYTES : HEADER_BYTES + _META_BODY.size]
    magic, version, page_bytes, _, root, _, _, page_count, transaction = _META_BODY.unpack(body)
    (checksum,) = _CHECKSUM.unpack_from(page, HEADER_BYTES + _META_BODY.size)
    is_size = PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX and not page_bytes & page_bytes - 1
    if magic != MAGIC or version != VERSION or checksum != _fnv(body) or not is_size:
        return None
    return Meta(page_bytes, root, page_count, transaction)


def meta_words(page: bytes) -> str:
    """Return the error text of etcd's own reader for a damaged meta page."""
    if len(page) < META_BYTES:
        return "invalid database"
    magic, version, *_ = _META_BODY.unpack_from(page, HEADER_BYTES)
    if magic != MAGIC:
        return "invalid database"
    return "version mismatch" if version != VERSION else "checksum error"


def _fnv(data: bytes) -> int:
    """Return the 64-bit FNV-1a checksum."""
    checksum = _FNV_OFFSET
    for byte in data:
        checksum = (checksum ^ byte) * _FNV_PRIME & _UINT64
    return checksum
