"""What somebody saw of a cluster: the answers of its endpoints, and what their metrics count."""

from typing import NamedTuple

from kvorum.client.endpoints import parse_endpoint
from kvorum.client.values import Alarm, Member, StoreHash


class Range(NamedTuple):
    """A number that is not known exactly."""

    low: float
    high: float


class Certificate(NamedTuple):
    """What an endpoint or a file shows."""

    subject: str
    valid_until: float
    """In Unix seconds."""


class State(NamedTuple):
    """How a member says that it is."""

    cluster: int
    member: int
    leader: int
    """0 if it knows none."""
    version: str
    revision: int
    raft_term: int
    raft_index: int
    applied_index: int
    database_bytes: int
    database_bytes_used: int
    quota_bytes: int
    """0 if it does not tell."""
    is_learner: bool
    downgrade_target: str
    errors: tuple[str, ...]


class Timing(NamedTuple):
    """How long something took, since the member started or of late."""

    median_seconds: float
    p99_seconds: float
    timed: int
    """How often."""


class Figures(NamedTuple):
    """What a member's metrics say; None where they do not."""

    uptime_seconds: float | None = None
    leader_changes: int | None = None
    log_syncs: Timing | None = None
    database_commits: Timing | None = None
    round_trips: Timing | None = None
    proposals_pending: int | None = None
    """At both looks: the smaller number."""
    proposals_failed_per_second: float | None = None
    slow_watchers: int | None = None
    """At both looks: the smaller number."""


class Observation(NamedTuple):
    """An endpoint, looked at twice."""

    endpoint: str
    state: State | None
    """None if it did not answer."""
    before: State | None = None
    """At the look before."""
    problem: str = ""
    """Why it did not answer."""
    has_metrics: bool = False
    figures: Figures = Figures()
    clock_ahead_seconds: Range | None = None
    """Of its clock, before this machine's."""
    certificate: Certificate | None = None
    hash: StoreHash | None = None


class Sight(NamedTuple):
    """A cluster."""

    observations: list[Observation]
    members: list[Member]
    """Empty if nobody told."""
    alarms: list[Alarm]
    has_agreed: bool
    """Whether the cluster agreed on something meanwhile, for which it needs a quorum."""
    now: float
    """In Unix seconds."""
    command: tuple[str, ...]
    """The words of a command line up to the endpoints: `kvorumctl --cacert=ca.pem`."""

    @property
    def answers(self) -> "list[tuple[Observation, State]]":
        """The endpoints that answered."""
        return [(each, each.state) for each in self.observations if each.state is not None]

    @property
    def voters(self) -> list[Member]:
        """The members that vote."""
        return [each for each in self.members if not each.is_learner]

    def name(self, member: int) -> str:
        """Return how a member is called, with its id."""
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
