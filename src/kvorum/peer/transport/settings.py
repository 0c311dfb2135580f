"""Limits and times of a transport. The times are etcd's, so that mixed groups agree on them."""

from collections.abc import Callable
from dataclasses import dataclass

from kvorum.backend.native import NativeRows

LINK_HEARTBEAT_SECONDS = 5.0 / 3
"""Between two heartbeats on a stream, whatever else is sent."""
DIAL_SECONDS_MIN = 0.1
"""Between two attempts to open a stream."""
DOUBLE_SECONDS = 10.0
DOUBLE_TIMES = 3
"""If a stream is taken over so often within so long, it has two live readers."""
PROBE_SECONDS = 4.0
CLOCK_DIFFERENCE_SECONDS_MAX = 1.0
PROGRESS_SECONDS = 5.0
"""Between two lines in the log about a snapshot in transit."""
SNAPSHOT_STALL_SECONDS_MAX = 30.0
"""A snapshot that makes no progress for so long is given up."""
SNAPSHOT_ANSWER_SECONDS_MAX = 300.0
"""The receiver of a snapshot has to make it durable before it answers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the host gives a transport."""

    snap_directory: str | None
    """Where databases that come with snapshots go; None if snapshots have no database."""
    election_seconds: float
    """The election timeout; a peer gets one second more to answer."""
    unix_seconds: Callable[[], float]
    """The time of day, to be compared with the peers'."""
    read_seconds_max: float = 5.0
    """A stream that is silent for so long is dead."""
    write_seconds_max: float = 5.0
    """A stream whose reader takes nothing of what there is for so long is dead."""
    frame_bytes_max: int = 512 << 20
    """Largest message on a stream."""
    body_bytes_max: int = 64 << 20
    """Largest message that is posted, and the message part of a snapshot."""
    bodies_bytes_max: int = 256 << 20
    """All incomplete posted messages together; beyond it they are refused."""
    stream_pending_bytes_max: int = 64 << 20
    """How much a stream's reader may leave unread; further messages are dropped."""
    pipeline_requests_max: int = 4
    """Posts to one peer at a time."""
    pipeline_queue_max: int = 64
    """Messages that wait to be posted to a peer; further ones are dropped."""
    snapshot_piece_bytes: int = 1 << 20
    """How much of a database is read or written at once."""
    native_rows: NativeRows | None = None
    """Compiled functions that check what arrives, if there are any."""
    compares_databases: bool = True
    """Whether a database must say of itself what the snapshot says that it came with."""
    remotes_max: int = 64
    """Nodes that are known only by the address they gave."""

    @property
    def answer_seconds_max(self) -> float:
        """How long a peer may take to begin an answer."""
        return 1.0 + self.election_seconds
