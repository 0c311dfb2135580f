"""The metrics about other members: bytes, failures, round trips and connectivity."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kvorum.api.histograms import Histogram
from kvorum.member.member import Member
from kvorum.server.peer.cluster.peering import Peering
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.telemetry.exposition import Sample, histogram_samples
from kvorum.server.telemetry.families import ROUND_TRIPS, TRANSFERS

Shown = tuple[str, list[Sample]]
"""The name of a metric, and its samples."""

_NUMBERS: Final[dict[str, tuple[str, Callable[[PeerCounters], int]]]] = {
    "etcd_network_peer_sent_bytes_total": ("To", lambda peer: peer.sent_bytes),
    "etcd_network_peer_received_bytes_total": ("From", lambda peer: peer.received_bytes),
    "etcd_network_peer_sent_failures_total": ("To", lambda peer: peer.send_failures),
    "etcd_network_peer_received_failures_total": ("From", lambda peer: peer.receive_failures),
    "etcd_network_snapshot_send_inflights_total": ("To", lambda peer: peer.snapshots_sending),
    "etcd_network_snapshot_send_success": ("To", lambda peer: peer.snapshots_sent),
    "etcd_network_snapshot_send_failures": ("To", lambda peer: peer.snapshots_not_sent),
    "etcd_network_snapshot_receive_inflights_total": (
        "From",
        lambda peer: peer.snapshots_receiving,
    ),
    "etcd_network_snapshot_receive_success": ("From", lambda peer: peer.snapshots_received),
    "etcd_network_snapshot_receive_failures": ("From", lambda peer: peer.snapshots_not_received),
    "kvorum_network_peer_dropped_messages_total": ("To", lambda peer: peer.dropped_messages),
}
"""The label and the value of each metric that has one number per peer."""


class PeerMetrics:
    """Makes samples from the transport's counters, and collects round trips as they occur."""

    def __init__(self, member: Member, peering: Peering) -> None:
        self._member = member
        self._peering = peering
        self._round_trips: dict[int, tuple[int, Histogram]] = {}

    def observe(self) -> None:
        """Record new round trips of probes; called more often than probes are sent."""
        for peer, known in self._peering.transport.peers.items():
            counters = known.counters
            seen, histogram = self._round_trips.get(peer) or (0, Histogram(ROUND_TRIPS))
            if counters.round_trips != seen:
                histogram.observe(counters.round_trip_seconds)
                self._round_trips[peer] = counters.round_trips, histogram

    def shown(self) -> Iterator[Shown]:
        """Return the metrics about peers."""
        peers = self._peering.transport.peers
        counters = {f"{peer:x}": known.counters for peer, known in peers.items()}
        for name, (label, number) in _NUMBERS.items():
            yield name, [Sample(number(each), {label: peer}) for peer, each in counters.items()]
        local = f"{self._member.id:x}"
        yield (
            "etcd_network_active_peers",
            [
                Sample(known.is_connected, {"Local": local, "Remote": f"{peer:x}"})
                for peer, known in peers.items()
            ],
        )
        yield (
            "etcd_network_disconnected_peers_total",
            [
                Sample(each.disconnections, {"Local": local, "Remote": peer})
                for peer, each in counters.items()
            ],
        )
        round_trips = {peer: found for peer, (_, found) in self._round_trips.items()}
        sent = {peer: known.counters.snapshot_send_seconds for peer, known in peers.items()}
        received = {peer: known.counters.snapshot_receive_seconds for peer, known in peers.items()}
        for name, label, by_peer in (
            ("etcd_network_peer_round_trip_time_seconds", "To", round_trips),
            ("etcd_network_snapshot_send_total_duration_seconds", "To", sent),
            ("etcd_network_snapshot_receive_total_duration_seconds", "From", received),
        ):
            samples: list[Sample] = []
            for peer, histogram in by_peer.items():
                if peer in peers and histogram.count:
                    samples += histogram_samples(histogram, {label: f"{peer:x}"})
            yield name, samples
        yield "etcd_snap_db_save_total_duration_seconds", histogram_samples(_sum(received.values()))


def _sum(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram(TRANSFERS)
    for each in histograms:
        total.counts = [mine + more for mine, more in zip(total.counts, each.counts, strict=True)]
        total.total += each.total
    return total
