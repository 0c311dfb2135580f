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
    _gauge("etcd_server_has_leader", "Whether a leader is known."),
    _gauge("etcd_server_is_leader", "Whether this member leads."),
    _gauge("etcd_server_is_learner", "Whether this member is a learner."),
    _gauge("etcd_server_id", "The id of this member.", "server_id"),
    _gauge("etcd_server_version", "The version served.", "server_version"),
    _gauge("etcd_server_go_version", "The runtime, which is not Go's.", "server_go_version"),
    _gauge("etcd_cluster_version", "The version that all agreed on.", "cluster_version"),
    _gauge("etcd_server_proposals_committed_total", "The commit index."),
    _gauge("etcd_server_proposals_applied_total", "The applied index."),
    _gauge("etcd_server_proposals_pending", "Proposals that wait."),
    _gauge("etcd_server_quota_backend_bytes", "The quota of the database."),
    _gauge("etcd_server_snapshot_apply_in_progress_total", "Whether a snapshot is installed."),
    _gauge("etcd_server_feature_enabled", "Feature gates.", "name", "stage"),
    _gauge("etcd_server_healthcheck", "The last outcome of each check.", "name", "type"),
    _counter("etcd_server_healthchecks_total", "Checks by outcome.", "name", "status", "type"),
    _counter("etcd_server_health_success", "Answers of /health that were good."),
    _counter("etcd_server_health_failures", "Answers of /health that were not."),
    _counter("etcd_server_leader_changes_seen_total", "New leaders."),
    _counter("etcd_server_learner_promote_successes", "Learners promoted by this leader."),
    _counter("etcd_server_learner_promote_failures", "Promotions that failed here.", "Reason"),
    _counter("etcd_server_proposals_failed_total", "Proposals that failed."),
    _counter("etcd_server_read_indexes_failed_total", "Failed rounds of linearizable reads."),
    _counter(
        "etcd_server_slow_read_indexes_total",
        "Rounds of linearizable reads that were given up, and answers that came too late.",
    ),
    _counter("etcd_server_slow_apply_total", "Entries applied slowly."),
    _counter("etcd_server_heartbeat_send_failures_total", "Ticks too late for heartbeats."),
    _counter(
        "etcd_server_client_requests_total",
        "Calls by their client's version.",
        "client_api_version",
        "type",
    ),
    _histogram(
        "etcd_server_apply_duration_seconds",
        SHORT,
        "How long entries took to be applied; those of a row of puts their mean.",
        "op",
        "success",
        "version",
    ),
    _histogram(
        "etcd_server_request_duration_seconds",
        LONG,
        "How long requests took from the turn they came in; false: not proposed, or timed out.",
        "success",
        "type",
    ),
    _histogram(
        "etcd_server_range_duration_seconds",
        SHORT,
        "How long ranges took to be read; short ones their mean.",
        "success",
    ),
    _gauge("etcd_debugging_server_alarms", "Alarms that are raised.", "alarm_type", "server_id"),
    _counter("etcd_debugging_server_lease_expired_total", "Leases that this leader found expired."),
    _gauge("etcd_debugging_auth_revision", "The revision of users and roles."),
)

_DISK: Final = (
    _histogram("etcd_disk_wal_fsync_duration_seconds", LONG, "Syncs of the log."),
    _histogram("etcd_disk_wal_write_duration_seconds", LONG, "Writes to the log, without syncs."),
    _gauge("etcd_disk_wal_write_bytes_total", "Bytes written to the log."),
    _histogram(
        "etcd_disk_backend_commit_duration_seconds",
        LONG,
        "Flushes of the database, from the batch to the disk.",
    ),
    _histogram(
        "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
        LONG,
        "A phase of bbolt's commits that is none of LMDB's: never observed.",
    ),
    _histogram(
        "etcd_debugging_disk_backend_commit_spill_duration_seconds",
        LONG,
        "The part of a flush in which a batch becomes pages.",
    ),
    _histogram(
        "etcd_debugging_disk_backend_commit_write_duration_seconds",
        LONG,
        "The part of a flush in which pages are written and synced.",
    ),
    _histogram(
        "etcd_disk_backend_defrag_duration_seconds",
        DEFRAGMENTATIONS,
        "Defragmentations of the database.",
    ),
    _histogram(
        "etcd_disk_backend_snapshot_duration_seconds",
        IMAGES,
        "How long databases took to be sent to clients and members.",
    ),
    _gauge("etcd_disk_defrag_inflight", "Whether the database is being defragmented."),
    _histogram("etcd_snap_fsync_duration_seconds", LONG, "Writes and syncs of snapshot files."),
    _histogram(
        "etcd_debugging_snap_save_marshalling_duration_seconds",
        LONG,
        "How long snapshot files took to be encoded.",
    ),
    _histogram(
        "etcd_debugging_snap_save_total_duration_seconds",
        LONG,
        "How long snapshot files took to be encoded and written.",
    ),
    _histogram("etcd_snap_db_fsync_duration_seconds", LONG, "Syncs of received databases."),
    _histogram(
        "etcd_snap_db_save_total_duration_seconds",
        TRANSFERS,
        "How long received databases took from their first byte until they were durable.",
    ),
)

