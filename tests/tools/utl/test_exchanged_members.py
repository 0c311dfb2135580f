"""Members of a running cluster change hands one by one: from etcd to Kvorum, and back."""

from pathlib import Path

import pytest

from tests.cluster.members import Cluster, Member, grant, running_cluster
from tests.etcd import is_target
from tests.tools.utl.commands import done


def exchange(cluster: Cluster, member: Member, make: str) -> None:
    """Let a member go on as one of another make, while the others serve."""
    member.terminate()
    elsewhere = cluster.leader(cluster.others(member))
    for number in range(20):
        elsewhere.put(b"while/%d" % number, member.name.encode())
    target = cluster.directory / f"{member.name}-{make}"
    back = ("--to-etcd",) if make == "etcd" else ()
    done("kvorumutl", "migrate", f"--data-dir={member.data}", f"--output-dir={target}", *back)
    member.data, member.make = target, make
    member.start()
    cluster.settle()
    cluster.check_agreement()


@pytest.mark.long
@pytest.mark.skipif(
    not is_target(), reason="beside members of 3.5 ours stops; 'make oracle' builds 3.7.3"
)
def test_members_change_hands_while_the_others_serve(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "etcd") as cluster:
        leader = cluster.settle()
        lease = grant(leader)
        for number in range(100):
            leader.put(b"before/%d" % number, b"v", lease)
        for member in cluster:
            exchange(cluster, member, "kvorum")
        assert {member.make for member in cluster} == {"kvorum"}
        for member in cluster:
            exchange(cluster, member, "etcd")
        assert cluster[0].get(b"before/99") == b"v"
        assert cluster[0].get(b"while/19") == cluster[2].name.encode()
