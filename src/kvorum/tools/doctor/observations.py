"""Observations of a cluster: the answers and the metrics of its endpoints."""

from typing import NamedTuple

from kvorum.client.endpoints import parse_endpoint
from kvorum.client.values import Alarm, Member, StoreHash


class NumberBounds(NamedTuple):
    """The bounds of a number that is not known exactly."""

    low: float
    high: float


class Certificate(NamedTuple):
    """A certificate that an endpoint or a file presents."""

    subject: str
    valid_until: float
    """In Unix seconds."""


class MemberStatusSample(NamedTuple):
    """The status that a member reports."""

    cluster: int
    member: int
    leader: int
    """0 if the member knows no leader."""
    version: str
    revision: int
    raft_term: int
    raft_index: int
    applied_index: int
    database_bytes: int
    database_bytes_used: int
    quota_bytes: int
    """0 if the member does not report it."""
    is_learner: bool
    downgrade_target: str
    errors: tuple[str, ...]


class Timing(NamedTuple):
    """The durations of an operation, between the two samples or since the member started."""

    median_seconds: float
    p99_seconds: float
    timed: int
    """The number of operations that were timed."""


class MetricsSample(NamedTuple):
    """Values from a member's metrics; None for a missing metric."""

    uptime_seconds: float | None = None
    leader_changes: int | None = None
    log_syncs: Timing | None = None
    database_commits: Timing | None = None
    round_trips: Timing | None = None
    proposals_pending: int | None = None
    """The smaller number of the two samples."""
    proposals_failed_per_second: float | None = None
    slow_watchers: int | None = None
    """The smaller number of the two samples."""


class Observation(NamedTuple):
    """Two samples of an endpoint."""

    endpoint: str
    state: MemberStatusSample | None
    """None if the endpoint did not answer the second time."""
    before: MemberStatusSample | None = None
    """The state in the first sample."""
    problem: str = ""
    """Why the endpoint did not answer, or why its metrics cannot be read."""
    has_metrics: bool = False
    metrics: MetricsSample = MetricsSample()
    clock_ahead_seconds: NumberBounds | None = None
    """How far the member's clock is ahead of this machine's."""
    certificate: Certificate | None = None
    hash: StoreHash | None = None


class ClusterSample(NamedTuple):
    """An observed cluster."""

    observations: list[Observation]
    members: list[Member]
    """Empty if no endpoint returned the list."""
    alarms: list[Alarm]
    has_agreed: bool
    """Whether the cluster committed a proposal after the samples, which takes a quorum."""
    now: float
    """In Unix seconds."""
    command: tuple[str, ...]
    """The words of a command line up to the endpoints: `kvorumctl --cacert=ca.pem`."""

    @property
    def answers(self) -> "list[tuple[Observation, MemberStatusSample]]":
        """The endpoints that answered, with their states."""
        return [(each, each.state) for each in self.observations if each.state is not None]

    @property
    def voters(self) -> list[Member]:
        """The members that are not learners."""
        return [each for each in self.members if not each.is_learner]

    def name(self, member: int) -> str:
        """Return a member's name and id, or the id alone if the name is unknown."""
        found = next((each.name for each in self.members if each.id == member), "")
        return f"{found} ({member:x})" if found else f"{member:x}"

    def member_at(self, endpoint: str) -> Member | None:
        """Return the member that advertises an endpoint."""
        return next((each for each in self.members if is_at(each, endpoint)), None)


def is_at(member: Member, endpoint: str) -> bool:
    """Return whether a member advertises an endpoint, with or without the scheme."""
    return _place(endpoint) in map(_place, member.client_urls)


def _place(endpoint: str) -> tuple[str, int | None] | str:
    try:
        address = parse_endpoint(endpoint)
    except ValueError:
        return endpoint
    return address.host, address.port
