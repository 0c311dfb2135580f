"""What the server and its jobs count for the metrics: plain numbers."""

from kvorum.backend import CommitFlush
from kvorum.backend.defragment import CopyDatabase
from kvorum.mvcc.hashes import HashRows
from kvorum.snap import WriteSnap
from kvorum.telemetry.exposition import Histogram, exponential
from kvorum.wal import AppendLog


class ServerFigures:
    """What a server counted about its own pace and its cluster."""

    __slots__ = ("heartbeats_late", "leader_changes", "slow_applies")

    def __init__(self) -> None:
        self.heartbeats_late = 0
        self.leader_changes = 0
        self.slow_applies = 0


class JobFigures:
    """How long jobs took, by the kind of their work, and how much was written."""

    __slots__ = ("appended_bytes", "durations")

    def __init__(self) -> None:
        self.appended_bytes = 0
        self.durations: dict[type, Histogram] = {
            AppendLog: Histogram(exponential(0.001, 14)),
            CommitFlush: Histogram(exponential(0.001, 14)),
            WriteSnap: Histogram(exponential(0.001, 14)),
            CopyDatabase: Histogram(exponential(0.1, 13)),
            HashRows: Histogram(exponential(0.01, 15)),
        }
