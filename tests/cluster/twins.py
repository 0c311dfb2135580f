"""A cluster of ours and one of a real etcd, member beside member.

Both are told the same peer URLs, so that all ids agree; the network lets each reach its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.members import Cluster
from tests.cluster.network import Network
from tests.server.rpc.oracle import Oracle, settled
from tests.server.rpc.pair import Pair
from tests.waiting import until

# An election may lose a request to one cluster, and then nothing can be compared any more. So the
# timeouts are long enough that a busy machine makes nobody campaign.
FLAGS = ("--unsafe-no-fsync", "--heartbeat-interval=100", "--election-timeout=5000")


class Twins:
    """Both clusters, and a pair for each place in them."""

    def __init__(self, ours: Cluster, theirs: Cluster) -> None:
        self.clusters = (ours, theirs)
        self.pairs = [
            Pair(Oracle(one.address), settled(Oracle(other.address)))
            for one, other in zip(ours, theirs, strict=True)
        ]

    def ready(self, place: int) -> Pair:
        """Return two members that have everything, in clusters led by the first ones."""
        self.lead(0)
        for cluster in self.clusters:
            cluster[place].answer("KV/Range", pb.RangeRequest(key=b"a"))
        return self.pairs[place]

    def lead(self, place: int) -> None:
        """Let the members at a place lead."""
        for cluster in self.clusters:
            cluster.lead(cluster[place])

    def close(self) -> None:
        for pair in self.pairs:
            for side in (pair.ours, pair.oracle):
                assert isinstance(side, Oracle)
                side.close()


@contextmanager
def running_twins(directory: Path, *flags: str, make: str = "kvorum") -> Iterator[Twins]:
    """Run both for as long as the block takes; those of a make stand for ours."""
    network = Network()
    flags = (*FLAGS, *flags)
    ours = Cluster(directory / "ours", network, make, 3, *flags)
    theirs = Cluster(directory / "etcd", network, "etcd", 3, *flags, like=ours)
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
