"""What `/metrics` shows: etcd's names for numbers that the rooms keep anyway.

Nothing here runs while requests are served. When metrics are asked for, every family is made from
plain counters of the member, the edge and the jobs. A number that is not kept is not shown,
rather than shown as 0; the exceptions are legacy names that are 0 in every etcd.
"""

import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kvorum.api.errors import Code
from kvorum.backend import CommitFlush
from kvorum.backend.defragment import CopyDatabase
from kvorum.edge import INCIDENTS, Edge
from kvorum.gateway.health import NAMES, Health
from kvorum.member.boundary import KINDS
from kvorum.member.member import Member
from kvorum.mvcc.hashes import HashRows
from kvorum.rpc.table import NUMBERS, RPCS
from kvorum.settings.config import Config
from kvorum.settings.gates import GATES
from kvorum.snap import WriteSnap
from kvorum.telemetry import exposition
from kvorum.telemetry.counting import UNKNOWN_VERSION, CallCounts
from kvorum.telemetry.exposition import Family, Histogram, Sample
from kvorum.telemetry.figures import JobFigures, ServerFigures
from kvorum.telemetry.peer_metrics import PeerMetrics
from kvorum.wal import AppendLog


class Sources(NamedTuple):
    """Where the numbers are."""

    member: Member
    edge: Edge
    counts: CallCounts
    in_flight: Callable[[], Iterable[int]]
    """The methods of the calls in flight."""
    jobs: JobFigures
    health: Health
    config: Config
    server: ServerFigures
    peers: PeerMetrics


def metrics_text(sources: Sources) -> bytes:
    """Return everything in Prometheus' text format."""
    return exposition.text(
        [
            *_server(sources),
            *_disk(sources),
            *_mvcc(sources),
            *_leases(sources),
            *_network(sources),
            *sources.peers.families(),
            *_grpc(sources),
            *_system(),
        ]
    )


def gauge(name: str, value: float, text: str, labels: Mapping[str, str] | None = None) -> Family:
    """Return a gauge with one sample."""
    return Family(name, "gauge", text, [Sample(value, labels or {})])


def counter(name: str, value: float, text: str) -> Family:
    """Return a counter with one sample."""
    return Family(name, "counter", text, [Sample(value)])


def histogram(name: str, values: Histogram, text: str) -> Family:
    """Return a histogram without labels."""
    return Family(name, "histogram", text, values.samples())


def _server(sources: Sources) -> Iterator[Family]:
    member, health, config = sources.member, sources.health, sources.config
    server_id = f"{member.id:x}"
    yield gauge("etcd_server_has_leader", bool(member.leader), "Whether a leader is known.")
    yield gauge("etcd_server_is_leader", member.is_leader, "Whether this member leads.")
    yield gauge("etcd_server_is_learner", member.is_learner, "Whether this member is a learner.")
    yield gauge("etcd_server_id", 1, "The id of this member.", {"server_id": server_id})
    version = member.config.server_version
    yield gauge("etcd_server_version", 1, "The version served.", {"server_version": version})
    runtime = f"python{platform.python_version()}"
    yield gauge("etcd_server_go_version", 1, "The runtime.", {"server_go_version": runtime})
    if member.cluster.version is not None:
        level = member.cluster.version
        yield gauge(
            "etcd_cluster_version",
            1,
            "The version that all members agreed on.",
            {"cluster_version": f"{level.major}.{level.minor}"},
        )
    yield gauge("etcd_server_proposals_committed_total", member.committed, "The commit index.")
    yield gauge("etcd_server_proposals_applied_total", member.applied, "The applied index.")
    pending = len(member.proposals.pending)
    yield gauge("etcd_server_proposals_pending", pending, "Proposals that wait.")
    quota = max(0, config.quota_bytes)
    yield gauge("etcd_server_quota_backend_bytes", quota, "The quota of the database.")
    yield counter(
        "etcd_server_leader_changes_seen_total", sources.server.leader_changes, "New leaders."
    )
    yield counter(
        "etcd_server_proposals_failed_total",
        sources.counts.proposals_failed,
        "Proposals that failed.",
    )
    yield counter(
        "etcd_server_read_indexes_failed_total",
        member.reads.failed_rounds,
        "Rounds of linearizable reads that failed.",
    )
    yield counter(
        "etcd_server_slow_apply_total", sources.server.slow_applies, "Entries applied slowly."
    )
    yield counter(
        "etcd_server_heartbeat_send_failures_total",
        sources.server.heartbeats_late,
        "Ticks that came too late to send heartbeats in time.",
    )
    yield counter("etcd_server_health_success", health.successes, "Health checks that succeeded.")
    yield counter("etcd_server_health_failures", health.failures, "Health checks that failed.")
    yield Family(
        "etcd_server_healthcheck",
        "gauge",
        "The last outcome of each check.",
        [
            Sample(count.is_well, {"type": kind, "name": name})
            for (kind, name), count in health.checks.items()
        ],
    )
    yield Family(
        "etcd_server_healthchecks_total",
        "counter",
        "Checks by outcome.",
        [
            Sample(number, {"type": kind, "name": name, "status": status})
            for (kind, name), count in health.checks.items()
            for status, number in (("success", count.success), ("error", count.error))
            if number
        ],
    )
    yield Family(
        "etcd_server_feature_enabled",
        "gauge",
        "Feature gates.",
        [
            Sample(config.gates[name], {"name": name, "stage": gate.stage})
            for name, gate in GATES.items()
        ],
    )
    yield Family(
        "etcd_debugging_server_alarms",
        "gauge",
        "Alarms that are raised.",
        [
            Sample(
                1,
                {
                    "server_id": f"{alarm.member_id:x}",
                    "alarm_type": NAMES.get(alarm.type, str(alarm.type)),
                },
            )
            for alarm in member.alarms.raised()
        ],
    )
    yield gauge(
        "etcd_debugging_auth_revision", member.auth.revision, "The revision of users and roles."
    )


