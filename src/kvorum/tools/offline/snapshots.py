"""Snapshot files: an etcd database followed by its SHA-256.

A plain copy of a member's database has no SHA-256; opening it fails if the caller requires one. A
file has a checksum if its length is 32 bytes more than a multiple of 512, the smallest page size.
"""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from google_crc32c import extend

from kvorum.client.saving import DIGEST_BYTES, PAGE_BYTES
from kvorum.storage.backend.bbolt import Image, ImageError, open_image
from kvorum.storage.backend.buckets import KEY, META, STORAGE_VERSION
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.images import sealed_content
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.files import Files, Opening
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline.newest import Newest
from kvorum.tools.offline.progress import ByteProgress

_PIECE_BYTES = 1 << 20
_NONE_COMPACTED = -1


class HashCheck(Enum):
    """How to treat the checksum after a database."""

    REQUIRED = "required"
    IF_PRESENT = "if present"
    WARNED = "warned"
    """A wrong checksum only prints a warning to the standard error."""
    SKIPPED = "skipped"


class SnapshotStatus(NamedTuple):
    """The result of `snapshot status`."""

    hash: int
    revision: int
    total_key: int
    """The number of live keys, as a client sees them."""
    total_size: int
    version: str
    """The storage version; empty before etcd 3.6."""


@contextmanager
def open_snapshot(files: Files, path: str, check: HashCheck) -> Iterator[Image]:
    """Verify a snapshot's checksum and open it; turn ImageErrors into CommandErrors."""
    if not files.exists(path):
        raise CommandError(f"stat {path}: no such file or directory")
    if Path(path).is_dir():
        raise CommandError("invalid database", hint=f"{path} is a directory, not a snapshot file")
    length = _content_length(files, path, check)
    try:
        image = open_image(files, path, length)
    except ImageError as error:
        if not error.words:
            raise CommandError(str(error)) from error
        raise CommandError(error.words, hint=str(error)) from error
    try:
        yield image
    except ImageError as error:
        raise CommandError(str(error)) from error
    finally:
        image.close()


def _content_length(files: Files, path: str, check: HashCheck) -> int:
    """Return the length of the database in a file; raises CommandError if its checksum is wrong."""
    descriptor = files.open(path, Opening.READ)
    try:
        length = files.size(descriptor)
        has_digest = length % PAGE_BYTES == DIGEST_BYTES
        if has_digest:
            length -= DIGEST_BYTES
        if not has_digest and check is HashCheck.REQUIRED:
            raise CommandError("snapshot missing hash but --skip-hash-check=false")
        if not has_digest or check is HashCheck.SKIPPED:
            return length
        digest = sha256()
        with ByteProgress("checking ", length) as progress:
            for offset in range(0, length, _PIECE_BYTES):
                piece = files.pread(descriptor, offset, min(_PIECE_BYTES, length - offset))
                digest.update(piece)
                progress.add(len(piece))
        expected = files.pread(descriptor, length, DIGEST_BYTES)
        if digest.digest() != expected:
            text = f"expected sha256 {_numbers(expected)}, got {_numbers(digest.digest())}"
            hint = f"{path} is not what was saved; use another copy of the snapshot"
            if check is not HashCheck.WARNED:
                raise CommandError(text, hint=hint)
            sys.stderr.write(f"Warning: {text}: {hint}\n")
        return length
    finally:
        files.close(descriptor)


def _numbers(data: bytes) -> str:
    """Format bytes as Go prints a byte slice."""
    return f"[{' '.join(map(str, data))}]"


def used_bytes(files: Files, path: str) -> int:
    """Read a whole database and return how many of its bytes are in use."""
    with open_snapshot(files, path, HashCheck.SKIPPED) as image:
        for bucket in image.buckets():
            for _ in image.leaves(bucket):
                pass
        return image.used_bytes()


def status_of(files: Files, path: str, native: NativeRows | None = None) -> SnapshotStatus:
    """Read a whole snapshot and return its status, in memory that does not grow with it."""
    value, revision, version = 0, 0, ""
    newest = Newest(native)
    with (
        closing(newest),
        open_snapshot(files, path, HashCheck.WARNED) as image,
        ByteProgress("reading ", image.size) as progress,
    ):
        for bucket, pieces in sealed_content(image, native):
            value = extend(value, bucket)
            for entries in pieces:
                if bucket == KEY:
                    found = newest.checksum(value, entries, 0, _NONE_COMPACTED)
                    assert newest.note(entries) and found is not None, "they have just been sealed"
                    value = found
                    if entries:
                        revision = parse_row_key(entries[-1][0]) >> 32
                else:
                    for name, content in entries:
                        value = extend(extend(value, name), content)
                        if bucket == META and name == STORAGE_VERSION:
                            version = content.decode()
                progress.add(sum([len(name) + len(content) for name, content in entries]))
        return SnapshotStatus(value, revision, newest.finish(), image.size, version)
