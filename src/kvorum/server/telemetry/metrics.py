"""The content of `/metrics`: the metrics in `families`, with values from the server's counters.

This module does no work while requests are served. A scrape makes every sample from plain counters
and histograms of the member, the edge and the jobs. A metric without a counter is left out rather
than shown as 0; the exceptions are names that are 0 in every etcd server.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from kvorum.api.boundary import KINDS
from kvorum.api.errors import Code
from kvorum.api.histograms import Histogram
from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.member.counters import READ_TXN, Outcomes
from kvorum.member.member import Member
from kvorum.network.edge import INCIDENTS, Edge
from kvorum.process.settings.config import Config
from kvorum.process.settings.gates import GATES
from kvorum.server.http.health import NAMES, HealthEndpoints
from kvorum.server.rpc.table import NUMBERS, RPCS, RpcKind
from kvorum.server.telemetry import exposition, system
from kvorum.server.telemetry.counters import BackupCounters, JobCounters, ServerCounters
from kvorum.server.telemetry.counting import UNKNOWN_VERSION, CallCounts
from kvorum.server.telemetry.exposition import Family, Sample, histogram_samples
from kvorum.server.telemetry.families import LONG, METRICS, UNUSED
from kvorum.server.telemetry.peer_metrics import PeerMetrics, Shown
from kvorum.state.apply.requests import AUTH_STATUS

STREAMS = {
    "watch": NUMBERS["/etcdserverpb.Watch/Watch"],
    "lease-keepalive": NUMBERS["/etcdserverpb.Lease/LeaseKeepAlive"],
}
"""The streams whose failures etcd counts, by etcd's name."""


