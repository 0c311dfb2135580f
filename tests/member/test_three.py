"""Three members: elections, forwarding, reads, snapshots, changes of the membership."""

from kvorum.api.pb.etcdserverpb import PutResponse, RangeResponse
from tests.member.harness import Cluster


def test_a_follower_forwards_and_reads_what_it_wrote() -> None:
    cluster = Cluster(3)
    follower = cluster.follower()
    put = PutResponse.FromString(cluster.answer(follower, follower.put(b"key", b"value")))
    assert put.header.member_id == follower.running.id
    found = RangeResponse.FromString(cluster.answer(follower, follower.range(b"key")))
    assert [kv.value for kv in found.kvs] == [b"value"]
    cluster.pass_time(1.0)
    assert {machine.running.store.revision for machine in cluster} == {put.header.revision}
