"""Every method exists, and answers as its contract says."""

from hashlib import sha256
from typing import Any

import pytest
from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.descriptors import methods
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import v3electionpb, v3lockpb
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.rpc.snapshot import BLOB_BYTES
from kvorum.server.rpc.table import NUMBERS, RPCS, RpcKind
from kvorum.state.mvcc.hashes import HashDatabase, HashRows
from tests.server.rpc.harness import Harness, by_name

KINDS = {
    (False, False): RpcKind.UNARY,
    (False, True): RpcKind.SERVER_STREAM,
    (True, True): RpcKind.BOTH_WAYS,
}
HEALTH = {f"/grpc.health.v1.Health/{name}" for name in ("Check", "List", "Watch")}

ANSWERED: list[tuple[str, Message]] = [
    ("KV/Range", pb.RangeRequest(key=b"a")),
    ("KV/Put", pb.PutRequest(key=b"a", value=b"2")),
    ("KV/DeleteRange", pb.DeleteRangeRequest(key=b"a")),
    ("KV/Txn", pb.TxnRequest()),
    ("KV/Compact", pb.CompactionRequest(revision=2)),
    ("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=10)),
    ("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=7)),
    ("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=7, keys=True)),
    ("Lease/LeaseLeases", pb.LeaseLeasesRequest()),
    ("Cluster/MemberAdd", pb.MemberAddRequest(peerURLs=["http://a:1"], isLearner=True)),
    ("Cluster/MemberUpdate", pb.MemberUpdateRequest(peerURLs=["http://b:1"])),
    ("Cluster/MemberList", pb.MemberListRequest(linearizable=True)),
    ("Maintenance/Alarm", pb.AlarmRequest()),
    ("Maintenance/Status", pb.StatusRequest()),
    ("Maintenance/Defragment", pb.DefragmentRequest()),
    ("Maintenance/Hash", pb.HashRequest()),
    ("Maintenance/HashKV", pb.HashKVRequest()),
    ("Maintenance/MoveLeader", pb.MoveLeaderRequest()),
    ("Maintenance/Downgrade", pb.DowngradeRequest(version="3.6")),
    ("Auth/AuthStatus", pb.AuthStatusRequest()),
    ("Auth/AuthDisable", pb.AuthDisableRequest()),
    ("Auth/UserList", pb.AuthUserListRequest()),
    ("Auth/RoleList", pb.AuthRoleListRequest()),
    ("Lock/Lock", v3lockpb.LockRequest(name=b"l", lease=7)),
    ("Lock/Unlock", v3lockpb.UnlockRequest(key=b"l/7")),
    ("Election/Campaign", v3electionpb.CampaignRequest(name=b"e", lease=7, value=b"v")),
    ("Election/Leader", v3electionpb.LeaderRequest(name=b"e")),
    ("Election/Proclaim", v3electionpb.ProclaimRequest()),
    ("Election/Resign", v3electionpb.ResignRequest()),
]
REFUSED: list[tuple[str, Message, Status]] = [
    ("Cluster/MemberRemove", pb.MemberRemoveRequest(ID=5), errors.MEMBER_NOT_FOUND),
    ("Cluster/MemberPromote", pb.MemberPromoteRequest(ID=5), errors.MEMBER_NOT_FOUND),
    ("Auth/Authenticate", pb.AuthenticateRequest(), errors.AUTH_NOT_ENABLED),
    ("Auth/AuthEnable", pb.AuthEnableRequest(), errors.ROOT_USER_NOT_EXIST),
    ("Auth/UserAdd", pb.AuthUserAddRequest(), errors.USER_EMPTY),
    ("Auth/UserGet", pb.AuthUserGetRequest(name="a"), errors.USER_NOT_FOUND),
    ("Auth/UserDelete", pb.AuthUserDeleteRequest(name="a"), errors.USER_NOT_FOUND),
    ("Auth/UserChangePassword", pb.AuthUserChangePasswordRequest(), errors.USER_NOT_FOUND),
    ("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(), errors.USER_NOT_FOUND),
    ("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(), errors.USER_NOT_FOUND),
    ("Auth/RoleAdd", pb.AuthRoleAddRequest(), errors.ROLE_EMPTY),
    ("Auth/RoleGet", pb.AuthRoleGetRequest(role="a"), errors.ROLE_NOT_FOUND),
    ("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role="a"), errors.ROLE_NOT_FOUND),
    ("Auth/RoleGrantPermission", pb.AuthRoleGrantPermissionRequest(), errors.PERMISSION_NOT_GIVEN),
    ("Auth/RoleRevokePermission", pb.AuthRoleRevokePermissionRequest(), errors.ROLE_NOT_FOUND),
]
STREAMED: list[tuple[str, Message]] = [
    ("Watch/Watch", pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"a"))),
    ("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=7)),
    ("KV/RangeStream", pb.RangeRequest(key=b"a")),
    ("Election/Observe", v3electionpb.LeaderRequest(name=b"e")),
]
# Answers without a header, or with one that has no revision.
NO_HEADER = {"Maintenance/Defragment", "Maintenance/MoveLeader"}


@pytest.fixture(scope="module")
def harness() -> Harness:
    harness = Harness()
    harness.pass_time(10.0)
    harness.ask("KV/Put", pb.PutRequest(key=b"a", value=b"1"))
    return harness


def completed(harness: Harness, name: str, request: Any) -> Any:
    """Fill in what only the running member knows."""
    if name == "Maintenance/MoveLeader":
        request.targetID = harness.member.id
    elif name == "Cluster/MemberUpdate":
        request.ID = harness.member.id
    elif name in ("Election/Proclaim", "Election/Resign"):
        campaign = v3electionpb.CampaignRequest(name=b"e", lease=7, value=b"v")
        request.leader.CopyFrom(harness.ask("Election/Campaign", campaign).leader)
    return request


def test_the_table_is_the_contract() -> None:
    served = {rpc.path: rpc.kind for rpc in RPCS}
    expected = {
        method.path: KINDS[method.client_streaming, method.server_streaming] for method in methods()
    }
    assert {path: kind for path, kind in served.items() if path not in HEALTH} == expected
    assert set(served) >= HEALTH
    assert len(served) == len(RPCS)


def test_every_method_is_tried() -> None:
    names = [each[0] for each in ANSWERED] + [each[0] for each in REFUSED]
    names += [each[0] for each in STREAMED]
    names.append("Maintenance/Snapshot")
    tried = {by_name(name).path for name in names}
    assert tried | HEALTH == {rpc.path for rpc in RPCS}


@pytest.mark.parametrize(("name", "request_"), ANSWERED, ids=lambda each: str(each))
def test_answered(harness: Harness, name: str, request_: Message) -> None:
    harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=1000))
    answer = harness.ask(name, completed(harness, name, request_))
    assert not isinstance(answer, Status), answer
    if name in NO_HEADER:
        assert answer.SerializeToString() == b""
        return
    assert answer.header.member_id == harness.member.id
    assert answer.header.raft_term == harness.member.state.applied_term
    revision = 0 if name.startswith("Cluster/") else harness.member.state.store.revision
    assert answer.header.revision == revision


@pytest.mark.parametrize(("name", "request_", "status"), REFUSED, ids=lambda each: str(each))
def test_refused(harness: Harness, name: str, request_: Message, status: Status) -> None:
    assert harness.ask(name, request_) == status


@pytest.mark.parametrize(("name", "request_"), STREAMED, ids=lambda each: str(each))
def test_streamed(harness: Harness, name: str, request_: Message) -> None:
    harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=1000))
    harness.ask("Election/Campaign", v3electionpb.CampaignRequest(name=b"e", lease=7))
    stream = harness.open(name)
    stream.send(request_)
    (answer,) = stream.received()
    header = answer.range_response.header if name == "KV/RangeStream" else answer.header
    assert header.revision == harness.member.state.store.revision
    stream.cancel()


def test_snapshot(harness: Harness) -> None:
    stream = harness.open("Maintenance/Snapshot")
    stream.send(pb.SnapshotRequest())
    stream.half_close()
    harness.until(lambda: stream.status is not None)
    assert stream.status == Status(Code.OK, "")
    *blobs, digest = stream.received()
    content = b"".join(each.blob for each in blobs)
    assert digest.blob == sha256(content).digest()
    left = len(content)
    for each in blobs:
        left -= len(each.blob)
        assert each.remaining_bytes == left
        assert (each.version, len(each.blob) <= BLOB_BYTES) == ("3.7.0", True)
    assert not any(each.HasField("header") for each in blobs)


def test_a_hash_that_cannot_be_computed_is_its_clients_loss() -> None:
    harness = Harness()
    harness.failing = (HashRows, HashDatabase)
    for name, request in (
        ("Maintenance/HashKV", pb.HashKVRequest()),
        ("Maintenance/Hash", pb.HashRequest()),
    ):
        assert harness.ask(name, request) == Status(Code.UNKNOWN, "the disk does not answer")
    assert not isinstance(harness.ask("KV/Put", pb.PutRequest(key=b"a")), Status)


def test_health(harness: Harness) -> None:
    path = "/grpc.health.v1.Health/"
    assert harness.ask_bytes(path + "Check", b"") == b"\x08\x01"
    assert harness.ask_bytes(path + "Check", b"\x0a\x01x") == errors.UNKNOWN_HEALTH_SERVICE
    broken = harness.ask_bytes(path + "Check", b"\x0a\x02\xff\xfe")
    assert isinstance(broken, Status)
    assert broken.code is Code.INTERNAL
    # A map with the empty name in it.
    assert harness.ask_bytes(path + "List", b"") == b"\x0a\x06\x0a\x00\x12\x02\x08\x01"


@pytest.mark.parametrize(("name", "state"), [(b"", b"\x08\x01"), (b"\x0a\x01x", b"\x08\x03")])
def test_health_is_watched(harness: Harness, name: bytes, state: bytes) -> None:
    call = 10**9 + len(name)
    opened = (EdgeEventKind.OPENED, call, (NUMBERS["/grpc.health.v1.Health/Watch"], None))
    harness.happen(opened)
    harness.happen((EdgeEventKind.MESSAGE, call, name))
    harness.happen((EdgeEventKind.HALF_CLOSED, call, None))
    harness.pass_time(1.0)
    assert harness.edge.sent[call] == [state]
    assert call not in harness.edge.finished
    harness.happen((EdgeEventKind.ENDED, call, None))
