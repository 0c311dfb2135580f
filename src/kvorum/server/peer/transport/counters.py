"""The metrics of a peer."""

from kvorum.api.histograms import Histogram, exponential

_TRANSFER_BOUNDS = exponential(0.1, 10)


class PeerCounters:
    """Counters since the peer was added, and the last round-trip time."""

    __slots__ = (
        "disconnections",
        "dropped_messages",
        "receive_failures",
        "received_bytes",
        "round_trip_seconds",
        "round_trips",
        "send_failures",
        "sent_bytes",
        "snapshot_receive_seconds",
        "snapshot_send_seconds",
        "snapshots_not_received",
        "snapshots_not_sent",
        "snapshots_received",
        "snapshots_receiving",
        "snapshots_sending",
        "snapshots_sent",
    )

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.send_failures = 0
        self.receive_failures = 0
        self.dropped_messages = 0
        self.disconnections = 0
        self.snapshots_sent = 0
        self.snapshots_not_sent = 0
        self.snapshots_received = 0
        self.snapshots_not_received = 0
        self.snapshots_sending = 0
        self.snapshots_receiving = 0
        self.snapshot_send_seconds = Histogram(_TRANSFER_BOUNDS)
        self.snapshot_receive_seconds = Histogram(_TRANSFER_BOUNDS)
        """The durations of successful transfers."""
        self.round_trips = 0
        self.round_trip_seconds = 0.0
