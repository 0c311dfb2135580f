"""Read a received snapshot completely, as a restore reads it."""

from collections import deque
from hashlib import sha256
from itertools import chain, groupby
from typing import NamedTuple

from kvorum.client.saving import DIGEST_BYTES, PAGE_BYTES
from kvorum.network.edge import native_rows
from kvorum.storage.backend.bbolt import ImageError, open_image
from kvorum.storage.backend.buckets import (
    FINISHED_COMPACT_REVISION,
    KEY,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.storage.backend.encoding import CHECKSUM_BYTES, parse_row_key
from kvorum.storage.backend.images import sealed_content
from kvorum.storage.files import Files, Opening
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.segments import (
    COMPARED_BYTES_MAX,
    COMPARED_REVISIONS_MAX,
    Known,
    Row,
    digest_of,
)

_NATIVE = native_rows()
"""Loaded at import, because its allocator belongs to the loading thread, and the threads that
examine snapshots end."""
_PIECE_BYTES = 1 << 20


class SnapshotFacts(NamedTuple):
    """What a snapshot contains."""

    size: int
    sha256: str
    """The SHA-256 of the whole file."""
    revision: int
    rows_digest: str
    """The digest of the rows of that revision; empty if there are none."""


class Examined(NamedTuple):
    """The result of reading a snapshot."""

    facts: SnapshotFacts
    known: list[Known]
    """The newest revisions, as many as are compared with other histories."""


def examine(files: Files, path: str, name: str) -> Examined:
    """Read and check a snapshot completely; raise ArchiveError if it is damaged."""
    size, digest = _check_digest(files, path, name)
    try:
        image = open_image(files, path, size - DIGEST_BYTES)
        try:
            newest, compacted = _Newest(), 0
            for bucket, pieces in sealed_content(image, _NATIVE):
                for piece in pieces:
                    if bucket == KEY and piece:
                        newest.add(piece)
                    elif bucket == META:
                        compacted = max(compacted, *map(_compaction, piece), 0)
        finally:
            image.close()
    except ImageError as error:
        raise ArchiveError(f"{name}: {error}") from error
    revision = max(1, newest.revision, compacted)
    # Compaction has removed some rows of the compacted revisions.
    known = [
        each for each in newest.known() if each.revision > compacted or each.revision == revision
    ]
    has_last = bool(known) and known[-1].revision == revision
    return Examined(
        SnapshotFacts(size, digest, revision, known[-1].digest if has_last else ""), known
    )


class _Newest:
    """The rows of the newest revisions, collected from pieces in ascending order."""

    def __init__(self) -> None:
        self.revision = 0
        self._pieces: deque[tuple[list[Row], int]] = deque()
        self._bytes = 0
        self._is_cut = False

    def add(self, piece: list[Row]) -> None:
        """Add the next piece, and drop the oldest pieces above the limit."""
        self.revision = _revision(piece[-1])
        size = sum(len(value) for _, value in piece)
        self._pieces.append((piece, size))
        self._bytes += size
        while (
            self._bytes - self._pieces[0][1] > COMPARED_BYTES_MAX
            and _revision(self._pieces[0][0][-1]) < self.revision
        ):
            self._bytes -= self._pieces.popleft()[1]
            self._is_cut = True

    def known(self) -> list[Known]:
        """Return the newest revisions whose rows are all present, in ascending order."""
        rows = chain.from_iterable(piece for piece, _ in self._pieces)
        found: list[Known] = []
        for number, (revision, group) in enumerate(groupby(rows, _revision)):
            plain = [(key, sealed[:-CHECKSUM_BYTES]) for key, sealed in group]
            # Dropped pieces may have held rows of the first revision. A row without a value marks a
            # raised revision, which no watch reports.
            if (number or not self._is_cut) and all(value for _, value in plain):
                found.append(Known(revision, digest_of(plain)))
        return found[-COMPARED_REVISIONS_MAX:]


def _revision(row: Row) -> int:
    return parse_row_key(row[0]) >> 32


def _compaction(entry: tuple[bytes, bytes]) -> int:
    name, value = entry
    if name in (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION):
        return parse_row_key(value) >> 32
    return 0


def _check_digest(files: Files, path: str, name: str) -> tuple[int, str]:
    """Return size and SHA-256 of a file; check the SHA-256 of its content in its last bytes."""
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
