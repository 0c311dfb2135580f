"""A member that is far behind gets a snapshot while the others go on, and is one of them again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.load import load
from tests.cluster.members import Cluster, Member, running_cluster
from tests.waiting import until

VALUE_BYTES = 2000
# Entries that a leader keeps for followers that lag; etcd 3.5.1 has no flag for it.
KEPT = {"kvorum": 100, "etcd": 5000}
RECEIVED = {"kvorum": "received the snapshot", "etcd": "applied incoming Raft snapshot"}
FLAGS = {
    "kvorum": ("--snapshot-count=200", "--snapshot-catchup-entries=100"),
    "etcd": ("--snapshot-count=200",),
}


def write(member: Member, entries: int) -> None:
    """Put many keys, a few at a time."""
    for first in range(0, entries, 200):
        puts = [
            pb.PutRequest(key=b"behind/%d" % (number % 500), value=bytes(VALUE_BYTES))
            for number in range(first, first + 200)
        ]
        member.answers("KV/Put", puts)


@pytest.fixture
def small_logs(make: str, tmp_path: Path) -> Iterator[Cluster]:
    """Three members that soon discard their log; new ones, as etcd keeps it after a snapshot."""
    with running_cluster(tmp_path, make, 3, *FLAGS[make]) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["killed", pytest.param("cut off", marks=pytest.mark.campaign)])
def test_a_snapshot_while_writes_go_on(small_logs: Cluster, make: str, how: str) -> None:
    cluster = small_logs
    behind = cluster.followers()[0]
    with load(cluster, clerks=2) as work:
        work.await_progress()
        others = cluster.others(behind)
        if how == "killed":
            behind.kill()
        else:
            for other in others:
                cluster.network.sever(behind.node, other.node)
        size = behind.log_size()
        leader = cluster.leader(others)
        index = leader.state().raftAppliedIndex
        write(leader, KEPT[make] + 1000)
        cluster.await_snapshots(others, index + KEPT[make] + 500)
        if how == "killed":
            behind.start()
        else:
            cluster.network.mend()
        until("a snapshot has arrived", lambda: behind.logged(RECEIVED[make], size))
        work.await_progress()
