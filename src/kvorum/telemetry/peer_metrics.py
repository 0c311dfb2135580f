"""What `/metrics` shows about other members: bytes, failures, round trips, which are reached."""

from collections.abc import Iterator

from kvorum.member.member import Member
from kvorum.peer.cluster.peering import Peering
from kvorum.telemetry.exposition import Family, Histogram, Sample, exponential


class PeerMetrics:
    """Reads the transport's figures; round trips are gathered as they come."""

    def __init__(self, member: Member, peering: Peering) -> None:
        self._member = member
        self._peering = peering
        self._round_trips: dict[int, tuple[int, Histogram]] = {}

    def observe(self) -> None:
        """Note the round trips since the last time; called more often than there are probes."""
        for peer, known in self._peering.transport.peers.items():
            figures = known.figures
            seen, histogram = self._round_trips.get(peer) or (
                0,
                Histogram(exponential(0.0001, 16)),
            )
            if figures.round_trips != seen:
                histogram.observe(figures.round_trip_seconds)
                self._round_trips[peer] = figures.round_trips, histogram

    def families(self) -> Iterator[Family]:
        """Return the metrics."""
        peers = self._peering.transport.peers
        figures = {f"{peer:x}": known.figures for peer, known in peers.items()}
        for name, text, label, values in (
            (
                "etcd_network_peer_sent_bytes_total",
                "Bytes sent to members.",
                "To",
                {peer: each.sent_bytes for peer, each in figures.items()},
            ),
            (
                "etcd_network_peer_received_bytes_total",
                "Bytes received from members.",
                "From",
                {peer: each.received_bytes for peer, each in figures.items()},
            ),
            (
                "etcd_network_peer_sent_failures_total",
                "Messages and snapshots that could not be sent.",
                "To",
                {peer: each.send_failures for peer, each in figures.items()},
            ),
            (
                "etcd_network_peer_received_failures_total",
                "Streams of members that broke off.",
                "From",
                {peer: each.receive_failures for peer, each in figures.items()},
            ),
            (
                "etcd_network_snapshot_send_success",
                "Snapshots sent to members.",
                "To",
                {peer: each.snapshots_sent for peer, each in figures.items()},
            ),
            (
                "etcd_network_snapshot_send_failures",
                "Snapshots that could not be sent.",
                "To",
                {peer: each.snapshots_not_sent for peer, each in figures.items()},
            ),
            (
                "etcd_network_snapshot_receive_success",
                "Snapshots received from members.",
                "From",
                {peer: each.snapshots_received for peer, each in figures.items()},
            ),
            (
                "etcd_network_snapshot_receive_failures",
                "Snapshots that were refused, or broke off.",
                "From",
                {peer: each.snapshots_not_received for peer, each in figures.items()},
            ),
            (
                "kvorum_network_peer_dropped_messages_total",
                "Messages dropped because a member takes them too slowly.",
                "To",
                {peer: each.dropped_messages for peer, each in figures.items()},
            ),
        ):
            samples = [Sample(value, {label: peer}) for peer, value in values.items()]
            yield Family(name, "counter", text, samples)
        local = f"{self._member.id:x}"
        yield Family(
            "etcd_network_active_peers",
            "gauge",
            "Members that are reached.",
            [
                Sample(known.is_connected, {"Local": local, "Remote": f"{peer:x}"})
                for peer, known in peers.items()
            ],
        )
        yield Family(
            "etcd_network_disconnected_peers_total",
            "counter",
            "Times that a member was not reached any more.",
            [
                Sample(each.disconnections, {"Local": local, "Remote": peer})
                for peer, each in figures.items()
            ],
        )
        yield Family(
            "etcd_network_peer_round_trip_time_seconds",
            "histogram",
            "Round trips of probes.",
            [
                sample
                for peer, (_, histogram) in self._round_trips.items()
                if peer in peers
                for sample in histogram.samples({"To": f"{peer:x}"})
            ],
        )
