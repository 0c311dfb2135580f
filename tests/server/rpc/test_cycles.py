"""Serving leaves nothing to the cyclic garbage collector, which is off while a member serves.

And a compiled generator that is collected releases nothing of what it holds.
"""

import gc

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3electionpb import LeaderRequest
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.state.apply.callers import MEMBER
from kvorum.state.apply.requests import PUT
from tests.server.rpc.harness import Harness


def serve_some_of_everything(harness: Harness) -> None:
    put = pb.RequestOp(request_put=pb.PutRequest(key=b"b"))
    for lease in (7, 8):
        harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=100))
    harness.ask("KV/Put", pb.PutRequest(key=b"a", value=b"1", lease=7))
    harness.ask("KV/Range", pb.RangeRequest(key=b"a", range_end=b"b"))
    harness.ask("KV/Range", pb.RangeRequest())
    harness.ask("KV/Txn", pb.TxnRequest(success=[put]))
    held = harness.ask("Lock/Lock", LockRequest(name=b"l", lease=7))
    waiting = harness.begin("/v3lockpb.Lock/Lock", LockRequest(name=b"l", lease=8))
    harness.happen((EdgeEventKind.ENDED, waiting, None))
    harness.ask("Lock/Unlock", UnlockRequest(key=held.key))
    harness.ask("Lock/Lock", LockRequest(name=b"l", lease=99))
    for name, request in (
        ("Watch/Watch", pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"a"))),
        ("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=99)),
        ("KV/RangeStream", pb.RangeRequest(key=b"a", range_end=b"z")),
        ("Election/Observe", LeaderRequest(name=b"e")),
        ("Watch/Watch", b"\xff"),
    ):
        stream = harness.open(name)
        stream.send(request)
        harness.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"a"))
        if stream.status is None:
            stream.cancel()
    harness.ask("Maintenance/HashKV", pb.HashKVRequest())
    harness.ask("Maintenance/Status", pb.StatusRequest())
    harness.ask("Cluster/MemberList", pb.MemberListRequest(linearizable=True))
    revision = harness.member.state.store.revision
    harness.ask("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))


@pytest.mark.long
def test_no_cycles() -> None:
    harness = Harness()
    serve_some_of_everything(harness)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            serve_some_of_everything(harness)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_read_that_is_given_up_holds_no_compaction_back() -> None:
    harness = Harness()
    for number in range(1000):
        put = pb.PutRequest(key=b"%04d" % number).SerializeToString()
        harness.member.replica.propose(None, MEMBER, PUT, put)
    harness.settle()
    stream = harness.open("KV/RangeStream")
    # One slice a turn, and the client leaves between two of them.
    harness.looks_max = 1
    request = pb.RangeRequest(key=b"0", range_end=b"9")
    received = (EdgeEventKind.MESSAGE, stream.call, request.SerializeToString())
    harness.turn((), [received])
    revision = harness.member.state.store.revision
    pins = harness.member.state.store._pins
    while not pins.is_held_below(revision + 1):
        assert harness.turn(), "it was read at once"
    harness.looks_max = 0
    stream.cancel()
    harness.ask("KV/Put", pb.PutRequest(key=b"0000"))
    compaction = pb.CompactionRequest(revision=revision + 1, physical=True)
    assert not isinstance(harness.ask("KV/Compact", compaction), Status)
    assert stream.status is None
