"""Counters and histograms of the server, its loop and its jobs, from which metrics are made."""

from typing import Any, Final

from kvorum.api.histograms import Histogram
from kvorum.server.peer.transport.arrivals import FinishDatabase
from kvorum.server.telemetry.families import DEFRAGMENTATIONS, HASHES, LONG, QUICK
from kvorum.state.mvcc.hashes import HashDatabase, HashRows
from kvorum.storage.backend import CommitFlush, StageFlush
from kvorum.storage.backend.defragment import CopyDatabase
from kvorum.storage.snap import WriteSnap

TIMED: Final = (
    StageFlush,
    CommitFlush,
    CopyDatabase,
    HashDatabase,
    HashRows,
    FinishDatabase,
    WriteSnap,
)
"""The types of jobs that `JobCounters.observe` counts."""


class ServerCounters:
    """A server's counters of late heartbeats, leader changes, slow applies and turns."""

    __slots__ = ("heartbeats_late", "leader_changes", "slow_applies", "turns")

    def __init__(self) -> None:
        self.heartbeats_late = 0
        self.leader_changes = 0
        self.slow_applies = 0
        self.turns = Histogram(QUICK)
        """The durations of turns."""


class BackupCounters:
    """A member's counters of its own backups."""

    __slots__ = ("failures", "revision", "snapshot_seconds", "snapshots", "written_bytes")

    def __init__(self) -> None:
        self.failures = 0
        self.revision = 0
        """The newest revision in the archive."""
        self.snapshot_seconds = 0.0
        """When the member took its newest snapshot, in Unix time."""
        self.snapshots = 0
        self.written_bytes = 0


class JobCounters:
    """The durations of jobs by type, and the bytes written to the log."""

    __slots__ = (
        "_staged_seconds",
        "appended_bytes",
        "appends",
        "commits",
        "database_syncs",
        "defragmentations",
        "flushes",
        "flushes_finely",
        "hashes",
        "hashes_of_keys",
        "snap_encodings",
        "snap_saves",
        "snap_writes",
        "stagings",
        "syncs",
        "syncs_finely",
    )

    def __init__(self) -> None:
        self.appended_bytes = 0
        self.appends = Histogram(LONG)
        self.syncs = Histogram(LONG)
        self.syncs_finely = Histogram(QUICK)
        self.stagings = Histogram(LONG)
        self.commits = Histogram(LONG)
        self.flushes = Histogram(LONG)
        self.flushes_finely = Histogram(QUICK)
        self.defragmentations = Histogram(DEFRAGMENTATIONS)
        self.hashes = Histogram(HASHES)
        self.hashes_of_keys = Histogram(HASHES)
        self.database_syncs = Histogram(LONG)
        self.snap_saves = Histogram(LONG)
        self.snap_writes = Histogram(LONG)
        self.snap_encodings = Histogram(LONG)
        self._staged_seconds = 0.0

    def appended(self, write_seconds: float, sync_seconds: float) -> None:
        """Observe an append to the log."""
        self.appends.observe(write_seconds)
        self.syncs.observe(sync_seconds)
        self.syncs_finely.observe(sync_seconds)

    def observe(self, work: Any, seconds: float, sync_seconds: float) -> None:
        """Observe a finished job of a type in `TIMED`, and the duration of its syncs."""
        if isinstance(work, StageFlush):
            self._staged_seconds = seconds
            self.stagings.observe(seconds)
        elif isinstance(work, CommitFlush):
            self.commits.observe(seconds)
            self.flushes.observe(self._staged_seconds + seconds)
            self.flushes_finely.observe(self._staged_seconds + seconds)
        elif isinstance(work, CopyDatabase):
            self.defragmentations.observe(seconds)
        elif isinstance(work, HashDatabase):
            self.hashes.observe(seconds)
        elif isinstance(work, HashRows):
            if not work.is_compaction:
                self.hashes_of_keys.observe(seconds)
        elif isinstance(work, FinishDatabase):
            self.database_syncs.observe(sync_seconds)
        elif isinstance(work, WriteSnap):
            self.snap_saves.observe(seconds)
            self.snap_writes.observe(sync_seconds)
            self.snap_encodings.observe(seconds - sync_seconds)