class Scrapes:
    """Counts scrapes by the status of the answer."""

    __slots__ = ("by_status", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        self.by_status = {200: 0, 500: 0, 503: 0}


class Sources(NamedTuple):
    """The objects from which samples are made."""

    member: Member
    edge: Edge
    counts: CallCounts
    in_flight: Callable[[], Iterable[int]]
    """Returns the methods of the calls in flight."""
    waiting: Callable[[], int]
    """Returns how many requests and events have arrived and are not served yet."""
    jobs_under_way: Callable[[], int]
    jobs: JobCounters
    health: HealthEndpoints
    config: Config
    server: ServerCounters
    peers: PeerMetrics
    scrapes: Scrapes
    backups: BackupCounters | None = None
    """None if the server makes no backups."""


def metrics_text(sources: Sources) -> bytes:
    """Return all metrics in Prometheus' text format."""
    return exposition.text(families(sources))


def families(sources: Sources) -> Iterator[Family]:
    """Return all metrics in any order."""
    for part in (_server, _health, _durations, _disk, _mvcc, _watches, _leases, _network, _calls):
        for name, samples in part(sources):
            yield _family(name, samples)
    for name, samples in (*sources.peers.shown(), *_load(sources), *system.shown()):
        yield _family(name, samples)
    for name, samples in _scrapes(sources.scrapes):
        yield _family(name, samples)
    for name, samples in _backups(sources.backups):
        yield _family(name, samples)
    for metric in UNUSED:
        yield _family(metric.name, [Sample(0)])


def _family(name: str, samples: list[Sample]) -> Family:
    metric = METRICS[name]
    return Family(name, metric.type, metric.help, samples)


def _one(name: str, value: float, labels: Mapping[str, str] | None = None) -> Shown:
    return name, [Sample(value, labels or {})]


def _histogram(name: str, values: Histogram) -> Shown:
    return name, histogram_samples(values)


def _server(sources: Sources) -> Iterator[Shown]:
    member, counters = sources.member, sources.server
    yield _one("etcd_server_has_leader", bool(member.leader))
    yield _one("etcd_server_is_leader", member.is_leader)
    yield _one("etcd_server_is_learner", member.is_learner)
    yield _one("etcd_server_id", 1, {"server_id": f"{member.id:x}"})
    yield _one("etcd_server_version", 1, {"server_version": member.config.server_version})
    runtime = f"python{platform.python_version()}"
    yield _one("etcd_server_go_version", 1, {"server_go_version": runtime})
    if member.state.cluster.version is not None:
        level = member.state.cluster.version
        yield _one("etcd_cluster_version", 1, {"cluster_version": f"{level.major}.{level.minor}"})
    yield _one("etcd_server_proposals_committed_total", member.committed)
    yield _one("etcd_server_proposals_applied_total", member.state.applied)
    yield _one("etcd_server_proposals_pending", len(member.replica.proposals.pending))
    yield _one("etcd_server_quota_backend_bytes", max(0, sources.config.quota_bytes))
    yield _one("etcd_server_snapshot_apply_in_progress_total", member.is_installing)
    yield _one("etcd_server_leader_changes_seen_total", counters.leader_changes)
    yield _one("etcd_server_proposals_failed_total", sources.counts.proposals_failed)
    yield _one("etcd_server_read_indexes_failed_total", member.replica.reads.failed_rounds)
    yield _one("etcd_server_slow_read_indexes_total", member.replica.reads.slow_rounds)
    yield _one("etcd_server_slow_apply_total", counters.slow_applies)
    yield _one("etcd_server_heartbeat_send_failures_total", counters.heartbeats_late)
    yield _one("etcd_server_learner_promote_successes", member.counters.promotions)
    yield (
        "etcd_server_learner_promote_failures",
        [
            Sample(number, {"Reason": reason})
            for reason, number in member.counters.promotions_refused.items()
        ],
    )
    yield _one("etcd_debugging_server_lease_expired_total", member.counters.leases_expired)
    yield (
        "etcd_server_feature_enabled",
        [
            Sample(sources.config.gates[name], {"name": name, "stage": gate.stage})
            for name, gate in GATES.items()
        ],
    )
    yield (
        "etcd_debugging_server_alarms",
        [
            Sample(
                1,
                {
                    "alarm_type": NAMES.get(alarm.type, str(alarm.type)),
                    "server_id": f"{alarm.member_id:x}",
                },
            )
            for alarm in member.state.alarms.raised()
        ],
    )
    yield _one("etcd_debugging_auth_revision", member.state.auth.revision)


def _health(sources: Sources) -> Iterator[Shown]:
    health = sources.health
    yield _one("etcd_server_health_success", health.successes)
    yield _one("etcd_server_health_failures", health.failures)
    yield (
        "etcd_server_healthcheck",
        [
            Sample(count.is_well, {"name": name, "type": kind})
            for (kind, name), count in health.checks.items()
        ],
    )
    yield (
        "etcd_server_healthchecks_total",
        [
            Sample(number, {"name": name, "status": status, "type": kind})
            for (kind, name), count in health.checks.items()
            for status, number in (("success", count.success), ("error", count.error))
            if number
        ],
    )


def _kind_name(kind: int) -> str:
    """Return etcd's name for a kind of request: its field's name in CamelCase."""
    if kind == READ_TXN:
        return "ReadonlyTxn"
    name = InternalRaftRequest.DESCRIPTOR.fields_by_number[kind].name
    return "".join(word[0].upper() + word[1:] for word in name.split("_"))


def _durations(sources: Sources) -> Iterator[Shown]:
    counters = sources.member.counters
    applied = {
        "unknown" if kind == AUTH_STATUS else _kind_name(kind): found
        for kind, found in counters.applied_by_kind.items()
    }
    requested = {_kind_name(kind): found for kind, found in counters.requested_by_kind.items()}
    yield (
        "etcd_server_apply_duration_seconds",
        [
            sample
            for name, found in applied.items()
            for sample in _outcomes(found, {"op": name}, {"version": "v3"})
        ],
    )
    yield (
        "etcd_server_request_duration_seconds",
        [
            sample
            for name, found in requested.items()
            for sample in _outcomes(found, {}, {"type": name})
        ],
    )
    yield "etcd_server_range_duration_seconds", list(_outcomes(counters.ranges, {}, {}))


def _outcomes(
    found: Outcomes, before: Mapping[str, str], behind: Mapping[str, str]
) -> Iterator[Sample]:
    """Return the samples of each outcome that occurred."""
    for success, histogram in (("true", found.succeeded), ("false", found.failed)):
        if histogram.count:
            yield from histogram_samples(histogram, {**before, "success": success, **behind})


def _disk(sources: Sources) -> Iterator[Shown]:
    jobs, member = sources.jobs, sources.member
    debugging = "etcd_debugging_disk_backend_commit"
    yield _histogram("etcd_disk_wal_fsync_duration_seconds", jobs.syncs)
    yield _histogram("etcd_disk_wal_write_duration_seconds", jobs.appends)
    yield _one("etcd_disk_wal_write_bytes_total", jobs.appended_bytes)
    yield _histogram("etcd_disk_backend_commit_duration_seconds", jobs.flushes)
    yield _histogram(f"{debugging}_rebalance_duration_seconds", Histogram(LONG))
    yield _histogram(f"{debugging}_spill_duration_seconds", jobs.stagings)
    yield _histogram(f"{debugging}_write_duration_seconds", jobs.commits)
    yield _histogram("etcd_disk_backend_defrag_duration_seconds", jobs.defragmentations)
    yield _histogram("etcd_disk_backend_snapshot_duration_seconds", member.counters.image_seconds)
    yield _one("etcd_disk_defrag_inflight", member.state.backend.is_defragmenting)
    yield _histogram("etcd_snap_fsync_duration_seconds", jobs.snap_writes)
    yield _histogram("etcd_debugging_snap_save_marshalling_duration_seconds", jobs.snap_encodings)
    yield _histogram("etcd_debugging_snap_save_total_duration_seconds", jobs.snap_saves)
    yield _histogram("etcd_snap_db_fsync_duration_seconds", jobs.database_syncs)
    yield _histogram("kvorum_log_sync_duration_seconds", jobs.syncs_finely)
    yield _histogram("kvorum_flush_duration_seconds", jobs.flushes_finely)


def _mvcc(sources: Sources) -> Iterator[Shown]:
    member, counters, jobs = sources.member, sources.member.counters, sources.jobs
    backend, store = member.state.backend, member.state.store
    debugging = "etcd_debugging_mvcc"
    yield _one("etcd_mvcc_db_total_size_in_bytes", backend.size_bytes)
    yield _one("etcd_mvcc_db_total_size_in_use_in_bytes", backend.size_in_use_bytes)
    yield _one("etcd_mvcc_db_open_read_transactions", backend.views_open())
    yield _one("etcd_mvcc_put_total", store.puts)
    yield _one("etcd_mvcc_delete_total", store.delete_operations)
    ranges = counters.ranges.succeeded.count + counters.ranges.failed.count
    yield _one("etcd_mvcc_range_total", ranges + store.ranges)
    yield _one("etcd_mvcc_txn_total", store.transactions_of_many)
    yield _histogram("etcd_mvcc_hash_duration_seconds", jobs.hashes)
    yield _histogram("etcd_mvcc_hash_rev_duration_seconds", jobs.hashes_of_keys)
    yield _one(f"{debugging}_keys_total", store.key_count)
    yield _one(f"{debugging}_current_revision", store.revision)
    yield _one(f"{debugging}_compact_revision", store.compacted_revision)
    yield _one(f"{debugging}_total_put_size_in_bytes", store.put_bytes)
    yield _one(f"{debugging}_db_compaction_keys_total", store.compaction.removed)
    yield _one(f"{debugging}_db_compaction_last", int(counters.compaction_ended_unix_seconds))
    yield _histogram(
        f"{debugging}_db_compaction_pause_duration_milliseconds",
        counters.compaction_batch_milliseconds,
    )
    yield _histogram(
        f"{debugging}_db_compaction_total_duration_milliseconds", counters.compaction_milliseconds
    )
    yield _histogram(
        f"{debugging}_index_compaction_pause_duration_milliseconds",
        counters.index_compaction_milliseconds,
    )


def _watches(sources: Sources) -> Iterator[Shown]:
    hub = sources.member.hub
    counters = hub.counters
    yield _one("etcd_debugging_mvcc_watch_stream_total", hub.streams_open)
    yield _one("etcd_debugging_mvcc_watcher_total", hub.watchers_open)
    yield _one("etcd_debugging_mvcc_slow_watcher_total", hub.watchers_behind)
    yield _one("etcd_debugging_mvcc_events_total", counters.events)
    yield _one("etcd_debugging_mvcc_pending_events_total", 0)
    loop = "etcd_debugging_server_watch_send_loop"
    yield _histogram(f"{loop}_watch_stream_duration_seconds", counters.response_seconds)
    yield _histogram(f"{loop}_watch_stream_duration_per_event_seconds", counters.event_seconds)
    yield _histogram(f"{loop}_control_stream_duration_seconds", counters.creation_seconds)
    yield _histogram(f"{loop}_progress_duration_seconds", counters.progress_seconds)


def _leases(sources: Sources) -> Iterator[Shown]:
    lessor = sources.member.state.lessor
    yield _one("etcd_debugging_lease_granted_total", lessor.granted_total)
    yield _one("etcd_debugging_lease_revoked_total", lessor.revoked_total)
    yield _one("etcd_debugging_lease_renewed_total", lessor.renewed_total)
    yield _histogram("etcd_debugging_lease_ttl_total", lessor.granted_ttl_seconds)


def _network(sources: Sources) -> Iterator[Shown]:
    counters, counts, member = sources.edge.counters(), sources.counts, sources.member
    yield _one("etcd_network_client_grpc_received_bytes_total", counters["bytes_read"])
    yield _one("etcd_network_client_grpc_sent_bytes_total", counters["bytes_written"])
    yield (
        "etcd_network_server_stream_failures_total",
        [
            Sample(counts.failed[number, Code.INTERNAL], {"API": name, "Type": "receive"})
            for name, number in STREAMS.items()
            if counts.failed[number, Code.INTERNAL]
        ],
    )
    local = f"{member.id:x}"
    yield (
        "etcd_network_known_peers",
        [
            Sample(1, {"Local": local, "Remote": f"{each.id:x}"})
            for each in member.state.cluster.members
        ],
    )
    yield _one("kvorum_edge_connections", counters["connections_open"])
    yield _one("kvorum_tls_handshakes_total", counters["tls_handshakes"])
    yield (
        "kvorum_edge_incidents_total",
        [Sample(counters[name], {"name": name}) for name in INCIDENTS],
    )
    yield (
        "kvorum_unforeseen_errors_total",
        [Sample(member.boundary.counts[kind], {"kind": kind}) for kind in KINDS],
    )


def _backups(counters: BackupCounters | None) -> Iterator[Shown]:
    if counters is not None:
        yield _one("kvorum_backup_snapshots_total", counters.snapshots)
        yield _one("kvorum_backup_failures_total", counters.failures)
        yield _one("kvorum_backup_written_bytes_total", counters.written_bytes)
        yield _one("kvorum_backup_revision", counters.revision)
        yield _one("kvorum_backup_snapshot_timestamp_seconds", counters.snapshot_seconds)


def _load(sources: Sources) -> Iterator[Shown]:
    """Return the loop's turn durations, the lengths of queues, and the memory in use."""
    member, counters = sources.member, sources.edge.counters()
    yield _histogram("kvorum_loop_turn_duration_seconds", sources.server.turns)
    lengths = {
        "arrived": sources.waiting(),
        "proposals": len(member.replica.proposals.pending),
        "unapplied": member.committed - member.state.applied,
        "reads": len(member.replica.ready_reads) + len(member.replica.reads.waiting),
        "jobs": sources.jobs_under_way(),
    }
    yield (
        "kvorum_queue_length",
        [Sample(length, {"queue": queue}) for queue, length in lengths.items()],
    )
    rooms = {
        "log": member.replica.storage.memory_bytes,
        "index": member.state.store.index_bytes,
        "backend": member.state.backend.pending_bytes,
        "cache": member.state.backend.cached_bytes,
        "watch": member.hub.unsent_bytes,
        "edge_received": counters["queued_bytes"],
        "edge_unsent": counters["unread_bytes"],
    }
    yield "kvorum_memory_bytes", [Sample(size, {"room": room}) for room, size in rooms.items()]


def _calls(sources: Sources) -> Iterator[Shown]:
    counts = sources.counts
    labels = [rpc.labels for rpc in RPCS]
    started, handled = counts.started(sources.in_flight()), counts.handled()
    # A refusal counts as a sent message, as in etcd 3.7's metrics library.
    ended = [0] * len(RPCS)
    for (number, _), count in handled.items():
        ended[number] += count
    shown = [number for number, rpc in enumerate(RPCS) if started[number] or rpc.is_shown_unused]
    # The end of a bidirectional stream counts as a received message there, too.
    received = [
        number + ended[method] * (RPCS[method].kind is RpcKind.BOTH_WAYS)
        for method, number in enumerate(counts.messages_received)
    ]
    for name, values in (
        ("grpc_server_started_total", started),
        ("grpc_server_msg_received_total", _messages(started, received)),
        ("grpc_server_msg_sent_total", _messages(ended, counts.messages_sent)),
    ):
        yield name, [Sample(values[number], labels[number]) for number in shown]
    yield (
        "grpc_server_handled_total",
        [
            Sample(handled[number, code], {"grpc_code": code_name(code), **labels[number]})
            for number in shown
            for code in Code
        ],
    )
    if counts.seconds is not None:
        yield (
            "grpc_server_handling_seconds",
            [
                sample
                for number in shown
                for sample in histogram_samples(counts.seconds.histograms[number], labels[number])
            ],
        )
    total = {
        "unary": sum(started[n] for n, rpc in enumerate(RPCS) if not rpc.is_stream),
        "stream": sum(started[n] for n, rpc in enumerate(RPCS) if rpc.is_stream),
    }
    for (kind, _), number in counts.versions.items():
        total[kind] -= number
    unknown = {(kind, UNKNOWN_VERSION): number for kind, number in total.items() if number}
    yield (
        "etcd_server_client_requests_total",
        [
            Sample(number, {"client_api_version": version, "type": kind})
            for (kind, version), number in {**unknown, **counts.versions}.items()
        ],
    )


def _scrapes(scrapes: Scrapes) -> Iterator[Shown]:
    yield _one("promhttp_metric_handler_requests_in_flight", scrapes.in_flight)
    yield (
        "promhttp_metric_handler_requests_total",
        [Sample(number, {"code": str(code)}) for code, number in scrapes.by_status.items()],
    )


def _messages(unary: list[int], streams: list[int]) -> list[int]:
    """Return messages by method: one per unary call, and the counted ones of streams."""
    return [streams[number] if rpc.is_stream else unary[number] for number, rpc in enumerate(RPCS)]


def code_name(code: Code) -> str:
    """Return Go's name for a code, as metrics use it."""
    if code is Code.OK:
        return "OK"
    return "Canceled" if code is Code.CANCELLED else code.name.title().replace("_", "")
