"""A snapshot that was received, read as whoever restores it reads it: all of it."""

from hashlib import sha256
from typing import NamedTuple

from kvorum.backend.bbolt import ImageError, open_image
from kvorum.backend.buckets import (
    FINISHED_COMPACT_REVISION,
    KEY,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.backend.encoding import CHECKSUM_BYTES, parse_row_key
from kvorum.backend.images import sealed_content
from kvorum.backup.errors import ArchiveError
from kvorum.backup.segments import Row, digest_of
from kvorum.client.saving import DIGEST_BYTES, PAGE_BYTES
from kvorum.edge import native_rows
from kvorum.files import Files, Opening

_NATIVE = native_rows()
"""Found when this is imported: its allocator belongs to the thread that loads it, and snapshots are
examined in threads that end."""
_PIECE_BYTES = 1 << 20


class Facts(NamedTuple):
    """What is in a snapshot."""

    size: int
    sha256: str
    """Of the whole file."""
    revision: int
    rows_digest: str
    """Of the rows of that revision; empty if there are none."""


def examine(files: Files, path: str, name: str) -> Facts:
    """Read a snapshot, and check everything that can be; raises ArchiveError."""
    size, digest = _check_digest(files, path, name)
    try:
        image = open_image(files, path, size - DIGEST_BYTES)
        try:
            newest, compacted = 0, 0
            rows: list[Row] = []
            for bucket, pieces in sealed_content(image, _NATIVE):
                for piece in pieces:
                    if bucket == KEY and piece:
                        newest = parse_row_key(piece[-1][0]) >> 32
                        rows = _newest(rows, piece, newest)
                    elif bucket == META:
                        compacted = max(compacted, *map(_compaction, piece), 0)
        finally:
            image.close()
    except ImageError as error:
        raise ArchiveError(f"{name}: {error}") from error
    revision = max(1, newest, compacted)
    plain = [(key, sealed[:-CHECKSUM_BYTES]) for key, sealed in rows]
    # A row without a value marks a raised revision: no watch tells of it.
    known = digest_of(plain) if revision == newest and all(value for _, value in plain) else ""
    return Facts(size, digest, revision, known)


def _newest(rows: list[Row], piece: list[Row], newest: int) -> list[Row]:
    """Return the rows of the newest revision, some of which may have come with pieces before."""
    start = len(piece)
    while start > 0 and parse_row_key(piece[start - 1][0]) >> 32 == newest:
        start -= 1
    if start == 0 and rows and parse_row_key(rows[0][0]) >> 32 == newest:
        return rows + piece
    return piece[start:]


def _compaction(entry: tuple[bytes, bytes]) -> int:
    name, value = entry
    if name in (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION):
        return parse_row_key(value) >> 32
    return 0


def _check_digest(files: Files, path: str, name: str) -> tuple[int, str]:
    """Return size and SHA-256 of a file, whose content its last bytes are the SHA-256 of."""
    descriptor = files.open(path, Opening.READ)
    try:
        size = files.size(descriptor)
        length = size - DIGEST_BYTES
        if length <= 0 or length % PAGE_BYTES:
            raise ArchiveError(f"{name} is no whole snapshot: it has {size} bytes")
        digest = sha256()
        for offset in range(0, length, _PIECE_BYTES):
            digest.update(files.pread(descriptor, offset, min(_PIECE_BYTES, length - offset)))
        expected = files.pread(descriptor, length, DIGEST_BYTES)
        if digest.digest() != expected:
            raise ArchiveError(f"{name} is damaged: its SHA-256 is not the one that it ends with")
        digest.update(expected)
        return size, digest.hexdigest()
    finally:
        files.close(descriptor)
