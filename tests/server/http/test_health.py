"""`/health`, `/livez`, `/readyz` and gRPC's health service, answer by answer a real etcd's.

The order of the checks is unspecified in etcd, so that lines are compared without it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.members import Cluster, new_cluster
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.server.http.endpoints import Answer, ask, raise_alarm
from tests.waiting import until

pytestmark = pytest.mark.skipif(not is_target(), reason="etcd 3.5 has neither /livez nor /readyz")

CHECKS = ["data_corruption", "serializable_read", "linearizable_read", "non_learner"]
PATHS = [
    *("/health", "/livez", "/readyz"),
    *(f"/{kind}/{check}" for kind in ("livez", "readyz") for check in CHECKS),
    *("/livez/", "/readyz/none", "/healthz"),
]
names = st.sampled_from([*CHECKS, "NOSPACE", "CORRUPT", "", "none", "NON_LEARNER"])
parameters = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["exclude", "exclude", "allowlist", "Exclude"]), names),
        st.tuples(st.just("verbose"), st.sampled_from(["", "true", "false"])),
        st.tuples(st.just("serializable"), st.sampled_from(["true", "false", "", "TRUE"])),
    ),
    max_size=4,
)
methods = st.sampled_from(["GET", "GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "DELETE"])


class Pair(NamedTuple):
    """The addresses of our server and of a real etcd."""

    ours: str
    theirs: str


@contextmanager
def running_pair(directory: Path) -> Iterator[Pair]:
    with (
        running_kvorum(directory / "ours") as kvorum,
        running_etcd(directory / "theirs") as etcd,
    ):
        yield Pair(kvorum.address, etcd.address)


def comparable(answer: Answer) -> tuple[int, dict[str, str], list[bytes]]:
    return answer.status, answer.headers, sorted(answer.body.split(b"\n"))


def compare(pair: Pair, method: str, target: str) -> None:
    ours, theirs = (comparable(ask(address, method, target)) for address in pair)
    assert ours == theirs, (method, target)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    """Pairs that are well, and with each alarm."""
    with ExitStack() as running:
        found = {}
        for state, alarm in (("well", 0), ("NOSPACE", 1), ("CORRUPT", 2)):
            found[state] = running.enter_context(running_pair(tmp_path_factory.mktemp(state)))
            for address in found[state]:
                if alarm:
                    raise_alarm(address, alarm)
        yield found


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["well", "NOSPACE", "CORRUPT"]), methods, st.sampled_from(PATHS), parameters)
def test_answers_are_etcds(
    pairs: dict[str, Pair], state: str, method: str, path: str, query: list[tuple[str, str]]
) -> None:
    compare(pairs[state], method, f"{path}?{urlencode(query)}" if query else path)


@pytest.mark.parametrize("state", ["well", "NOSPACE", "CORRUPT"])
@pytest.mark.parametrize("path", PATHS)
def test_every_check_answers_as_etcds(pairs: dict[str, Pair], state: str, path: str) -> None:
    compare(pairs[state], "GET", f"{path}?verbose")


# In a cluster: a learner, and a member that has lost the others.

FLAGS = ("--unsafe-no-fsync", "--heartbeat-interval=50", "--election-timeout=500")


@contextmanager
def clusters(directory: Path, size: int) -> Iterator[list[Cluster]]:
    with ExitStack() as running:
        found = []
        for make in ("kvorum", "etcd"):
            cluster = running.enter_context(new_cluster(directory / make, make, size, *FLAGS))
            cluster.start()
            found.append(cluster)
        yield found


def test_a_learner_is_not_ready(tmp_path: Path) -> None:
    with clusters(tmp_path, 1) as found:
        addresses = []
        for cluster in found:
            learner = cluster.add()
            request = pb.MemberAddRequest(peerURLs=[learner.peer_url], isLearner=True)
            cluster[0].answer("Cluster/MemberAdd", request)
            learner.start(state="existing", among=list(cluster))
            addresses.append(learner.address)
        pair = Pair(*addresses)
        for address in pair:
            until(f"{address} serves", lambda address=address: is_serving(address))  # type: ignore[misc]
        assert ask(pair.ours, "GET", "/readyz").status == 503
        for path in PATHS:
            compare(pair, "GET", path)


def is_serving(address: str) -> bool:
    try:
        return ask(address, "GET", "/readyz/linearizable_read").status == 200
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_without_a_leader_only_what_is_local_is_well(tmp_path: Path, slow: bool) -> None:
    """What asks the cluster waits for as long as a request may: that is left to a campaign."""
    with clusters(tmp_path, 3) as found:
        for cluster in found:
            for member in list(cluster)[1:]:
                member.kill()
        pair = Pair(*(cluster[0].address for cluster in found))
        for address in pair:
            until(f"{address} has no leader", lambda address=address: is_leaderless(address))  # type: ignore[misc]
        for target in (
            "/health",
            "/health?serializable=true",
            "/livez?verbose",
            "/readyz?verbose&exclude=linearizable_read",
            *(["/readyz", "/readyz/linearizable_read"] if slow else []),
        ):
            compare(pair, "GET", target)


def is_leaderless(address: str) -> bool:
    return b"RAFT NO LEADER" in ask(address, "GET", "/health").body


# gRPC's health service.

SERVING = b"\x08\x01"


@pytest.mark.parametrize("state", ["well", "NOSPACE", "CORRUPT"])
def test_alarms_do_not_count_for_grpcs_health_service(pairs: dict[str, Pair], state: str) -> None:
    answers = []
    for address in pairs[state]:
        with grpc.insecure_channel(address) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch", bytes, bytes)
            stream = watch(b"", timeout=30)
            answers.append((check(b"", timeout=30), next(stream)))
            stream.cancel()
    assert answers[0] == answers[1] == (SERVING, SERVING)
