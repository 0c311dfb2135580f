"""Sample a running cluster for `doctor`: every endpoint twice, with some time in between."""

import http.client
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.errors import KvorumError
from kvorum.client.grpc.namesakes import allow_odd_names
from kvorum.client.sync.client import Client
from kvorum.client.values import Alarm, AlarmKind, Member, StoreHash
from kvorum.tools.ctl.connecting import endpoints_of
from kvorum.tools.ctl.failures import error_text
from kvorum.tools.ctl.fetching import FetchedPage, Fetcher
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.samples import ENDPOINTS_AT_ONCE_MAX, LATENCIES
from kvorum.tools.ctl.scraping import Samples, parse_samples, quantile, rate, total, whole
from kvorum.tools.doctor.observations import (
    Certificate,
    ClusterSample,
    MemberStatusSample,
    MetricsSample,
    NumberBounds,
    Observation,
    Timing,
)
from kvorum.tools.doctor.resources import TIMED_MIN

ROUND_TRIPS = "etcd_network_peer_round_trip_time_seconds"
SECOND_CHANCE_SECONDS_MAX = 0.5
PASSED_ON = ("cacert", "cert", "key", "insecure-skip-tls-verify", "insecure-transport", "user")
"""Global flags that the command lines in findings repeat."""
_ALARM = re.compile(r"memberID:(\d+) alarm:(NOSPACE|CORRUPT)")
_KINDS: dict[str, AlarmKind] = {"NOSPACE": "nospace", "CORRUPT": "corrupt"}


class _EndpointSample(NamedTuple):
    state: MemberStatusSample | None
    problem: str
    samples: Samples
    page: FetchedPage | None
    at: float


def sample_cluster(invocation: CtlInvocation, client: Client, interval: float) -> ClusterSample:
    """Sample all endpoints twice."""
    seconds_max = invocation.seconds("command-timeout")
    members = _members(client, seconds_max)
    endpoints = endpoints_of(invocation)
    if invocation.switch("cluster") and members:
        endpoints = [url for member in members for url in member.client_urls]
    sampler = _ClusterSampler(invocation, client, seconds_max)
    with ThreadPoolExecutor(min(len(endpoints), ENDPOINTS_AT_ONCE_MAX)) as pool:
        before = list(pool.map(sampler.sample_endpoint, endpoints))
        time.sleep(interval)
        now = list(pool.map(sampler.sample_endpoint, endpoints, before))
        certificates = list(pool.map(sampler.fetch_certificate, endpoints, now))
        hashes: list[StoreHash | None] = [None] * len(endpoints)
        if invocation.switch("hash"):
            revision = min((each.state.revision for each in now if each.state), default=0)
            hashes = list(pool.map(lambda each: sampler.fetch_hash(each, revision), endpoints))
    observations = [
        Observation(
            endpoint,
            last.state,
            first.state,
            last.problem,
            bool(last.samples),
            _metrics(first, last),
            _clock(last.page),
            certificate,
            hashed,
        )
        for endpoint, first, last, certificate, hashed in zip(
            endpoints, before, now, certificates, hashes, strict=True
        )
    ]
    states = [each.state for each in now if each.state is not None]
    alarms, has_agreed = _alarms(client, states, seconds_max) if states else ([], False)
    return ClusterSample(
        observations, members, alarms, has_agreed, time.time(), _command(invocation)
    )


class _ClusterSampler:
    def __init__(self, invocation: CtlInvocation, client: Client, seconds_max: float) -> None:
        self._invocation = invocation
        self._client = client
        self._seconds_max = seconds_max
        self._fetcher = Fetcher(invocation, seconds_max)

    def sample_endpoint(
        self, endpoint: str, before: _EndpointSample | None = None
    ) -> _EndpointSample:
        problem, page, samples = "", None, {}
        seconds_max = self._seconds_max
        if before is not None and before.state is None:
            # The endpoint had its full time in the first sample.
            seconds_max = min(seconds_max, SECOND_CHANCE_SECONDS_MAX)
        try:
            answer = self._invocation.ask(
                self._client,
                rpcs.STATUS,
                pb.StatusRequest(),
                pb.StatusResponse,
                timeout=seconds_max,
                at=endpoint,
            )
        except (KvorumError, ValueError) as error:
            return _EndpointSample(
                None, f"{error_text(error)}: {error}", {}, None, time.monotonic()
            )
        try:
            page = self._fetcher.get(endpoint, "/metrics")
            samples = parse_samples(page.text)
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        state = _state(answer, samples)
        return _EndpointSample(state, problem, samples, page, time.monotonic())

    def fetch_certificate(self, endpoint: str, sample: _EndpointSample) -> Certificate | None:
        """Return an endpoint's certificate, even if the client refused the endpoint for it."""
        shown = sample.page.certificate if sample.page is not None else None
        if sample.state is None:
            try:
                shown = self._fetcher.certificate(endpoint)
            except (OSError, ValueError):
                return None
        return None if shown is None else read_certificate(shown)

    def fetch_hash(self, endpoint: str, revision: int) -> StoreHash | None:
        try:
            return self._client.maintenance.hash_kv(
                endpoint, revision=revision, timeout=self._seconds_max
            )
        except KvorumError:
            return None


