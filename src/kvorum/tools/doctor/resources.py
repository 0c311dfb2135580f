"""Find shortages: slow disks, full databases, overload, wrong clocks, expiring certificates."""

from collections.abc import Iterator

from kvorum.tools.doctor.findings import Certainty, Finding, command_line
from kvorum.tools.doctor.observations import (
    Certificate,
    ClusterSample,
    MemberStatusSample,
    Observation,
    Timing,
)

LOG_SYNC_P99_SECONDS_MAX = 0.1
DATABASE_COMMIT_P99_SECONDS_MAX = 0.25
TIMED_MIN = 20
"""A percentile of fewer samples means nothing."""
QUOTA_SHARE_MAX = 0.8
FREE_BYTES_MIN = 64 << 20
"""Less free space in a database is not worth defragmenting."""
FREE_SHARE_MAX = 0.5
CLOCK_SECONDS_MAX = 1.0
"""Members themselves warn of a greater difference."""
CERTIFICATE_DAYS_MIN = 30
PROPOSALS_PENDING_MAX = 100
PROPOSALS_FAILED_PER_SECOND_MAX = 5.0
SLOW_WATCHERS_MAX = 10

DAY_SECONDS = 86_400
_CERTAIN, _LIKELY, _POSSIBLE = Certainty


def resources(sample: ClusterSample) -> Iterator[Finding]:
    """Find members that run short of a resource."""
    for each, state in sample.answers:
        yield from _disks(sample, each)
        yield from _space(sample, each, state)
        yield from _load(sample, each)
        if not each.has_metrics:
            yield Finding(
                "metrics-unreadable",
                _CERTAIN,
                each.endpoint,
                "its metrics cannot be read, so that disks, network and load are not judged; they "
                "may be served at --listen-metrics-urls alone",
                {"error": each.problem},
            )
    yield from _alarms(sample)
    yield from _quotas(sample)
    yield from _clocks(sample)
    for each in sample.observations:
        if each.certificate is not None:
            yield from certificate_findings(each.certificate, each.endpoint, sample.now)


def _at(sample: ClusterSample, endpoint: str, *words: str) -> str:
    return command_line(*sample.command, f"--endpoints={endpoint}", *words)


def _disks(sample: ClusterSample, each: Observation) -> Iterator[Finding]:
    for name, what, timing, limit in (
        (
            "log-disk-slow",
            "syncs of the write-ahead log",
            each.metrics.log_syncs,
            LOG_SYNC_P99_SECONDS_MAX,
        ),
        (
            "database-disk-slow",
            "commits of the database",
            each.metrics.database_commits,
            DATABASE_COMMIT_P99_SECONDS_MAX,
        ),
    ):
        if _is_slow(timing, limit):
            assert timing is not None, "it is slow"
            yield Finding(
                name,
                _LIKELY,
                each.endpoint,
                f"{what} take long: the disk is slow or shared with others. Give the member a disk "
                "of its own, and find out who writes",
                {
                    "p99_seconds": round(timing.p99_seconds, 4),
                    "p99_seconds_max": limit,
                    "timed": timing.timed,
                },
                (_at(sample, each.endpoint, "check", "perf"), "iostat -x 1 5"),
            )


def _is_slow(timing: Timing | None, limit: float) -> bool:
    return timing is not None and timing.timed >= TIMED_MIN and timing.p99_seconds > limit


def _space(
    sample: ClusterSample, each: Observation, state: MemberStatusSample
) -> Iterator[Finding]:
    size, used, quota = state.database_bytes, state.database_bytes_used, state.quota_bytes
    is_full = any(
        alarm.kind == "nospace" and alarm.member == state.member for alarm in sample.alarms
    )
    if quota and size > quota * QUOTA_SHARE_MAX and not is_full:
        yield Finding(
            "quota-near",
            _CERTAIN,
            each.endpoint,
            "its database is close to its quota; when that is reached, the whole cluster takes no "
            "more writes. Compact and defragment, or raise --quota-backend-bytes on all members",
            _sizes(state),
            _free_up(sample, each, state),
        )
    free = size - used
    if free >= FREE_BYTES_MIN and free > size * FREE_SHARE_MAX:
        yield Finding(
            "fragmentation",
            _CERTAIN,
            each.endpoint,
            "most of its database is free pages; defragmenting gives them back, one member at a "
            "time, as each of them serves nobody meanwhile",
            {
                "database_bytes": size,
                "database_bytes_used": used,
                "free_share": round(free / size, 3),
            },
            _free_up(sample, each, state)[1:],
        )


