"""Serving leaves nothing to the cyclic collector, which is off while a member serves."""

import gc

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3electionpb import LeaderRequest
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.edge.interface import EventKind
from tests.rpc.harness import Harness


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
    harness.happen((EventKind.ENDED, waiting, None))
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
    revision = harness.member.store.revision
    harness.ask("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))


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
