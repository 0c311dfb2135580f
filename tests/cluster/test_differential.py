"""The same calls to each member of our cluster and of an etcd's get the same answers.

Both clusters are told the same peer URLs, so that all ids agree; the network lets each reach its
own. The first member of both leads.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.members import Cluster, until
from tests.cluster.network import Network
from tests.rpc.calls import Call, every_call, sequences
from tests.rpc.oracle import Oracle, settled
from tests.rpc.pair import Pair
from tests.rpc.pairs import SEQUENCES

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)

# An election may lose a request to one cluster, and then nothing can be compared any more. So the
# timeouts are long enough that a busy machine makes nobody campaign.
FLAGS = ("--unsafe-no-fsync", "--heartbeat-interval=100", "--election-timeout=5000")


class Twins:
    """A cluster of ours and one of etcd's, member beside member."""

    def __init__(self, ours: Cluster, theirs: Cluster) -> None:
        self._clusters = (ours, theirs)
        self.pairs = [
            Pair(Oracle(one.address), settled(Oracle(other.address)))
            for one, other in zip(ours, theirs, strict=True)
        ]

    def ready(self, place: int) -> Pair:
        """Return two members that have everything, in clusters led by the first ones."""
        for cluster in self._clusters:
            cluster.lead(cluster[0])
            cluster[place].answer("KV/Range", pb.RangeRequest(key=b"a"))
        return self.pairs[place]

    def close(self) -> None:
        for pair in self.pairs:
            for side in (pair.ours, pair.oracle):
                assert isinstance(side, Oracle)
                side.close()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    directory = tmp_path_factory.mktemp("twins")
    network = Network()
    ours = Cluster(directory / "kvorum", network, "kvorum", 3, *FLAGS)
    theirs = Cluster(directory / "etcd", network, "etcd", 3, *FLAGS, like=ours)
    try:
        for member in (*ours, *theirs):
            member.start()
        for cluster in (ours, theirs):
            cluster.settle()
        for member in ours:
            until("the version is agreed on", lambda member=member: member.state().storageVersion)  # type: ignore[misc]
        found = Twins(ours, theirs)
        yield found
        found.close()
    finally:
        ours.stop()
        theirs.stop()
        network.stop()


@pytest.mark.parametrize("place", range(3), ids=["leader", "follower", "other follower"])
@given(calls=sequences(every_call))
@settings(
    deadline=None,
    max_examples=SEQUENCES // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_call(twins: Twins, place: int, calls: list[Call]) -> None:
    pair = twins.ready(place)
    for call in calls:
        pair.check(call)
    pair.reset()