def _disk(sources: Sources) -> Iterator[Family]:
    jobs, backend = sources.jobs, sources.member.backend
    durations = jobs.durations
    yield histogram(
        "etcd_disk_wal_fsync_duration_seconds",
        durations[AppendLog],
        "Writes to the log with their sync.",
    )
    yield gauge("etcd_disk_wal_write_bytes_total", jobs.appended_bytes, "Bytes of the log.")
    yield histogram(
        "etcd_disk_backend_commit_duration_seconds",
        durations[CommitFlush],
        "Commits of the database.",
    )
    yield histogram(
        "etcd_disk_backend_defrag_duration_seconds",
        durations[CopyDatabase],
        "Defragmentations of the database.",
    )
    yield gauge("etcd_disk_defrag_inflight", backend.is_defragmenting, "Defragmentations now.")
    yield histogram(
        "etcd_debugging_snap_save_total_duration_seconds",
        durations[WriteSnap],
        "Writes of snapshot files.",
    )


def _mvcc(sources: Sources) -> Iterator[Family]:
    member = sources.member
    backend, store, hub = member.backend, member.store, member.hub
    yield gauge("etcd_mvcc_db_total_size_in_bytes", backend.size_bytes, "Size of the database.")
    yield gauge(
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        backend.size_in_use_bytes,
        "Size of the database without free pages.",
    )
    yield counter("etcd_mvcc_put_total", store.puts, "Puts.")
    yield counter("etcd_mvcc_delete_total", store.delete_operations, "Deletes.")
    yield counter(
        "etcd_mvcc_txn_total", store.transactions_of_many, "Transactions of several changes."
    )
    ranges = sources.counts.ok[NUMBERS["/etcdserverpb.KV/Range"]]
    yield counter("etcd_mvcc_range_total", ranges, "Range calls served.")
    yield gauge("etcd_debugging_mvcc_keys_total", store.key_count, "Keys.")
    yield counter(
        "etcd_debugging_mvcc_db_compaction_keys_total",
        store.compaction.removed,
        "Revisions that compactions removed.",
    )
    yield histogram(
        "etcd_mvcc_hash_rev_duration_seconds",
        sources.jobs.durations[HashRows],
        "Hashes of all keys.",
    )
    yield gauge("etcd_debugging_mvcc_current_revision", store.revision, "The current revision.")
    compacted = max(0, store.compacted_revision)
    yield gauge("etcd_debugging_mvcc_compact_revision", compacted, "The compacted revision.")
    yield gauge("etcd_debugging_mvcc_watch_stream_total", hub.streams_open, "Watch streams.")
    yield gauge("etcd_debugging_mvcc_watcher_total", hub.watchers_open, "Watchers.")
    yield gauge("etcd_debugging_mvcc_slow_watcher_total", hub.watchers_behind, "Watchers behind.")


def _leases(sources: Sources) -> Iterator[Family]:
    lessor = sources.member.lessor
    yield counter("etcd_debugging_lease_granted_total", lessor.granted_total, "Leases granted.")
    yield counter("etcd_debugging_lease_revoked_total", lessor.revoked_total, "Leases revoked.")
    yield counter("etcd_debugging_lease_renewed_total", lessor.renewed_total, "Renewals.")


