"""The log, and the snapshot at which it begins: a member starts from these and its database.

A written history has one snapshot, at the database's applied index, and the entries after it.
Reading accepts logs of etcd and of Kvorum, even with a torn end, and changes nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState, Snapshot
from kvorum.storage.files import Files
from kvorum.storage.files.interface import read_file
from kvorum.storage.snap import SnapError, WriteSnap, decode
from kvorum.storage.snap.format import parse_name
from kvorum.storage.wal import (
    AppendLog,
    LogContent,
    SnapshotRecord,
    create_log,
    read_log,
    valid_snapshots,
)

_BATCH_ENTRIES = 1_000


class LogHistory(NamedTuple):
    """A log, and the snapshot that it records."""

    metadata: bytes
    snapshot: Snapshot | None
    entries: Sequence[Entry]
    """Either the entries right after the snapshot, or all entries from index 1 on."""
    state: HardState


def read_history(
    files: Files, snap: Path, wal: Path, applied: int = 0
) -> tuple[Snapshot | None, LogContent]:
    """Return the newest usable snapshot, and the log after it.

    A snapshot up to `applied`, the database's applied index, needs no file, because etcd 3.8 writes
    none. Without a file, the snapshot has no data.
    """
    records = valid_snapshots(files, str(wal))
    snapshot = _newest_snapshot(files, snap, {(each.index, each.term) for each in records})
    record = max(
        (each for each in records if each.index <= applied and each.conf_state.voters),
        key=lambda each: each.index,
        default=SnapshotRecord(),
    )
    if record.index > (0 if snapshot is None else snapshot.index):
        snapshot = Snapshot(record.index, record.term, record.conf_state)
    elif snapshot is not None:
        record = SnapshotRecord(snapshot.index, snapshot.term, snapshot.conf_state)
    return snapshot, read_log(files, str(wal), record)


def _newest_snapshot(files: Files, snap: Path, known: set[tuple[int, int]]) -> Snapshot | None:
    for name in reversed(files.list(str(snap))):
        if parse_name(name) is not None:
            path = str(snap / name)
            try:
                snapshot = decode(path, read_file(files, path))
            except SnapError:
                continue  # an older one may be complete
            if (snapshot.index, snapshot.term) in known:
                return snapshot
    return None


def write_history(files: Files, snap: Path, wal: Path, history: LogHistory) -> None:
    """Write a log and its snapshot, both durable on return."""
    snapshot, entries = history.snapshot, history.entries
    log = create_log(files, str(wal), history.metadata)
    try:
        before = 0
        if snapshot is not None:
            before = sum(entry.index <= snapshot.index for entry in entries)
            _run(files, log.save(None, entries[:before]) if before else None)
            # The file first, its record second: a record never refers to a missing file.
            WriteSnap(str(snap), snapshot).run(files)
            _run(files, log.save_snapshot(snapshot.index, snapshot.term, snapshot.conf_state))
        for start in range(before, len(entries), _BATCH_ENTRIES):
            _run(files, log.save(None, entries[start : start + _BATCH_ENTRIES]))
        _run(files, log.save(history.state, ()) or log.flush())
    finally:
        log.close().run(files)


def _run(files: Files, job: AppendLog | None) -> None:
    if job is not None:
        job.run(files)