_MVCC: Final = (
    _gauge("etcd_mvcc_db_total_size_in_bytes", "Size of the database."),
    _gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Its size without free pages."),
    _gauge("etcd_mvcc_db_open_read_transactions", "Views of the database that are open."),
    _counter("etcd_mvcc_put_total", "Puts."),
    _counter("etcd_mvcc_delete_total", "Deletions."),
    _counter("etcd_mvcc_range_total", "Ranges, those of transactions and previous values too."),
    _counter("etcd_mvcc_txn_total", "Requests of several operations."),
    _histogram("etcd_mvcc_hash_duration_seconds", HASHES, "Hashes of the database."),
    _histogram("etcd_mvcc_hash_rev_duration_seconds", HASHES, "Hashes of all keys."),
    _gauge("etcd_debugging_mvcc_keys_total", "Keys."),
    _gauge("etcd_debugging_mvcc_current_revision", "The current revision."),
    _gauge("etcd_debugging_mvcc_compact_revision", "The compacted revision; -1 for none."),
    _gauge("etcd_debugging_mvcc_total_put_size_in_bytes", "Bytes of keys and values put."),
    _counter("etcd_debugging_mvcc_db_compaction_keys_total", "Revisions that were removed."),
    _gauge(
        "etcd_debugging_mvcc_db_compaction_last",
        "When a compaction last ended, in Unix seconds; 0 for never.",
    ),
    _histogram(
        "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
        PAUSES,
        "How long a compaction worked at a time.",
    ),
    _histogram(
        "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
        COMPACTIONS,
        "How long compactions took, with their pauses.",
    ),
    _histogram(
        "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
        INDEX_PAUSES,
        "How much of a compaction went into the index.",
    ),
    _gauge("etcd_debugging_mvcc_watch_stream_total", "Watch streams."),
    _gauge("etcd_debugging_mvcc_watcher_total", "Watchers."),
    _gauge("etcd_debugging_mvcc_slow_watcher_total", "Watchers behind."),
    _counter("etcd_debugging_mvcc_events_total", "Events sent to watchers."),
    _gauge(
        "etcd_debugging_mvcc_pending_events_total",
        "Events kept for watchers: 0, as one that is behind keeps a revision only.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
        LONG,
        "How long responses of watchers took to be handed to the network.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
        LONG,
        "The same, by the number of a response's events.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
        LONG,
        "How long answers to requests for watchers took to be handed to the network.",
    ),
    _histogram(
        "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
        LONG,
        "How long streams took to be told their progress.",
    ),
    _counter("etcd_debugging_lease_granted_total", "Leases granted."),
    _counter("etcd_debugging_lease_revoked_total", "Leases revoked."),
    _counter("etcd_debugging_lease_renewed_total", "Renewals."),
    _histogram("etcd_debugging_lease_ttl_total", TTLS, "Seconds that leases were granted for."),
)

_NETWORK: Final = (
    _counter("etcd_network_client_grpc_received_bytes_total", "Bytes from clients, framing too."),
    _counter("etcd_network_client_grpc_sent_bytes_total", "Bytes to clients, framing too."),
    _counter(
        "etcd_network_server_stream_failures_total",
        "Streams whose messages could not be read.",
        "API",
        "Type",
    ),
    _gauge("etcd_network_known_peers", "Members of the cluster.", "Local", "Remote"),
    _gauge("etcd_network_active_peers", "Members that are reached.", "Local", "Remote"),
    _counter(
        "etcd_network_disconnected_peers_total",
        "Times that a member was not reached any more.",
        "Local",
        "Remote",
    ),
    _counter("etcd_network_peer_sent_bytes_total", "Bytes sent to members.", "To"),
    _counter("etcd_network_peer_received_bytes_total", "Bytes received from members.", "From"),
    _counter("etcd_network_peer_sent_failures_total", "What could not be sent.", "To"),
    _counter("etcd_network_peer_received_failures_total", "Streams that broke off.", "From"),
    _histogram(
        "etcd_network_peer_round_trip_time_seconds", ROUND_TRIPS, "Round trips of probes.", "To"
    ),
    _gauge("etcd_network_snapshot_send_inflights_total", "Snapshots on their way out.", "To"),
    _counter("etcd_network_snapshot_send_success", "Snapshots sent to members.", "To"),
    _counter("etcd_network_snapshot_send_failures", "Snapshots that could not be sent.", "To"),
    _histogram(
        "etcd_network_snapshot_send_total_duration_seconds",
        TRANSFERS,
        "How long snapshots took to be sent.",
        "To",
    ),
    _gauge("etcd_network_snapshot_receive_inflights_total", "Snapshots on their way in.", "From"),
    _counter("etcd_network_snapshot_receive_success", "Snapshots received.", "From"),
    _counter("etcd_network_snapshot_receive_failures", "Snapshots refused or broken.", "From"),
    _histogram(
        "etcd_network_snapshot_receive_total_duration_seconds",
        TRANSFERS,
        "How long snapshots took to be received.",
        "From",
    ),
)

