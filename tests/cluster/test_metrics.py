"""What members show of each other at `/metrics`."""

import http.client
from functools import partial

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.members import Cluster, Member
from tests.waiting import WAIT_SECONDS_MAX, until

OF_EVERY_OTHER = (
    "etcd_network_active_peers",
    "etcd_network_peer_round_trip_time_seconds_count",
)
OF_THE_LEADER = (
    "etcd_network_peer_sent_bytes_total",
    "etcd_network_peer_received_bytes_total",
)


def samples(member: Member) -> dict[tuple[str, str], float]:
    """Return the values that a member shows of others, by metric and the other's id."""
    connection = http.client.HTTPConnection(member.address, timeout=WAIT_SECONDS_MAX)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        (sample.name, sample.labels[label]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for label in ("Remote", "To", "From")
        if label in sample.labels and "le" not in sample.labels
    }


def test_every_member_shows_the_others(cluster: Cluster) -> None:
    cluster[0].put(b"key")
    leader = cluster.leader()

    def shows_all(member: Member) -> bool:
        found = samples(member)
        return all(
            found.get((name, f"{other.id:x}"), 0) > 0
            for other in cluster.others(member)
            # Of what followers say to each other, etcd counts votes only.
            for name in (OF_EVERY_OTHER + (OF_THE_LEADER if other is leader else ()))
        )

    for member in cluster:
        until(f"{member} shows the others", partial(shows_all, member))


def test_a_member_that_is_gone_is_not_active(cluster: Cluster) -> None:
    gone, member, _ = cluster
    name = f"{gone.id:x}"

    def active() -> float | None:
        return samples(member).get(("etcd_network_active_peers", name))

    until(f"{member} reaches {gone}", lambda: active() == 1)
    gone.kill()
    until(f"{member} misses {gone}", lambda: active() == 0)
    assert samples(member)["etcd_network_disconnected_peers_total", name] >= 1
    gone.start()
    until(f"{member} reaches {gone} again", lambda: active() == 1)
