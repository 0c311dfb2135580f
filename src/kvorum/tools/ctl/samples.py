"""Samples of all members: the status that each reports, and its metrics."""

import http.client
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kvorum.client.errors import KvorumError
from kvorum.client.sync.client import Client
from kvorum.client.values import MemberStatus
from kvorum.tools.ctl.failures import error_text
from kvorum.tools.ctl.fetching import Fetcher
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.scraping import Samples, parse_samples, quantile, rate, total, whole

ENDPOINTS_AT_ONCE_MAX = 16
RATES = {
    "puts": "etcd_mvcc_put_total",
    "deletes": "etcd_mvcc_delete_total",
    "ranges": "etcd_mvcc_range_total",
    "txns": "etcd_mvcc_txn_total",
    "calls": "grpc_server_handled_total",
}
LATENCIES = {
    "request": "etcd_server_request_duration_seconds",
    "fsync": "etcd_disk_wal_fsync_duration_seconds",
    "commit": "etcd_disk_backend_commit_duration_seconds",
}
GAUGES = {
    "watchers": "etcd_debugging_mvcc_watcher_total",
    "keys": "etcd_debugging_mvcc_keys_total",
    "proposals_pending": "etcd_server_proposals_pending",
    "memory_bytes": "process_resident_memory_bytes",
}


@dataclass(frozen=True)
class MemberSample:
    """A sample of one member."""

    endpoint: str
    status: MemberStatus | None
    """None if the member did not answer."""
    problem: str
    took_seconds: float
    """The duration of the status request."""
    at: float
    """The time of the sample, by the monotonic clock."""
    samples: Samples = field(default_factory=dict)


class Sampler:
    """Samples all members at once."""

    def __init__(
        self,
        invocation: CtlInvocation,
        client: Client,
        endpoints: Sequence[str],
        seconds_max: float,
    ) -> None:
        """Prepare samples; a member that takes longer than `seconds_max` counts as silent."""
        self._client = client
        self._endpoints = endpoints
        self._seconds_max = seconds_max
        self._fetcher = Fetcher(invocation, seconds_max)

    def sample_all(self) -> list[MemberSample]:
        """Take one sample of each member."""
        with ThreadPoolExecutor(min(len(self._endpoints), ENDPOINTS_AT_ONCE_MAX)) as pool:
            return list(pool.map(self._sample_endpoint, self._endpoints))

    def count_leases(self) -> int | None:
        """Return the number of leases; None if the request fails."""
        try:
            return len(self._client.leases(self._seconds_max))
        except KvorumError:
            return None

    def _sample_endpoint(self, endpoint: str) -> MemberSample:
        started = time.monotonic()
        status, problem = None, ""
        try:
            status = self._client.maintenance.status(endpoint, timeout=self._seconds_max)
        except KvorumError as error:
            problem = error_text(error)
        took = time.monotonic() - started
        samples: Samples = {}
        if status is not None:
            try:
                samples = parse_samples(self._fetcher.get(endpoint, "/metrics").text)
            except (OSError, http.client.HTTPException) as error:
                problem = f"no metrics: {error}"
        return MemberSample(endpoint, status, problem, took, time.monotonic(), samples)


def as_json(sample: MemberSample, before: MemberSample | None, index_max: int) -> dict[str, object]:
    """Return a sample for JSON; rates cover the time since the sample `before`."""
    status = sample.status
    shown: dict[str, object] = {"endpoint": sample.endpoint, "is_up": status is not None}
    if sample.problem:
        shown["problem"] = sample.problem
    if status is None:
        return shown
    seconds = sample.at - before.at if before is not None else 0.0
    old = before.samples if before is not None else {}
    shown |= {
        "member": f"{status.member:x}",
        "version": status.version,
        "is_leader": status.is_leader,
        "is_learner": status.is_learner,
        "raft_term": status.raft_term,
        "raft_index": status.raft_index,
        "raft_lag": max(0, index_max - status.applied_index),
        "revision": status.revision,
        "database_bytes": status.database_bytes,
        "database_bytes_used": status.database_bytes_used,
        "database_bytes_max": status.database_bytes_max,
        "errors": status.errors,
        "status_seconds": round(sample.took_seconds, 6),
    }
    for name, metric in GAUGES.items():
        shown[name] = whole(total(sample.samples, metric))
    for name, metric in RATES.items():
        found = rate(old, sample.samples, metric, seconds) if old else None
        shown[f"{name}_per_second"] = None if found is None else round(found, 1)
    for name, metric in LATENCIES.items():
        for percent in (50, 99):
            found = quantile(old, sample.samples, metric, percent / 100) if old else None
            shown[f"{name}_p{percent}_seconds"] = None if found is None else round(found, 6)
    return shown