_CALLS: Final = (
    _counter("grpc_server_started_total", "RPCs that began.", *_CALL),
    _counter("grpc_server_handled_total", "RPCs that ended, by code.", "grpc_code", *_CALL),
    _counter("grpc_server_msg_received_total", "Messages received.", *_CALL),
    _counter("grpc_server_msg_sent_total", "Messages sent.", *_CALL),
    _histogram(
        "grpc_server_handling_seconds",
        HANDLING,
        "How long RPCs took; with `--metrics=extensive`.",
        *_CALL,
    ),
)

_PROCESS: Final = (
    _gauge("os_fd_limit", "Descriptors this process may open."),
    _gauge("os_fd_used", "Descriptors this process has open."),
    _gauge("process_max_fds", "Descriptors this process may open."),
    _gauge("process_open_fds", "Descriptors this process has open."),
    _counter("process_cpu_seconds_total", "CPU time of this process."),
    _gauge("process_start_time_seconds", "When this process started, in Unix seconds."),
    _gauge("process_virtual_memory_bytes", "Virtual memory."),
    _gauge("process_virtual_memory_max_bytes", "Virtual memory this process may have."),
    _gauge("process_resident_memory_bytes", "Resident memory."),
    _counter(
        "process_network_receive_bytes_total", "Bytes that all of this network namespace received."
    ),
    _counter(
        "process_network_transmit_bytes_total", "Bytes that all of this network namespace sent."
    ),
    _gauge("promhttp_metric_handler_requests_in_flight", "Requests for metrics being served."),
    _counter("promhttp_metric_handler_requests_total", "Requests for metrics by status.", "code"),
)

UNUSED: Final = (
    _gauge("etcd_grpc_proxy_cache_hits_total", "Of the proxy; 0 in a server."),
    _gauge("etcd_grpc_proxy_cache_keys_total", "Of the proxy; 0 in a server."),
    _gauge("etcd_grpc_proxy_cache_misses_total", "Of the proxy; 0 in a server."),
    _counter("etcd_grpc_proxy_events_coalescing_total", "Of the proxy; 0 in a server."),
    _gauge("etcd_grpc_proxy_watchers_coalescing_total", "Of the proxy; 0 in a server."),
    _counter("etcd_debugging_store_expires_total", "Of the store of API v2; always 0."),
    _counter("etcd_debugging_store_watch_requests_total", "Of the store of API v2; always 0."),
    _gauge("etcd_debugging_store_watchers", "Of the store of API v2; always 0."),
)
"""Metrics that are 0 in every etcd server."""

_OWN: Final = (
    _histogram(
        "kvorum_loop_turn_duration_seconds",
        QUICK,
        "Turns of the loop: how long nobody else was served.",
    ),
    _gauge("kvorum_queue_length", "What waits, by the queue.", "queue"),
    _gauge("kvorum_memory_bytes", "Memory that grows with use, about, by what it holds.", "room"),
    _histogram(
        "kvorum_log_sync_duration_seconds", QUICK, "Syncs of the log, in finer buckets than etcd's."
    ),
    _histogram(
        "kvorum_flush_duration_seconds", QUICK, "Flushes of the database, in finer buckets."
    ),
    _gauge("kvorum_edge_connections", "Connections that are open, of members too."),
    _counter("kvorum_tls_handshakes_total", "TLS handshakes."),
    _counter(
        "kvorum_edge_incidents_total",
        "Times that a client was refused or held back, by the reason.",
        "name",
    ),
    _counter(
        "kvorum_unforeseen_errors_total",
        "Requests that an error ended which nobody foresaw, by the kind of the request.",
        "kind",
    ),
    _counter(
        "kvorum_network_peer_dropped_messages_total",
        "Messages dropped because a member takes them too slowly.",
        "To",
    ),
    _counter("kvorum_backup_snapshots_total", "Snapshots that this member took into the archive."),
    _counter("kvorum_backup_failures_total", "Backups that failed here, and were tried again."),
    _counter("kvorum_backup_written_bytes_total", "Bytes that were written to the archive."),
    _gauge("kvorum_backup_revision", "The newest revision that this member put into the archive."),
    _gauge(
        "kvorum_backup_snapshot_timestamp_seconds",
        "When this member took its newest snapshot; 0: it took none.",
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
