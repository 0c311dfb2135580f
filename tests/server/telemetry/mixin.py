"""Which series the panels and alerts of etcd's official dashboard need: a name, and its labels.

Written from their expressions. A label's value is what the expression selects; `.+` stands for a
label by which it groups or joins.
"""

from typing import Final

Series = tuple[str, dict[str, str]]

_BAD_CODES: Final = (
    "Unknown|FailedPrecondition|ResourceExhausted|Internal|Unavailable|DataLoss|DeadlineExceeded"
)
_FAILED: Final = "Unknown|FailedPrecondition|ResourceExhausted|Internal|Unavailable|DataLoss"
_UNARY: Final = {"grpc_type": "unary"}
_METHOD: Final = {"grpc_service": ".+", "grpc_method": ".+"}


def _streams(name: str, service: str) -> Series:
    return name, {"grpc_service": f"etcdserverpb.{service}", "grpc_type": "bidi_stream"}


PANELS: Final[dict[str, list[Series]]] = {
    "Up": [("etcd_server_has_leader", {})],
    "RPC rate": [
        ("grpc_server_started_total", _UNARY),
        ("grpc_server_handled_total", {**_UNARY, "grpc_code": _FAILED}),
    ],
    "Active streams": [
        _streams("grpc_server_started_total", "Watch"),
        _streams("grpc_server_handled_total", "Watch"),
        _streams("grpc_server_started_total", "Lease"),
        _streams("grpc_server_handled_total", "Lease"),
    ],
    "DB size": [("etcd_mvcc_db_total_size_in_bytes", {})],
    "Disk sync duration": [
        ("etcd_disk_wal_fsync_duration_seconds_bucket", {"le": ".+"}),
        ("etcd_disk_backend_commit_duration_seconds_bucket", {"le": ".+"}),
    ],
    "Memory": [("process_resident_memory_bytes", {})],
    "Client traffic in": [("etcd_network_client_grpc_received_bytes_total", {})],
    "Client traffic out": [("etcd_network_client_grpc_sent_bytes_total", {})],
    "Peer traffic in": [("etcd_network_peer_received_bytes_total", {"From": ".+"})],
    "Peer traffic out": [("etcd_network_peer_sent_bytes_total", {"To": ".+"})],
    "Raft proposals": [
        ("etcd_server_leader_changes_seen_total", {}),
        ("etcd_server_proposals_failed_total", {}),
        ("etcd_server_proposals_pending", {}),
        ("etcd_server_proposals_committed_total", {}),
        ("etcd_server_proposals_applied_total", {}),
    ],
    "Leader elections per day": [("etcd_server_leader_changes_seen_total", {})],
    "Peer round trip time": [
        ("etcd_network_peer_round_trip_time_seconds_bucket", {"le": ".+", "To": ".+"})
    ],
}

ALERTS: Final[dict[str, list[Series]]] = {
    # `up`, which etcdInsufficientMembers needs too, is Prometheus' own.
    "etcdMembersDown": [("etcd_network_peer_sent_failures_total", {"To": ".+"})],
    "etcdNoLeader": [("etcd_server_has_leader", {})],
    "etcdHighNumberOfLeaderChanges": [("etcd_server_leader_changes_seen_total", {})],
    "etcdHighNumberOfFailedGRPCRequests": [
        ("grpc_server_handled_total", {**_METHOD, "grpc_code": _BAD_CODES}),
        ("grpc_server_handled_total", _METHOD),
    ],
    "etcdGRPCRequestsSlow": [
        ("grpc_server_handling_seconds_bucket", {**_UNARY, **_METHOD, "le": ".+"})
    ],
    "etcdMemberCommunicationSlow": [
        ("etcd_network_peer_round_trip_time_seconds_bucket", {"le": ".+", "To": ".+"})
    ],
    "etcdHighNumberOfFailedProposals": [("etcd_server_proposals_failed_total", {})],
    "etcdHighFsyncDurations": [("etcd_disk_wal_fsync_duration_seconds_bucket", {"le": ".+"})],
    "etcdHighCommitDurations": [("etcd_disk_backend_commit_duration_seconds_bucket", {"le": ".+"})],
    "etcdDatabaseQuotaLowSpace": [
        ("etcd_mvcc_db_total_size_in_bytes", {}),
        ("etcd_server_quota_backend_bytes", {}),
    ],
    "etcdExcessiveDatabaseGrowth": [
        ("etcd_mvcc_db_total_size_in_bytes", {}),
        ("etcd_server_quota_backend_bytes", {}),
    ],
    "etcdDatabaseHighFragmentationRatio": [
        ("etcd_mvcc_db_total_size_in_use_in_bytes", {}),
        ("etcd_mvcc_db_total_size_in_bytes", {}),
    ],
}
