"""One member by itself."""

from kvorum.api.pb.etcdserverpb import PutResponse, RangeResponse
from tests.member.harness import Cluster


def test_a_put_is_read_back() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    answer = cluster.answer(machine, machine.put(b"key", b"value"))
    assert isinstance(answer, bytes)
    put = PutResponse.FromString(answer)
    assert put.header.revision == 2
    assert put.header.member_id == machine.running.id
    assert put.header.raft_term == machine.running.term
    found = RangeResponse.FromString(cluster.answer(machine, machine.range(b"key")))
    assert [(kv.key, kv.value, kv.mod_revision) for kv in found.kvs] == [(b"key", b"value", 2)]
    assert found.count == 1