def _network(sources: Sources) -> Iterator[Family]:
    counters = sources.edge.counters()
    yield counter(
        "etcd_network_client_grpc_received_bytes_total",
        counters["bytes_read"],
        "Bytes from clients, with their framing.",
    )
    yield counter(
        "etcd_network_client_grpc_sent_bytes_total",
        counters["bytes_written"],
        "Bytes to clients, with their framing.",
    )
    yield counter("kvorum_tls_handshakes_total", counters["tls_handshakes"], "TLS handshakes.")
    yield Family(
        "kvorum_edge_incidents_total",
        "counter",
        "Times that a client was refused or held back, by the reason.",
        [Sample(counters[name], {"name": name}) for name in INCIDENTS],
    )
    member = sources.member
    yield Family(
        "kvorum_unforeseen_errors_total",
        "counter",
        "Requests that an error ended which nobody foresaw, by the kind of the request.",
        [Sample(member.boundary.counts[kind], {"kind": kind}) for kind in KINDS],
    )
    local = f"{member.id:x}"
    yield Family(
        "etcd_network_known_peers",
        "gauge",
        "Members of the cluster.",
        [Sample(1, {"Local": local, "Remote": f"{each.id:x}"}) for each in member.cluster.members],
    )


def _grpc(sources: Sources) -> Iterator[Family]:
    counts = sources.counts
    labels = [rpc.labels for rpc in RPCS]
    started, handled = counts.started(sources.in_flight()), counts.handled()
    # A refusal counts as a message, as in the library with which etcd 3.7 counts.
    ended = [0] * len(RPCS)
    for (number, _), count in handled.items():
        ended[number] += count
    shown = [number for number, rpc in enumerate(RPCS) if started[number] or rpc.is_shown_unused]
    for name, text, values in (
        ("grpc_server_started_total", "RPCs that began.", started),
        (
            "grpc_server_msg_received_total",
            "Messages received.",
            _messages(started, counts.messages_received),
        ),
        (
            "grpc_server_msg_sent_total",
            "Messages sent.",
            _messages(ended, counts.messages_sent),
        ),
    ):
        samples = [Sample(values[number], labels[number]) for number in shown]
        yield Family(name, "counter", text, samples)
    yield Family(
        "grpc_server_handled_total",
        "counter",
        "RPCs that ended, by their code.",
        [
            Sample(handled[number, code], {"grpc_code": _code_name(code), **labels[number]})
            for number in shown
            for code in Code
        ],
    )
    if counts.seconds is not None:
        yield Family(
            "grpc_server_handling_seconds",
            "histogram",
            "How long RPCs took.",
            [
                sample
                for number in shown
                for sample in counts.seconds.histograms[number].samples(labels[number])
            ],
        )
    total = {
        "unary": sum(started[n] for n, rpc in enumerate(RPCS) if not rpc.is_stream),
        "stream": sum(started[n] for n, rpc in enumerate(RPCS) if rpc.is_stream),
    }
    for (kind, _), number in counts.versions.items():
        total[kind] -= number
    unknown = {(kind, UNKNOWN_VERSION): number for kind, number in total.items() if number}
    yield Family(
        "etcd_server_client_requests_total",
        "counter",
        "Calls by their client's version.",
        [
            Sample(number, {"client_api_version": version, "type": kind})
            for (kind, version), number in {**unknown, **counts.versions}.items()
        ],
    )


def _messages(unary: list[int], streams: list[int]) -> list[int]:
    """Return messages by method: one for every unary call, and those of streams as counted."""
    return [streams[number] if rpc.is_stream else unary[number] for number, rpc in enumerate(RPCS)]


def _code_name(code: Code) -> str:
    if code is Code.OK:
        return "OK"
    return "Canceled" if code is Code.CANCELLED else code.name.title().replace("_", "")


def _system() -> Iterator[Family]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    yield gauge("os_fd_limit", limit, "Descriptors this process may open.")
    yield gauge("os_fd_used", used, "Descriptors this process has open.")
    yield gauge("process_max_fds", limit, "Descriptors this process may open.")
    yield gauge("process_open_fds", used, "Descriptors this process has open.")
    # The fields after the name, which is in brackets and may contain anything.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks, user, system, started = os.sysconf("SC_CLK_TCK"), fields[11], fields[12], fields[19]
    cpu = (int(user) + int(system)) / ticks
    yield counter("process_cpu_seconds_total", cpu, "CPU time of this process.")
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    start = time.time() - since_boot + int(started) / ticks
    yield gauge("process_start_time_seconds", start, "When this process started.")
    yield gauge("process_virtual_memory_bytes", int(fields[20]), "Virtual memory.")
    resident = int(fields[21]) * resource.getpagesize()
    yield gauge("process_resident_memory_bytes", resident, "Resident memory.")