def read_certificate(data: bytes) -> Certificate | None:
    """Read a certificate in DER."""
    # This import is late because it is slow and only TLS needs it.
    from cryptography import x509

    allow_odd_names()
    try:
        found = x509.load_der_x509_certificate(data)
    except ValueError:
        return None
    return Certificate(found.subject.rfc4514_string(), found.not_valid_after_utc.timestamp())


def _members(client: Client, seconds_max: float) -> list[Member]:
    try:
        # Without a quorum, only a serializable list is available.
        return client.members.list(linearizable=False, timeout=seconds_max)
    except KvorumError:
        return []


def _state(answer: pb.StatusResponse, samples: Samples) -> MemberStatusSample:
    header = answer.header
    quota = answer.dbSizeQuota or int(total(samples, "etcd_server_quota_backend_bytes") or 0)
    return MemberStatusSample(
        header.cluster_id,
        header.member_id,
        answer.leader,
        answer.version,
        header.revision,
        answer.raftTerm,
        answer.raftIndex,
        # Only etcd 3.4 and later report the applied index.
        answer.raftAppliedIndex or answer.raftIndex,
        answer.dbSize,
        answer.dbSizeInUse,
        quota,
        answer.isLearner,
        answer.downgradeInfo.targetVersion if answer.downgradeInfo.enabled else "",
        tuple(answer.errors),
    )


def _metrics(first: _EndpointSample, last: _EndpointSample) -> MetricsSample:
    samples, before = last.samples, first.samples
    if not samples:
        return MetricsSample()
    started = total(samples, "process_start_time_seconds")
    clock = last.page.date if last.page is not None else None
    failed = None
    if before:
        failed = rate(before, samples, "etcd_server_proposals_failed_total", last.at - first.at)
    return MetricsSample(
        # Prefer the member's clock for both times, because it may differ from this machine's.
        (clock if clock is not None else time.time()) - started if started is not None else None,
        whole(total(samples, "etcd_server_leader_changes_seen_total")),
        _timing(before, samples, LATENCIES["fsync"]),
        _timing(before, samples, LATENCIES["commit"]),
        _timing(before, samples, ROUND_TRIPS),
        _least(before, samples, "etcd_server_proposals_pending"),
        failed,
        _least(before, samples, "etcd_debugging_mvcc_slow_watcher_total"),
    )


def _timing(before: Samples, now: Samples, name: str) -> Timing | None:
    """Return timings between the samples, or if they are few, since the member started."""
    count = (total(now, f"{name}_count") or 0.0) - (total(before, f"{name}_count") or 0.0)
    if not before or count < TIMED_MIN:
        before, count = {}, total(now, f"{name}_count") or 0.0
    median, p99 = (quantile(before, now, name, share) for share in (0.5, 0.99))
    return None if median is None or p99 is None else Timing(median, p99, int(count))


def _least(before: Samples, now: Samples, name: str) -> int | None:
    values = [total(samples, name) for samples in (before, now) if samples]
    known = [value for value in values if value is not None]
    return int(min(known)) if known else None


def _clock(page: FetchedPage | None) -> NumberBounds | None:
    if page is None or page.date is None:
        return None
    # The header Date is cut off to the second, and a server may reuse it for a second.
    return NumberBounds(page.date - page.answered_at, page.date + 2 - page.asked_at)


def _alarms(
    client: Client, states: Iterable[MemberStatusSample], seconds_max: float
) -> tuple[list[Alarm], bool]:
    """Return the alarms, and whether the cluster committed the request for them."""
    try:
        return client.maintenance.alarms(timeout=seconds_max), True
    except KvorumError:
        # Listing alarms is a proposal, which needs a quorum; the members' status names them, too.
        texts = (text for state in states for text in state.errors)
        found = (match for text in texts for match in _ALARM.finditer(text))
        alarms = dict.fromkeys(Alarm(int(each[1]), _KINDS[each[2]]) for each in found)
        return list(alarms), False


def _command(invocation: CtlInvocation) -> tuple[str, ...]:
    words = ["kvorumctl"]
    for name in PASSED_ON:
        if name in invocation.given.changed:
            value = invocation.given.values[name]
            text = str(value).lower() if isinstance(value, bool) else str(value)
            # The command lines must not show the password.
            words.append(f"--{name}={text.partition(':')[0] if name == 'user' else text}")
    return tuple(words)
