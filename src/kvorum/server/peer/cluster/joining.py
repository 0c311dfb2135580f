"""The requests to other members before a member's first start.

A joining member takes its id and the cluster's from the first answer, after checking that both
sides list the same members and that the versions are compatible. A member of a new cluster makes
sure that the others do not know it from an earlier run: a member that lost its log has forgotten
its votes, and must not come back under the same id. The member asks all others, because a member
that lags behind may not know yet that this one has run.

The functions are generators that yield a request and receive its answer or None; `RequestRunner`
runs them.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from kvorum.member.peer_requests import DOWNGRADE_PATH
from kvorum.network.dialer.interface import Dialer, DialEvent
from kvorum.server.peer.cluster.answers import (
    CLUSTER_ID,
    MEMBERS_PATH,
    UNDECIDED_CLUSTER,
    VERSION_PATH,
)
from kvorum.server.peer.cluster.exchanges import Answer, Exchanges
from kvorum.server.peer.cluster.polling import versions_of
from kvorum.server.peer.transport.headers import parse_id
from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    InitialCluster,
    check_initial_cluster,
    initial_members,
    is_bootstrapped,
    match_existing,
    mismatch_text,
)
from kvorum.state.membership.documents import DocumentError, MemberDocument, decode_members
from kvorum.state.membership.identity import cluster_id as compute_cluster_id
from kvorum.state.membership.versions import CLUSTER_VERSION_MIN, Version, parse_version

JOIN_SECONDS_MAX = 10.0
"""The timeout of one request if the member joins a cluster."""
NEW_SECONDS_MAX = 1.0
"""The timeout of one request if the cluster is new: most of the other members do not run yet."""
MORE_SECONDS_MAX = 1.0
"""The timeout of each request after the first answer."""


class GetRequest(NamedTuple):
    """A GET request to `scheme://host:port`, and its timeout."""

    url: str
    target: str
    seconds_max: float


class Joined(NamedTuple):
    """The cluster that a joining member found, and that member's id."""

    member_id: int
    cluster_id: int
    members: list[MemberDocument]


class Start(NamedTuple):
    """How a member starts: in an existing cluster, or in a new one (`joined` is None)."""

    joined: Joined | None
    known: Sequence[MemberDocument]
    """The members that it knows before its log names them."""


Steps = Generator[GetRequest, Answer | None, None]
_ClusterAnswer = tuple[int, list[MemberDocument]]
"""The id of a cluster and its members, as one member reports them."""

Value = TypeVar("Value")


class RequestRunner(Generic[Value]):
    """Sends the requests that a generator yields, in turn; `value` is its result once `is_done`.

    Any method may raise the errors of the generator. Each request goes to the dialer at once.
    """

    __slots__ = ("_exchanges", "_now", "_steps", "is_done", "value")

    value: Value

    def __init__(
        self, steps: Generator[GetRequest, Answer | None, Value], dialer: Dialer, now: float
    ) -> None:
        self._steps = steps
        # The generator waits for each answer before its next request.
        self._exchanges = Exchanges(dialer, running_max=1)
        self._now = now
        self.is_done = False
        self._next_step(None)

    def handle_answers(self, events: Iterable[DialEvent], now: float) -> None:
        """Take events of the dialer."""
        self._now = now
        for event in events:
            self._exchanges.handle_answer(event)

    def pass_time(self, now: float) -> float:
        """Cancel a request that timed out; return when to call this next."""
        self._now = now
        return self._exchanges.pass_time(now)

    def _next_step(self, answer: Answer | None) -> None:
        try:
            asking = self._steps.send(answer)
        except StopIteration as end:
            self.is_done = True
            self.value = end.value
            return
        request = ("GET", asking.target, (), b"")
        deadline = self._now + asking.seconds_max
        self._exchanges.send_request(0, [asking.url], request, deadline, self._next_step)


def find_start(
    initial_cluster: InitialCluster,
    name: str,
    advertised: Sequence[str],
    token: str,
    server_version: str,
    resolve: Callable[[str], str] = str,
    *,
    is_existing: bool,
) -> Generator[GetRequest, Answer | None, Start]:
    """Find how a member without a log starts; raise BootstrapError if it must not.

    `advertised` are its own peer URLs; `is_existing` says whether the flags declare the cluster as
    existing.
    """
    check_initial_cluster(initial_cluster, name, advertised, resolve)
    if is_existing:
        joined = yield from join(initial_cluster, name, server_version, resolve)
        return Start(joined, joined.members)
    if len(initial_cluster) == 1:
        return Start(None, ())
    yield from check_new(initial_cluster, token, name)
    return Start(None, initial_members(initial_cluster, token))