def _alarms(sample: ClusterSample) -> Iterator[Finding]:
    states = {state.member: (each, state) for each, state in sample.answers}
    for alarm in sample.alarms:
        if alarm.kind != "nospace":
            continue
        # If that member does not answer, any other member can disarm its alarm.
        each, state = states.get(alarm.member) or sample.answers[0]
        yield Finding(
            "alarm-nospace",
            _CERTAIN,
            each.endpoint if alarm.member in states else sample.name(alarm.member),
            f"member {sample.name(alarm.member)} has reached its quota, and the whole cluster "
            "takes no more writes until there is room and the alarm is ended. Compact, defragment "
            "each member, or raise --quota-backend-bytes",
            _sizes(state) if alarm.member in states else {"alarm": "NOSPACE"},
            (*_free_up(sample, each, state), _at(sample, each.endpoint, "alarm", "disarm")),
        )


def _sizes(state: MemberStatusSample) -> dict[str, int | float | str]:
    quota = state.quota_bytes
    return {
        "database_bytes": state.database_bytes,
        "database_bytes_used": state.database_bytes_used,
        "quota_bytes": quota,
        "quota_share": round(state.database_bytes / quota, 3) if quota else 0,
    }


def _free_up(
    sample: ClusterSample, each: Observation, state: MemberStatusSample
) -> tuple[str, str]:
    return (
        _at(sample, each.endpoint, "compaction", str(state.revision)),
        _at(sample, each.endpoint, "defrag"),
    )


def _load(sample: ClusterSample, each: Observation) -> Iterator[Finding]:
    metrics = each.metrics
    if (metrics.proposals_pending or 0) > PROPOSALS_PENDING_MAX:
        yield Finding(
            "proposals-pending",
            _LIKELY,
            each.endpoint,
            "many writes wait to be agreed on: the load is too high, or a disk or the network slow",
            {"proposals_pending": metrics.proposals_pending or 0},
            (_at(sample, each.endpoint, "top"),),
        )
    if (metrics.proposals_failed_per_second or 0.0) > PROPOSALS_FAILED_PER_SECOND_MAX:
        yield Finding(
            "proposals-failing",
            _CERTAIN,
            each.endpoint,
            "writes fail because the members do not agree on them in time: elections, or no quorum",
            {"proposals_failed_per_second": round(metrics.proposals_failed_per_second or 0.0, 1)},
            (_at(sample, each.endpoint, "endpoint", "status", "--cluster", "-w", "table"),),
        )
    if (metrics.slow_watchers or 0) > SLOW_WATCHERS_MAX:
        yield Finding(
            "watchers-slow",
            _POSSIBLE,
            each.endpoint,
            "many watchers are behind: their clients read too slowly, or began far in the past",
            {"slow_watchers": metrics.slow_watchers or 0},
            (_at(sample, each.endpoint, "top"),),
        )


def _quotas(sample: ClusterSample) -> Iterator[Finding]:
    quotas = {each.endpoint: state.quota_bytes for each, state in sample.answers}
    if len({quota for quota in quotas.values() if quota}) > 1:
        yield Finding(
            "quotas-differ",
            _CERTAIN,
            "",
            "the members have different quotas, and the smallest stops the whole cluster; give all "
            "of them the same --quota-backend-bytes",
            {"quota_bytes": ", ".join(f"{quota} at {place}" for place, quota in quotas.items())},
            (_at(sample, ",".join(quotas), "endpoint", "status", "-w", "table"),),
        )


def _clocks(sample: ClusterSample) -> Iterator[Finding]:
    """Find members whose clocks differ from this machine's.

    If several members answer and all of them differ, this machine's clock may be the wrong one.
    """
    known = [
        (each, each.clock_ahead_seconds)
        for each, _ in sample.answers
        if each.clock_ahead_seconds is not None
    ]
    far = [
        (each, ahead)
        for each, ahead in known
        if ahead.low > CLOCK_SECONDS_MAX or ahead.high < -CLOCK_SECONDS_MAX
    ]
    is_ours = len(known) > 1 and len(far) == len(known)
    for each, ahead in far:
        yield Finding(
            "clock-skew",
            _POSSIBLE if is_ours or len(known) == 1 else _CERTAIN,
            each.endpoint,
            "its clock differs from this machine's; leases do not need it, but logs, certificates "
            "and tokens do"
            + (". All members differ, so perhaps it is this machine's clock" if is_ours else ""),
            {
                "ahead_seconds_min": round(ahead.low, 1),
                "ahead_seconds_max": round(ahead.high, 1),
            },
            ("chronyc tracking", "timedatectl status"),
        )


def certificate_findings(certificate: Certificate, subject: str, now: float) -> Iterator[Finding]:
    """Find a certificate that has expired, or expires within CERTIFICATE_DAYS_MIN days."""
    days = (certificate.valid_until - now) / DAY_SECONDS
    if days >= CERTIFICATE_DAYS_MIN:
        return
    yield Finding(
        "certificate-expired" if days < 0 else "certificate-ends-soon",
        _CERTAIN,
        subject,
        f"the certificate of {certificate.subject!r} "
        + ("has expired: those who check it refuse it" if days < 0 else "ends soon")
        + "; replace the files, which are read again without a restart",
        {"days_left": round(days, 1), "valid_until_unix_seconds": int(certificate.valid_until)},
    )
