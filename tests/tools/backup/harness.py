"""A backup that runs beside a test, and what a store was at each of its revisions."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.client import Client
from kvorum.state.mvcc.hashes import hash_rows, scanned_rows
from kvorum.state.mvcc.history import bound
from kvorum.storage.backend import open_view
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.content import merge_log
from kvorum.tools.backup.names import SegmentName
from kvorum.tools.backup.points import Point, find_point
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.session import BackupOptions
from kvorum.tools.backup.stores import ArchiveStore
from kvorum.tools.backup.taking import Taken
from kvorum.tools.utl.restore import RestoreOptions, restore
from tests.waiting import WAIT_SECONDS_MAX

OPTIONS = BackupOptions(every_seconds=3600.0, keep=100, log_seconds=0.02)


class RecordedReports:
    """Records the reports of a backup; tests wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.histories: list[str] = []
        self.reasons: list[str] = []
        self.bytes = 0
        self.taken: list[Taken] = []
        self.segments: list[SegmentName] = []
        self.failures: list[str] = []
        self.warnings: list[str] = []

    def _add(self, where: list[object], what: object) -> None:
        with self._changed:
            where.append(what)
            self._changed.notify_all()

    def note_history_started(self, history: str, reason: str) -> None:
        self.reasons.append(reason)
        self._add(self.histories, history)  # type: ignore[arg-type]

    def note_progress(self, received: int, remaining: int) -> None:
        pass

    def note_snapshot(self, taken: Taken) -> None:
        self._add(self.taken, taken)  # type: ignore[arg-type]

    def note_segment(self, name: SegmentName, size: int) -> None:
        self.bytes += size
        self._add(self.segments, name)  # type: ignore[arg-type]

    def note_failure(self, what: str, error: Exception) -> None:
        self._add(self.failures, f"{what}: {error!r}")  # type: ignore[arg-type]

    def note_warning(self, text: str) -> None:
        self._add(self.warnings, text)  # type: ignore[arg-type]

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition on the reports holds."""
        with self._changed:
            assert self._changed.wait_for(is_so, WAIT_SECONDS_MAX), (self.__dict__,)

    def wait_recorded(self, revision: int) -> None:
        """Wait until a revision is in the archive: in a snapshot, or in the log."""

        def is_recorded() -> bool:
            snapshots = [each.name.revision for each in self.taken]
            return max([*snapshots, *(each.last for each in self.segments)], default=0) >= revision

        self.wait(is_recorded)


@contextmanager
def running_backup(
    client: Client, store: ArchiveStore, options: BackupOptions = OPTIONS
) -> Iterator[RecordedReports]:
    """Make backups for as long as the block takes; the first snapshot has been taken in it."""
    told = RecordedReports()
    made = Backup(client, store, options, told)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield told
    finally:
        made.stop()
        thread.join(WAIT_SECONDS_MAX)
        assert not thread.is_alive()


class State(NamedTuple):
    """What a store is at a revision."""

    kvs: list[tuple[object, ...]]
    """Fields of the keys, in the order of keys."""
    hash: int
    compact_revision: int


def state_of(client: Client, revision: int) -> State:
    """Ask a server what it is at a revision."""
    kvs: list[tuple[object, ...]] = [
        tuple(each) for each in client.range(from_key=b"\0", revision=revision)
    ]
    found = client.maintenance.hash_kv(revision=revision)
    return State(kvs, found.hash, found.compact_revision)


def restored(directory: Path, store: ArchiveStore, point: Point, **options: object) -> Path:
    """Restore a point, by default with its own revisions."""
    with store.local(str(point.snapshot)) as (files, path):
        return restore(
            files,
            LmdbEnvironments(),
            RestoreOptions(path=path, data_directory=str(directory), **options),  # type: ignore[arg-type]
            lambda content: merge_log(content, store, point),
        )


def state_in(directory: Path, revision: int, compact_revision: int) -> State:
    """Read what a restored store is, from its rows, as seen above a compacted revision."""
    backend = str(directory / "member" / "backend")
    with open_view(RealFiles(), LmdbEnvironments(), backend) as view:
        found: dict[bytes, KeyValue] = {}
        for row, value in scanned_rows(view, bound(revision), PRODUCTION.hash_rows_per_scan):
            if not value:
                continue  # marks a raised revision
            kv = KeyValue.FromString(value)
            if row & 1:
                found.pop(kv.key, None)
            else:
                found[kv.key] = kv
        found_hash = hash_rows(
            lambda main: scanned_rows(view, bound(main), PRODUCTION.hash_rows_per_scan),
            revision,
            compact_revision,
            is_compaction=False,
        )
    kvs: list[tuple[object, ...]] = [
        (each.key, each.value, each.create_revision, each.mod_revision, each.version, each.lease)
        for _, each in sorted(found.items())
    ]
    return State(kvs, found_hash, compact_revision)


def point_of(
    store: ArchiveStore, revision: int | None = None, moment: float | None = None
) -> Point:
    """Find a point of an archive that is whole."""
    complaints: list[str] = []
    point = find_point(Archive(store), revision, moment, complaints.append)
    assert not complaints
    return point