def join(
    initial_cluster: InitialCluster,
    name: str,
    server_version: str,
    resolve: Callable[[str], str] = str,
) -> Generator[GetRequest, Answer | None, Joined]:
    """Find the existing cluster of the listed members; raise BootstrapError if that fails."""
    urls = _urls_of_others(initial_cluster, name)
    answers = list((yield from _fetch(urls, JOIN_SECONDS_MAX)).values())
    if not answers:
        raise ClusterSettingsError(
            "cannot fetch cluster info from peer urls: could not retrieve cluster information "
            f"from the given URLs {', '.join(urls) or '(none)'}; is the cluster running, and are "
            "the URLs of its members in --initial-cluster?"
        )
    cluster_id, existing = answers[0]
    members = match_existing(initial_cluster, existing, resolve)
    local = next(each for each in members if each.name == name)
    if any(each == cluster_id and is_bootstrapped(known, local.id) for each, known in answers):
        raise ClusterSettingsError(
            f"member {local.id:x} has already been bootstrapped: the cluster knows {name} as a "
            "member that has run before, but its data directory holds no log. A member that lost "
            f"its log cannot come back as the same one: run 'etcdctl member remove {local.id:x}', "
            "then 'etcdctl member add', and start it again with --initial-cluster-state=existing"
        )
    yield from _check_versions(existing, local.id, parse_version(server_version))
    return Joined(local.id, cluster_id, members)


def check_new(initial_cluster: InitialCluster, token: str, name: str) -> Steps:
    """Raise BootstrapError if another member knows this one from an earlier run.

    Raise it, too, if all the others belong to another cluster.
    """
    members = initial_members(initial_cluster, token)
    local = next(each for each in members if each.name == name)
    answers = yield from _fetch(_urls_of_others(initial_cluster, name), NEW_SECONDS_MAX)
    if any(is_bootstrapped(known, local.id) for _, known in answers.values()):
        raise ClusterSettingsError(
            f"member {local.id:x} has already been bootstrapped: the other members know {name} as "
            "a member that has run before, but its data directory holds no log. Give it the "
            f"--data-dir it had; if that is lost, run 'etcdctl member remove {local.id:x}', then "
            "'etcdctl member add', and start it with --initial-cluster-state=existing"
        )
    own_id = compute_cluster_id(each.id for each in members)
    foreign = {url: each for url, (each, _) in answers.items() if each != own_id}
    if all(each is local or not foreign.keys().isdisjoint(each.peer_urls) for each in members):
        raise ClusterSettingsError(mismatch_text(own_id, next(iter(foreign.values()))))


def _urls_of_others(initial_cluster: InitialCluster, name: str) -> list[str]:
    return sorted(url for other, urls in initial_cluster.items() if other != name for url in urls)


def _fetch(
    urls: Sequence[str], seconds_max: float
) -> Generator[GetRequest, Answer | None, dict[str, _ClusterAnswer]]:
    """Return the valid answers by URL, in the order of the requests."""
    answers: dict[str, _ClusterAnswer] = {}
    for url in urls:
        answer = yield GetRequest(url, MEMBERS_PATH, MORE_SECONDS_MAX if answers else seconds_max)
        if answer is None or answer.status != 200:
            continue
        with suppress(ValueError, DocumentError):
            cluster_id = parse_id(answer.headers.get(CLUSTER_ID, ""))
            members = decode_members(answer.body)
            if members and cluster_id is not None:
                answers[url] = cluster_id, members
    return answers


def _check_versions(existing: Sequence[MemberDocument], local_id: int, own: Version) -> Steps:
    """Raise BootstrapError unless this server can run with the cluster's version.

    A cluster that has not decided on a version will decide on at most that of a member. Do not wait
    for the decision: without this member, the cluster may have no quorum for it.
    """
    others = [each for each in existing if each.id != local_id]
    found: dict[int, Version] = {}
    for member in others:
        for url in member.peer_urls:
            versions = versions_of((yield GetRequest(url, VERSION_PATH, JOIN_SECONDS_MAX)))
            if versions is None:
                continue
            with suppress(ValueError):
                found[member.id] = _version_or_more(versions)
            break
    highest = own.level
    if (yield from _is_downgrading(others)):
        highest = Version(own.major, own.minor + 1)
    unfit = {
        each: version
        for each, version in found.items()
        if not CLUSTER_VERSION_MIN <= version.level <= highest
    }
    if unfit or not found:
        answers = ", ".join(f"{each:x} runs with {version}" for each, version in found.items())
        raise ClusterSettingsError(
            "incompatible with current running cluster: this server can join clusters of version "
            f"{CLUSTER_VERSION_MIN} to {highest}, but {answers or 'no member reported its version'}"
        )


def _version_or_more(versions: Mapping[str, str]) -> Version:
    """Return the cluster's version as a member reports it, or the highest it can become."""
    is_decided = versions.get("etcdcluster") != UNDECIDED_CLUSTER
    return parse_version(versions.get("etcdcluster" if is_decided else "etcdserver", ""))


def _is_downgrading(
    others: Sequence[MemberDocument],
) -> Generator[GetRequest, Answer | None, bool]:
    """Return whether the cluster is downgrading, according to the first member that answers."""
    for member in others:
        for url in member.peer_urls:
            answer = yield GetRequest(url, DOWNGRADE_PATH, JOIN_SECONDS_MAX)
            if answer is not None and answer.status == 200:
                return answer.body.strip() == b"true"
    return False
