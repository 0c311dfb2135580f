"""Everything that a call proposes, in any step or after it was given up, carries its caller."""

from collections.abc import Callable
from math import inf

import pytest
from google.protobuf.message import Message

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3electionpb import (
    CampaignRequest,
    CampaignResponse,
    ProclaimRequest,
    ResignRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.rpc.table import NUMBERS
from kvorum.state.apply import requests
from kvorum.state.apply.callers import Caller, Front
from tests.server.rpc.harness import Harness

LOCK = "/v3lockpb.Lock/Lock"
CAMPAIGN = "/v3electionpb.Election/Campaign"

READ = pb.RequestOp(request_range=pb.RangeRequest(key=b"a"))

Asked = Callable[[Harness], object]


def put_op(key: bytes, value: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))


def give_up(harness: Harness, path: str, request: LockRequest | CampaignRequest) -> None:
    """Wait in a queue, and leave before the call's turn comes."""
    call = harness.begin(path, request)
    harness.settle()
    assert call not in harness.edge.replies
    harness.happen((EdgeEventKind.ENDED, call, None))


def campaign(harness: Harness) -> object:
    request = CampaignRequest(name=b"e", lease=7)
    answer = harness.ask("Election/Campaign", request)
    assert isinstance(answer, CampaignResponse)
    return answer.leader


def proclaim(harness: Harness) -> object:
    return harness.ask("Election/Proclaim", ProclaimRequest(leader=campaign(harness)))  # type: ignore[arg-type]


def resign(harness: Harness) -> object:
    return harness.ask("Election/Resign", ResignRequest(leader=campaign(harness)))  # type: ignore[arg-type]


def give_up_a_lock(harness: Harness) -> None:
    harness.ask("Lock/Lock", LockRequest(name=b"l", lease=7))
    give_up(harness, LOCK, LockRequest(name=b"l", lease=8))


def give_up_an_election(harness: Harness) -> None:
    harness.ask("Election/Campaign", CampaignRequest(name=b"e", lease=7))
    give_up(harness, CAMPAIGN, CampaignRequest(name=b"e", lease=8))


CALLS: dict[str, tuple[Asked, list[int]]] = {
    "a plain put": (
        lambda on: on.ask("KV/Put", pb.PutRequest(key=b"a")),
        [requests.PUT],
    ),
    "a put with options": (
        lambda on: on.ask("KV/Put", pb.PutRequest(key=b"a", ignore_value=True)),
        [requests.PUT],
    ),
    "DeleteRange": (
        lambda on: on.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"a")),
        [requests.DELETE_RANGE],
    ),
    "Txn": (
        lambda on: on.ask("KV/Txn", pb.TxnRequest(success=[put_op(b"b")])),
        [requests.TXN],
    ),
    "a long Txn": (
        lambda on: on.ask(
            "KV/Txn", pb.TxnRequest(success=[put_op(b"b", b"v" * PRODUCTION.txn_slice_bytes)])
        ),
        [requests.TXN],
    ),
    "Compact": (
        lambda on: on.ask("KV/Compact", pb.CompactionRequest(revision=2)),
        [requests.COMPACTION],
    ),
    "Compact, physically": (
        lambda on: on.ask("KV/Compact", pb.CompactionRequest(revision=2, physical=True)),
        [requests.COMPACTION],
    ),
    "LeaseGrant": (
        lambda on: on.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=10)),
        [requests.LEASE_GRANT],
    ),
    "LeaseRevoke": (
        lambda on: on.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=7)),
        [requests.LEASE_REVOKE],
    ),
    "Alarm": (
        lambda on: on.ask("Maintenance/Alarm", pb.AlarmRequest()),
        [requests.ALARM],
    ),
    "Downgrade": (
        lambda on: on.ask("Maintenance/Downgrade", pb.DowngradeRequest(action=2)),  # type: ignore[arg-type]
        [requests.DOWNGRADE_INFO_SET],
    ),
    "Lock": (
        lambda on: on.ask("Lock/Lock", LockRequest(name=b"l")),
        [requests.LEASE_GRANT, requests.TXN],
    ),
    "Lock, given up": (
        give_up_a_lock,
        [requests.TXN, requests.TXN, requests.DELETE_RANGE],
    ),
    "Unlock": (
        lambda on: on.ask("Lock/Unlock", UnlockRequest(key=b"l/7")),
        [requests.DELETE_RANGE],
    ),
    "Campaign, given up": (
        give_up_an_election,
        [requests.TXN, requests.TXN, requests.TXN],
    ),
    "Proclaim": (proclaim, [requests.TXN, requests.TXN]),
    "Resign": (resign, [requests.TXN, requests.TXN]),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_proposes_is_its_callers(name: str) -> None:
    harness = Harness(request_bytes_max=4 * PRODUCTION.txn_slice_bytes)
    harness.pass_time(10.0)
    harness.ask("KV/Put", pb.PutRequest(key=b"a"))
    for lease in (7, 8):
        harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    harness.services.caller = Caller(Front.GRPC, "alice", 7)
    storage = harness.member.replica.storage
    before = storage.last_index()
    ask, kinds = CALLS[name]
    ask(harness)
    harness.settle()
    entries = storage.entries(before + 1, storage.last_index() + 1, 1 << 30)
    proposed = [requests.decode(entry.data) for entry in entries]
    assert [kind for kind, _, _, _ in proposed] == kinds
    callers = {(caller.user, caller.revision) for _, _, _, caller in proposed}
    assert callers == {("alice", 7)}


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/etcdserverpb.KV/Range", pb.RangeRequest(key=b"a")),
        ("/etcdserverpb.KV/Range", pb.RangeRequest(key=b"a", sort_order=pb.RangeRequest.DESCEND)),
        ("/etcdserverpb.KV/Txn", pb.TxnRequest(success=[READ])),
        ("/etcdserverpb.Cluster/MemberList", pb.MemberListRequest(linearizable=True)),
    ],
    ids=["a plain Range", "a Range with options", "Txn", "MemberList"],
)
def test_what_a_call_reads_is_read_for_its_caller(path: str, request_: Message) -> None:
    harness = Harness()
    harness.services.caller = caller = Caller(Front.GRPC, "alice", 7)
    harness.services.serve([(1, NUMBERS[path], request_.SerializeToString(), None)], inf)
    assert [(waiter, who) for waiter, who, *_ in harness.member.replica.reads.waiting] == [
        (1, caller)
    ]


def test_what_a_member_does_by_itself_is_nobodys() -> None:
    harness = Harness()
    harness.services.caller = Caller(Front.GRPC, "alice", 7)
    harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=2))
    storage = harness.member.replica.storage
    before = storage.last_index()
    harness.until(lambda: 7 not in harness.member.state.lessor)
    entries = storage.entries(before + 1, storage.last_index() + 1, 1 << 30)
    proposed = [requests.decode(entry.data) for entry in entries]
    (revoked,) = [each for each in proposed if each[0] == requests.LEASE_REVOKE]
    assert revoked[3].is_nobody
