"""Archives without a server: random histories, recorded as a watch would tell them."""

import random
from hashlib import sha256
from itertools import takewhile

from kvorum.api.pb.etcdserverpb import ResponseHeader
from kvorum.client.saving import DIGEST_BYTES
from kvorum.client.values import Changes, Event, EventKind, KeyValue
from kvorum.storage.backend.bbolt import open_image, write_image
from kvorum.storage.backend.buckets import BUCKETS, KEY
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.images import checked_content
from kvorum.storage.files import Opening
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import MemoryFiles
from kvorum.tools.backup.content import merge_log
from kvorum.tools.backup.moments import stamp_of
from kvorum.tools.backup.names import SegmentName
from kvorum.tools.backup.points import Point
from kvorum.tools.backup.recording import HistoryPosition, Recorder
from kvorum.tools.backup.segments import Row, rows_of
from kvorum.tools.backup.stores import ArchiveStore, write_verified
from kvorum.tools.backup.taking import count_snapshot, keep_snapshot

CLUSTER = 7
KEYS = [b"key/%d" % number for number in range(6)]
LEASE = 1234


class Source:
    """A store that changes by itself, and remembers its rows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.revision = 1
        self.rows: list[Row] = []
        self._live: dict[bytes, KeyValue] = {}

    def change(self, count: int) -> Changes:
        """Make some revisions, and tell of them."""
        events: list[Event] = []
        for _ in range(count):
            self.revision += 1
            made = [
                self._changed(key) for key in self.chance.sample(KEYS, self.chance.randint(1, 3))
            ]
            self.rows += rows_of(self.revision, made)
            events += made
        return Changes(events, self.revision, ResponseHeader(cluster_id=CLUSTER, raft_term=2))

    def _changed(self, key: bytes) -> Event:
        before = self._live.get(key)
        if before is not None and self.chance.random() < 0.3:
            del self._live[key]
            return Event(EventKind.DELETE, KeyValue(key, b"", 0, self.revision, 0, 0), None)
        created = self.revision if before is None else before.create_revision
        version = 1 if before is None else before.version + 1
        value = self.chance.randbytes(self.chance.choice([0, 3, 2000]))
        lease = self.chance.choice([0, 0, LEASE])
        kv = self._live[key] = KeyValue(key, value, created, self.revision, version, lease)
        return Event(EventKind.PUT, kv, None)

    def rows_to(self, revision: int) -> list[Row]:
        """Return the rows up to a revision."""
        return list(takewhile(lambda row: parse_row_key(row[0]) >> 32 <= revision, self.rows))

    def snapshot(self) -> bytes:
        """Return a snapshot of now."""
        files = MemoryFiles()
        descriptor = files.open("image", Opening.CREATE)
        write_image(
            files,
            descriptor,
            ((bucket, self.rows if bucket == KEY else []) for bucket in BUCKETS),
        )
        files.close(descriptor)
        content = read_file(files, "image")
        return content + sha256(content).digest()


class Scribe:
    """Records one history of a source, as a session does, but when the test wants it."""

    def __init__(
        self, store: ArchiveStore, source: Source, history: str = "20261117T000000.000Z-00000000"
    ) -> None:
        self._store = store
        self._source = source
        self.history = history
        self.now = 1_800_000_000.0
        self._since = self.now
        self._recorder = Recorder(history, CLUSTER, HistoryPosition(source.revision, ""))
        self.times: dict[int, float] = {source.revision: self.now}
        """When each revision was heard of."""

    def record(self, count: int) -> SegmentName:
        """Let the source change so often, and bring that into the archive."""
        self.now += 1.0
        self._recorder.add(self._source.change(count), self.now)
        heard = range(self._recorder.written + 1, self._source.revision + 1)
        self.times |= dict.fromkeys(heard, self.now)
        first, last, data = self._recorder.take(self._since, self.now, {LEASE: 60})
        name = SegmentName(self.history, first, last, stamp_of(self.now))
        write_verified(self._store, str(name), data)
        return name

    def snapshot(self, keep: int) -> int:
        """Take a snapshot; return its revision."""
        self.now += 1.0
        with self._store.spool() as spool:
            spool.add(self._source.snapshot())
            spool.sync()
            origin = (CLUSTER, self.now, "3.7.0")
            received = keep_snapshot(self._store, spool, self.history, origin, 1)
        return count_snapshot(self._store, received, keep, has_log=True).name.revision


def rows_at(store: ArchiveStore, point: Point) -> list[Row]:
    """Return the rows that a restore would make."""
    with store.local(str(point.snapshot)) as (files, path):
        descriptor = files.open(path, Opening.READ)
        length = files.size(descriptor) - DIGEST_BYTES
        files.close(descriptor)
        image = open_image(files, path, length)
        try:
            content = merge_log(checked_content(image), store, point)
            return [row for bucket, entries in content for row in entries if bucket == KEY]
        finally:
            image.close()
