"""The table of all metrics: name, type, labels, buckets and meaning.

Metrics without the prefix `kvorum_` have etcd's names, types, labels and buckets. `metrics` looks
up every metric it shows in this table, and docs/metrics.md is generated from it.
"""

from typing import Final, NamedTuple

from kvorum.api.histograms import exponential

OURS: Final = "kvorum_"


class MetricFamily(NamedTuple):
    """A row of the table."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def is_etcds(self) -> bool:
        """Whether etcd has this metric, too."""
        return not self.name.startswith(OURS)


def _gauge(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "counter", text, labels)


def _histogram(name: str, bounds: tuple[float, ...], text: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "histogram", text, labels, bounds)


SHORT: Final = exponential(0.0001, 20)
LONG: Final = exponential(0.001, 14)
ROUND_TRIPS: Final = exponential(0.0001, 16)
TRANSFERS: Final = exponential(0.1, 10)
DEFRAGMENTATIONS: Final = exponential(0.1, 13)
HASHES: Final = exponential(0.01, 15)
IMAGES: Final = exponential(0.01, 17)
TTLS: Final = exponential(1, 24)
INDEX_PAUSES: Final = exponential(0.5, 14)
PAUSES: Final = exponential(1.0, 13)
COMPACTIONS: Final = exponential(100.0, 14)
HANDLING: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUICK: Final = exponential(0.00001, 20)
"""From 10 microseconds to 5 seconds."""

_CALL: Final = ("grpc_method", "grpc_service", "grpc_type")

_SERVER: Final = (
    _gauge("etcd_server_has_leader", "Whether this member knows a leader."),
    _gauge("etcd_server_is_leader", "Whether this member is the leader."),
    _gauge("etcd_server_is_learner", "Whether this member is a learner."),
    _gauge("etcd_server_id", "The id of this member.", "server_id"),
    _gauge("etcd_server_version", "The version of this server.", "server_version"),
    _gauge(
        "etcd_server_go_version", "The runtime of this server: Python, not Go.", "server_go_version"
    ),
    _gauge(
        "etcd_cluster_version", "The cluster version that all members agreed on.", "cluster_version"
    ),
    _gauge("etcd_server_proposals_committed_total", "The commit index."),
    _gauge("etcd_server_proposals_applied_total", "The applied index."),
    _gauge("etcd_server_proposals_pending", "Pending proposals."),
    _gauge("etcd_server_quota_backend_bytes", "The quota of the database."),
    _gauge(
        "etcd_server_snapshot_apply_in_progress_total",
        "Whether this member is installing a snapshot.",
    ),
    _gauge("etcd_server_feature_enabled", "Whether each feature gate is enabled.", "name", "stage"),
    _gauge("etcd_server_healthcheck", "The last result of each health check.", "name", "type"),
    _counter(
        "etcd_server_healthchecks_total", "Health checks, by result.", "name", "status", "type"
    ),
    _counter("etcd_server_health_success", "Successful /health responses."),
    _counter("etcd_server_health_failures", "Failed /health responses."),
    _counter("etcd_server_leader_changes_seen_total", "Leader changes seen by this member."),
    _counter("etcd_server_learner_promote_successes", "Learners that this leader promoted."),
    _counter(
        "etcd_server_learner_promote_failures",
        "Failed learner promotions on this leader.",
        "Reason",
    ),
    _counter("etcd_server_proposals_failed_total", "Failed proposals."),
    _counter(
        "etcd_server_read_indexes_failed_total", "Failed ReadIndex rounds of linearizable reads."
    ),
    _counter(
        "etcd_server_slow_read_indexes_total",
        "Abandoned ReadIndex rounds of linearizable reads, and ReadIndex answers that came "
        "too late.",
    ),
    _counter(
        "etcd_server_slow_apply_total",
        "Entries that took longer to apply than --warning-apply-duration.",
    ),
    _counter(
        "etcd_server_heartbeat_send_failures_total",
        "Raft ticks that ran more than a heartbeat interval late.",
    ),
    _counter(
        "etcd_server_client_requests_total",
        "Calls, by the API version of the client.",
        "client_api_version",
        "type",
    ),
    _histogram(
        "etcd_server_apply_duration_seconds",
        SHORT,
        "Time to apply an entry; consecutive puts each count with their mean.",
        "op",
        "success",
        "version",
    ),
    _histogram(
        "etcd_server_request_duration_seconds",
        LONG,
        "Time from the turn in which a request arrived until its answer; success=false: dropped, "
        "timed out, or a failed read.",
        "success",
        "type",
    ),
    _histogram(
        "etcd_server_range_duration_seconds",
        SHORT,
        "Time to read a range; short ranges each count with their mean.",
        "success",
    ),
    _gauge("etcd_debugging_server_alarms", "Raised alarms.", "alarm_type", "server_id"),
    _counter("etcd_debugging_server_lease_expired_total", "Expired leases found by this leader."),
    _gauge("etcd_debugging_auth_revision", "The revision of users and roles."),
)

_DISK: Final = (
    _histogram(
        "etcd_disk_wal_fsync_duration_seconds", LONG, "Duration of a sync of the write-ahead log."
    ),
    _histogram(
        "etcd_disk_wal_write_duration_seconds",
        LONG,
        "Duration of a write to the write-ahead log, without its sync.",
    ),
    _gauge("etcd_disk_wal_write_bytes_total", "Bytes written to the write-ahead log."),
    _histogram(
        "etcd_disk_backend_commit_duration_seconds",
        LONG,
        "Duration of a database commit, from the batch to the disk.",
    ),
    _histogram(
        "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
        LONG,
        "A phase of bbolt's commits; never observed, because LMDB has no such phase.",
    ),
    _histogram(
        "etcd_debugging_disk_backend_commit_spill_duration_seconds",
        LONG,
        "The part of a database commit that turns the batch into pages.",
    ),
    _histogram(
        "etcd_debugging_disk_backend_commit_write_duration_seconds",
        LONG,
        "The part of a database commit that writes and syncs pages.",
    ),
    _histogram(
        "etcd_disk_backend_defrag_duration_seconds",
        DEFRAGMENTATIONS,
        "Duration of a defragmentation of the database.",
    ),
    _histogram(
        "etcd_disk_backend_snapshot_duration_seconds",
        IMAGES,
        "Time to send a database to a client or member.",
    ),
    _gauge("etcd_disk_defrag_inflight", "Whether a defragmentation of the database is running."),
    _histogram("etcd_snap_fsync_duration_seconds", LONG, "Time to write and sync a snapshot file."),
    _histogram(
        "etcd_debugging_snap_save_marshalling_duration_seconds",
        LONG,
        "Time to encode a snapshot file.",
    ),
    _histogram(
        "etcd_debugging_snap_save_total_duration_seconds",
        LONG,
        "Time to encode and write a snapshot file.",
    ),
    _histogram("etcd_snap_db_fsync_duration_seconds", LONG, "Time to sync a received database."),
    _histogram(
        "etcd_snap_db_save_total_duration_seconds",
        TRANSFERS,
        "Time from the first byte of a received database until it was durable.",
    ),
)

_MVCC: Final = (
    _gauge("etcd_mvcc_db_total_size_in_bytes", "Size of the database."),
    _gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Size of the database without free pages."),
    _gauge("etcd_mvcc_db_open_read_transactions", "Open read transactions of the database."),
    _counter("etcd_mvcc_put_total", "Put operations."),
    _counter("etcd_mvcc_delete_total", "Delete operations."),
    _counter(
        "etcd_mvcc_range_total",
        "Range operations, including ranges in transactions and reads of previous values.",
    ),
    _counter("etcd_mvcc_txn_total", "Transactions of more than one operation."),
    _histogram("etcd_mvcc_hash_duration_seconds", HASHES, "Time to hash the database."),
    _histogram("etcd_mvcc_hash_rev_duration_seconds", HASHES, "Time to hash all keys."),
    _gauge("etcd_debugging_mvcc_keys_total", "Number of keys."),
    _gauge("etcd_debugging_mvcc_current_revision", "The current revision."),
    _gauge("etcd_debugging_mvcc_compact_revision", "The compacted revision; -1: none."),
    _gauge("etcd_debugging_mvcc_total_put_size_in_bytes", "Bytes of keys and values put."),
    _counter("etcd_debugging_mvcc_db_compaction_keys_total", "Revisions removed by compactions."),
    _gauge(
        "etcd_debugging_mvcc_db_compaction_last",
        "End of the last compaction, in Unix seconds; 0: none.",
    ),
    _histogram(
        "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
        PAUSES,
        "Time a compaction worked between two pauses.",
    ),
    _histogram(
        "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
        COMPACTIONS,
        "Duration of a compaction, including its pauses.",
    ),
    _histogram(
        "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
        INDEX_PAUSES,
        "Time a compaction spent on the index.",
    ),
    _gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch streams."),
    _gauge("etcd_debugging_mvcc_watcher_total", "Open watchers."),
    _gauge("etcd_debugging_mvcc_slow_watcher_total", "Watchers that lag behind."),
    _counter("etcd_debugging_mvcc_events_total", "Events sent to watchers."),
    _gauge(
        "etcd_debugging_mvcc_pending_events_total",
        "Always 0: the server queues no events, because a lagging watcher keeps only a revision.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
        LONG,
        "Time to hand a watch response to the network.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
        LONG,
        "Time to hand a watch response to the network, divided by its number of events.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
        LONG,
        "Time to hand the answer to a watch create request to the network.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
        LONG,
        "Time to send a stream's progress notifications.",
    ),
    _counter("etcd_debugging_lease_granted_total", "Leases granted."),
    _counter("etcd_debugging_lease_revoked_total", "Leases revoked."),
    _counter("etcd_debugging_lease_renewed_total", "Lease renewals."),
    _histogram("etcd_debugging_lease_ttl_total", TTLS, "Granted TTLs of leases, in seconds."),
)

_NETWORK: Final = (
    _counter(
        "etcd_network_client_grpc_received_bytes_total",
        "Bytes received from clients, including framing.",
    ),
    _counter(
        "etcd_network_client_grpc_sent_bytes_total", "Bytes sent to clients, including framing."
    ),
    _counter(
        "etcd_network_server_stream_failures_total",
        "Streams that ended because the server could not read a message.",
        "API",
        "Type",
    ),
    _gauge("etcd_network_known_peers", "1 for each member of the cluster.", "Local", "Remote"),
    _gauge(
        "etcd_network_active_peers",
        "Whether this member is connected to each peer.",
        "Local",
        "Remote",
    ),
    _counter(
        "etcd_network_disconnected_peers_total",
        "Lost connections to a peer.",
        "Local",
        "Remote",
    ),
    _counter("etcd_network_peer_sent_bytes_total", "Bytes sent to a peer.", "To"),
    _counter("etcd_network_peer_received_bytes_total", "Bytes received from a peer.", "From"),
    _counter(
        "etcd_network_peer_sent_failures_total",
        "Failed sends to a peer: streams, posts and snapshots.",
        "To",
    ),
    _counter("etcd_network_peer_received_failures_total", "Broken streams from a peer.", "From"),
    _histogram(
        "etcd_network_peer_round_trip_time_seconds",
        ROUND_TRIPS,
        "Round-trip time of a probe.",
        "To",
    ),
    _gauge("etcd_network_snapshot_send_inflights_total", "Snapshots being sent.", "To"),
    _counter("etcd_network_snapshot_send_success", "Snapshots sent to members.", "To"),
    _counter("etcd_network_snapshot_send_failures", "Failed sends of snapshots to members.", "To"),
    _histogram(
        "etcd_network_snapshot_send_total_duration_seconds",
        TRANSFERS,
        "Time to send a snapshot.",
        "To",
    ),
    _gauge("etcd_network_snapshot_receive_inflights_total", "Snapshots being received.", "From"),
    _counter("etcd_network_snapshot_receive_success", "Snapshots received.", "From"),
    _counter(
        "etcd_network_snapshot_receive_failures",
        "Snapshots refused or received incompletely.",
        "From",
    ),
    _histogram(
        "etcd_network_snapshot_receive_total_duration_seconds",
        TRANSFERS,
        "Time to receive a snapshot.",
        "From",
    ),
)

_CALLS: Final = (
    _counter("grpc_server_started_total", "Started RPCs.", *_CALL),
    _counter("grpc_server_handled_total", "Completed RPCs, by code.", "grpc_code", *_CALL),
    _counter("grpc_server_msg_received_total", "Received messages of RPCs.", *_CALL),
    _counter("grpc_server_msg_sent_total", "Sent messages of RPCs.", *_CALL),
    _histogram(
        "grpc_server_handling_seconds",
        HANDLING,
        "Duration of an RPC; only with `--metrics=extensive`.",
        *_CALL,
    ),
)

_PROCESS: Final = (
    _gauge("os_fd_limit", "File descriptors this process may open."),
    _gauge("os_fd_used", "File descriptors this process has open."),
    _gauge("process_max_fds", "File descriptors this process may open."),
    _gauge("process_open_fds", "File descriptors this process has open."),
    _counter("process_cpu_seconds_total", "CPU time of this process."),
    _gauge("process_start_time_seconds", "Start of this process, in Unix seconds."),
    _gauge("process_virtual_memory_bytes", "Virtual memory of this process."),
    _gauge("process_virtual_memory_max_bytes", "Limit of this process's virtual memory."),
    _gauge("process_resident_memory_bytes", "Resident memory of this process."),
    _counter(
        "process_network_receive_bytes_total",
        "Bytes received by the whole network namespace of this process.",
    ),
    _counter(
        "process_network_transmit_bytes_total",
        "Bytes sent by the whole network namespace of this process.",
    ),
    _gauge("promhttp_metric_handler_requests_in_flight", "Requests for metrics in progress."),
    _counter(
        "promhttp_metric_handler_requests_total", "Requests for metrics, by HTTP status.", "code"
    ),
)

UNUSED: Final = (
    _gauge("etcd_grpc_proxy_cache_hits_total", "Always 0 in a server: a metric of the gRPC proxy."),
    _gauge("etcd_grpc_proxy_cache_keys_total", "Always 0 in a server: a metric of the gRPC proxy."),
    _gauge(
        "etcd_grpc_proxy_cache_misses_total", "Always 0 in a server: a metric of the gRPC proxy."
    ),
    _counter(
        "etcd_grpc_proxy_events_coalescing_total",
        "Always 0 in a server: a metric of the gRPC proxy.",
    ),
    _gauge(
        "etcd_grpc_proxy_watchers_coalescing_total",
        "Always 0 in a server: a metric of the gRPC proxy.",
    ),
    _counter("etcd_debugging_store_expires_total", "Always 0: a metric of etcd's v2 store."),
    _counter("etcd_debugging_store_watch_requests_total", "Always 0: a metric of etcd's v2 store."),
    _gauge("etcd_debugging_store_watchers", "Always 0: a metric of etcd's v2 store."),
)
"""Metrics that are 0 in every etcd server."""

_OWN: Final = (
    _histogram(
        "kvorum_loop_turn_duration_seconds",
        QUICK,
        "Duration of a turn of the loop, which serves no other request meanwhile.",
    ),
    _gauge("kvorum_queue_length", "Requests, entries or jobs that wait, by queue.", "queue"),
    _gauge("kvorum_memory_bytes", "Estimated memory that grows with use, by content.", "room"),
    _histogram(
        "kvorum_log_sync_duration_seconds",
        QUICK,
        "Duration of a sync of the write-ahead log, in finer buckets than etcd's.",
    ),
    _histogram(
        "kvorum_flush_duration_seconds",
        QUICK,
        "Duration of a database commit, in finer buckets than etcd's.",
    ),
    _gauge("kvorum_edge_connections", "Open connections, including those of members."),
    _counter("kvorum_tls_handshakes_total", "TLS handshakes."),
    _counter(
        "kvorum_edge_incidents_total",
        "Clients that the server refused or delayed, by reason.",
        "name",
    ),
    _counter(
        "kvorum_unforeseen_errors_total",
        "Requests that ended with an unexpected internal error, by kind of request.",
        "kind",
    ),
    _counter(
        "kvorum_network_peer_dropped_messages_total",
        "Messages dropped because the peer reads too slowly.",
        "To",
    ),
    _counter("kvorum_backup_snapshots_total", "Snapshots that this member wrote to the archive."),
    _counter("kvorum_backup_failures_total", "Failed backups of this member; each is tried again."),
    _counter("kvorum_backup_written_bytes_total", "Bytes that this member wrote to the archive."),
    _gauge("kvorum_backup_revision", "The newest revision that this member wrote to the archive."),
    _gauge(
        "kvorum_backup_snapshot_timestamp_seconds",
        "Time of this member's newest backup snapshot, in Unix seconds; 0: none.",
    ),
)

GROUPS: Final = {
    "The server": _SERVER,
    "The disk": _DISK,
    "Keys, watchers and leases": _MVCC,
    "The network": _NETWORK,
    "Calls": _CALLS,
    "The process": _PROCESS,
    "Names that stay 0": UNUSED,
    "Kvorum's own": _OWN,
}

METRICS: Final = {metric.name: metric for group in GROUPS.values() for metric in group}
