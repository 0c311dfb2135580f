"""Reads an image, a file of etcd's, and checks that a member can start from its content.

The walk through the pages finds damage of the tree. This module finds damage within entries: keys
that are not row keys, and values that are not the canonical form of a `KeyValue` of that revision.
It checks while reading, so memory holds one leaf of the file at a time.
"""

from collections.abc import Iterator
from itertools import chain

from google.protobuf.message import DecodeError

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.bbolt import Image, ImageError
from kvorum.storage.backend.buckets import BUCKETS, KEY
from kvorum.storage.backend.encoding import parse_row_key, seal_value
from kvorum.storage.backend.errors import describe_revision
from kvorum.storage.backend.native import NativeRows

Entries = Iterator[tuple[bytes, bytes]]
Content = Iterator[tuple[bytes, Entries]]
SealedPieces = Iterator[list[tuple[bytes, bytes]]]
SealedContent = Iterator[tuple[bytes, SealedPieces]]
"""Like `Content`, with entries in pieces, and with checksums appended to the values of rows."""


def checked_content(image: Image) -> Content:
    """Yield every bucket with its entries, both in order; raise ImageError for damage."""
    for bucket in image.buckets():
        if bucket not in BUCKETS:
            raise ImageError(
                image.path, f"it has a bucket {bucket!r}, which no known version of etcd has"
            )
        yield bucket, checked_rows(image) if bucket == KEY else image.items(bucket)


def checked_rows(image: Image) -> Entries:
    """Yield the rows of bucket `key` in the order of their keys."""
    return chain.from_iterable(_checked_leaves(image))


def _checked_leaves(image: Image) -> Iterator[list[tuple[bytes, bytes]]]:
    for leaf in image.leaves(KEY):
        yield _checked(image, leaf)


def sealed_content(image: Image, native: NativeRows | None) -> SealedContent:
    """Yield buckets as `checked_content` does, with rows in pieces and checksums appended."""
    for bucket, _ in checked_content(image):
        yield bucket, image_rows(image, native) if bucket == KEY else image.leaves(bucket)


def image_rows(image: Image, native: NativeRows | None) -> SealedPieces:
    """Yield the rows of bucket `key` in pieces, with their checksums; raise ImageError."""
    for is_taken, leaf in image.pieces(KEY, None if native is None else native.rows_of_leaves):
        if is_taken:
            yield leaf
        else:
            yield [(key, seal_value(key, value)) for key, value in _checked(image, leaf)]


def _checked(image: Image, leaf: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Check the rows of a leaf and return them."""
    decode = KeyValue.FromString
    for key, value in leaf:
        try:
            revision = parse_row_key(key)
        except ValueError as error:
            raise ImageError(image.path, str(error)) from error
        try:
            kv = decode(value)
            is_sound = kv.SerializeToString() == value and (
                kv.mod_revision == revision >> 32 if not revision & 1 else bool(kv.key)
            )
        except DecodeError:
            is_sound = False
        # A row without a value records the revision to which a restore raised its snapshot.
        if not is_sound and value:
            raise ImageError(
                image.path, f"the {describe_revision(revision)} holds no key and value of it"
            )
    return leaf
