"""Limits and times of a transport. The times are etcd's, so that mixed groups agree on them."""

from collections.abc import Callable
from dataclasses import dataclass

from kvorum.storage.backend.native import NativeRows

LINK_HEARTBEAT_SECONDS = 5.0 / 3
"""The interval of heartbeats on a stream, independent of other messages."""
DIAL_SECONDS_MIN = 0.1
"""The minimum time between two attempts to open a stream."""
DOUBLE_SECONDS = 10.0
DOUBLE_TIMES = 3
"""This many takeovers of a stream within `DOUBLE_SECONDS` mean that it has two live readers."""
PROBE_SECONDS = 4.0
CLOCK_DIFFERENCE_SECONDS_MAX = 1.0
PROGRESS_SECONDS = 5.0
"""The interval of log lines about a snapshot in transit."""
SNAPSHOT_STALL_SECONDS_MAX = 30.0
"""A snapshot without progress for this long is abandoned."""
SNAPSHOT_ANSWER_SECONDS_MAX = 300.0
"""The timeout of the answer to a snapshot, which the receiver must make durable first."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """The settings that the host gives a transport."""

    snap_directory: str | None
    """The directory for databases that come with snapshots; None if snapshots have none."""
    election_seconds: float
    """The election timeout; a peer gets one second more to answer."""
    unix_seconds: Callable[[], float]
    """Returns the time of day, for comparison with the peers' clocks."""
    read_seconds_max: float = 5.0
    """A stream that is silent for this long is dead."""
    write_seconds_max: float = 5.0
    """A stream whose reader leaves bytes unread for this long, without progress, is dead."""
    frame_bytes_max: int = 512 << 20
    """The largest message on a stream."""
    body_bytes_max: int = 64 << 20
    """The largest posted message, and the largest message part of a snapshot."""
    bodies_bytes_max: int = 256 << 20
    """The bytes of all incomplete posted messages together; beyond that, messages are refused."""
    stream_pending_bytes_max: int = 64 << 20
    """How many bytes a stream's reader may leave unread; further messages are dropped."""
    pipeline_requests_max: int = 4
    """How many posts to one peer run at a time."""
    pipeline_queue_max: int = 64
    """How many messages to one peer wait for a post; further ones are dropped."""
    snapshot_piece_bytes: int = 1 << 20
    """The piece size for reading and writing a database."""
    native_rows: NativeRows | None = None
    """Compiled functions that check received databases; None if there are none."""
    compares_databases: bool = True
    """Whether a received database must match its snapshot's index, term and members."""
    remotes_max: int = 64
    """How many nodes are kept that are known only by the address in their requests."""

    @property
    def answer_seconds_max(self) -> float:
        """How long a peer may take to start an answer."""
        return 1.0 + self.election_seconds
