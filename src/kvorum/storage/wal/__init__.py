"""The write-ahead log, in etcd's format.

`create_log`, `open_log` and `open_newest` return a `Log`, which lives on the loop and creates jobs;
`read_log` and `valid_snapshots` only read. See docs/storage.md.
"""

from kvorum.storage.wal.decoding import Tear
from kvorum.storage.wal.errors import (
    CorruptLogError,
    LogExistsError,
    LogLockedError,
    SegmentsMissingError,
    SnapshotNotInLogError,
    WalError,
)
from kvorum.storage.wal.jobs import AppendLog, CloseLog, CutSegment, PrepareSegment, ReleaseSegments
from kvorum.storage.wal.log import Log
from kvorum.storage.wal.opening import create_log, open_log, open_newest
from kvorum.storage.wal.reading import LogContent, SnapshotRecord, read_log, valid_snapshots
from kvorum.storage.wal.segments import SEGMENT_BYTES, exists, leftovers

__all__ = [
    "SEGMENT_BYTES",
    "AppendLog",
    "CloseLog",
    "CorruptLogError",
    "CutSegment",
    "Log",
    "LogContent",
    "LogExistsError",
    "LogLockedError",
    "PrepareSegment",
    "ReleaseSegments",
    "SegmentsMissingError",
    "SnapshotNotInLogError",
    "SnapshotRecord",
    "Tear",
    "WalError",
    "create_log",
    "exists",
    "leftovers",
    "open_log",
    "open_newest",
    "read_log",
    "valid_snapshots",
]
