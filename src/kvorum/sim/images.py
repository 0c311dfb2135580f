"""A snapshot as a client saves it: blobs that make up a database, and checks of its content."""

from hashlib import sha256
from typing import NamedTuple

from kvorum.api.pb.etcdserverpb import SnapshotResponse
from kvorum.client.saving import DIGEST_BYTES
from kvorum.sim.history import History
from kvorum.sim.violation import Violation
from kvorum.storage.backend.buckets import (
    CONSISTENT_INDEX,
    FINISHED_COMPACT_REVISION,
    KEY,
    LEASE,
    MEMBERS,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.images import checked_content
from kvorum.storage.files.interface import Opening
from kvorum.storage.files.memory import MemoryFiles
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline.snapshots import HashCheck, open_snapshot

GUARANTEE = "snapshots are states of the store"
_PATH = "/snapshot.db"


class Content(NamedTuple):
    """The content of a snapshot."""

    applied: int
    """The index of the last applied entry."""
    revision: int
    compacted: int
    rows: list[tuple[int, bytes]]


class Blobs:
    """The blobs of one snapshot, as they arrive."""

    __slots__ = ("_data", "_name", "_remaining")

    def __init__(self, name: str) -> None:
        self._name = name
        self._data: list[bytes] = []
        self._remaining: list[int] = []

    def _violate(self, text: str) -> None:
        raise Violation(GUARANTEE, f"{self._name} {text}")

    def take(self, data: bytes) -> None:
        """Take a blob, and check its count of the database's bytes that follow."""
        response = SnapshotResponse.FromString(data)
        if self._remaining:
            expected = max(0, self._remaining[-1] - len(response.blob))
            if response.remaining_bytes != expected:
                self._violate(f"has {response.remaining_bytes} bytes left in place of {expected}")
        self._data.append(response.blob)
        self._remaining.append(response.remaining_bytes)

    def content(self) -> Content:
        """Return the snapshot's content; raise Violation if it is incomplete or damaged."""
        data = b"".join(self._data)
        if not self._data or self._remaining[-1] or len(self._data[-1]) != DIGEST_BYTES:
            self._violate(f"ends after {len(data)} bytes")
        if sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
            self._violate("does not fit its checksum")
        files = MemoryFiles()
        descriptor = files.open(_PATH, Opening.CREATE)
        files.pwrite(descriptor, 0, data)
        files.close(descriptor)
        try:
            return self._read(files)
        except CommandError as error:
            raise Violation(GUARANTEE, f"{self._name} cannot be read: {error}") from error

    def _read(self, files: MemoryFiles) -> Content:
        rows: list[tuple[int, bytes]] = []
        meta: dict[bytes, bytes] = {}
        sizes: dict[bytes, int] = {}
        with open_snapshot(files, _PATH, HashCheck.REQUIRED) as image:
            for bucket, entries in checked_content(image):
                found = list(entries)
                sizes[bucket] = len(found)
                if bucket == KEY:
                    rows = [(parse_row_key(name), kv) for name, kv in found]
                elif bucket == META:
                    meta = dict(found)
        applied = int.from_bytes(meta.get(CONSISTENT_INDEX, b""), "big")
        # A joining member knows no members before it has applied anything.
        if LEASE not in sizes or (applied and not sizes.get(MEMBERS)):
            self._violate(f"has no members, or no leases: {sizes}")
        compacted = -1
        for name in (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION):
            if name in meta:
                compacted = max(compacted, parse_row_key(meta[name]) >> 32)
        newest = rows[-1][0] >> 32 if rows else 1
        return Content(applied, max(newest, compacted), compacted, rows)


def check_content(history: History, now: float, name: str, content: Content) -> None:
    """Require that a snapshot has the rows of the history that its compaction must leave."""
    history.observe(now, name, 2, content.revision, content.compacted, content.rows)
    there = set(content.rows)
    for row in history.needed(content.compacted):
        if row not in there:
            raise Violation(GUARANTEE, f"{name}, compacted at {content.compacted}, lacks {row!r}")
