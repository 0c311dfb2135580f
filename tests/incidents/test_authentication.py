"""Advisories and incidents of authentication: who was served without rights, who decided otherwise.

`tests/state/auth/test_table.py` compares the calls of all services with those of a real etcd.
"""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission as Grant
from kvorum.server.rpc.table import RPCS, RequiredPermission
from tests.cluster.members import Cluster, Member
from tests.state.auth.asking import hear, path_of
from tests.state.auth.people import FOREIGN, FREE, prepare, refresh
from tests.state.auth.rows import SERVICES, Row
from tests.state.auth.servers import Server, Servers, running_ours
from tests.waiting import until

OPEN = {rpc.path for rpc in RPCS if rpc.permission is RequiredPermission.NONE}
DEPTHS = (0, 1, 3)
EVERYTHING = pb.RangeRequest(key=b"\0", range_end=b"\0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_ours(tmp_path_factory.mktemp("guarded")) as found:
        prepare(Servers(found))
        yield found


@pytest.fixture
def before(server: Server) -> pb.RangeResponse:
    """Return all data, which nobody may change."""
    refresh(Servers(server))
    found: pb.RangeResponse = server.answer("KV/Range", EVERYTHING, "root")
    return found


def guarded_rows() -> Iterator[Row]:
    for rows in SERVICES.values():
        yield from (row for row in rows() if path_of(row.name) not in OPEN)


@pytest.mark.long
@pytest.mark.parametrize("metadata", [(), (("token", "unknown"),)], ids=["nobody", "bad token"])
def test_no_call_is_served_without_identity(
    server: Server, before: pb.RangeResponse, metadata: tuple[tuple[str, str], ...]
) -> None:
    """CVE-2026-33413: MemberList, Alarm, leases, Compact and others asked nobody who is asking."""
    for row in guarded_rows():
        if row.name == "KV/Txn" and _is_empty(row.request):
            continue
        heard = hear(server.client, row.name, row.request, metadata)
        if row.name == "Watch/Watch":
            assert all(message.canceled for message in heard.messages), row
        else:
            # An observation that may not read ends without a word.
            assert not heard.messages and heard.status is not None, row
            assert heard.is_refusal or row.name == "Election/Observe", row
    after: pb.RangeResponse = server.answer("KV/Range", EVERYTHING, "root")
    assert after.kvs == before.kvs
    assert after.header.revision == before.header.revision


def _is_empty(txn: pb.TxnRequest) -> bool:
    """Return whether a transaction asks for nothing at all, which everybody may."""
    operations = (*txn.success, *txn.failure)
    return not txn.compare and all(
        each.HasField("request_txn") and _is_empty(each.request_txn) for each in operations
    )


def nested(txn: pb.TxnRequest, depth: int) -> pb.TxnRequest:
    for _ in range(depth):
        txn = pb.TxnRequest(success=[pb.RequestOp(request_txn=txn)])
    return txn


def refused(server: Server, txn: pb.TxnRequest, user: str, before: pb.RangeResponse) -> None:
    """Check that a transaction is refused, in both branches, and nothing has changed."""
    turned = pb.TxnRequest(compare=txn.compare, failure=txn.success)
    for each in (txn, turned):
        for depth in DEPTHS:
            metadata = server.metadata_of(user)
            answer = server.client.ask("KV/Txn", nested(each, depth), metadata=metadata)
            assert answer == errors.PERMISSION_DENIED, (user, depth, each)
    assert server.answer("KV/Range", EVERYTHING, "root").kvs == before.kvs


FORBIDDEN = {
    "read": pb.RequestOp(request_range=pb.RangeRequest(key=b"a")),
    "read all": pb.RequestOp(request_range=EVERYTHING),
    "put": pb.RequestOp(request_put=pb.PutRequest(key=b"a")),
    "delete": pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"a")),
    "delete all": pb.RequestOp(
        request_delete_range=pb.DeleteRangeRequest(key=b"\0", range_end=b"\0")
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nested_requests_need_the_same_rights(
    server: Server, before: pb.RangeResponse, what: str
) -> None:
    """CVE-2026-33343: what stood within a nested transaction was not checked."""
    for user in ("nobody", "owner"):
        refused(server, pb.TxnRequest(success=[FORBIDDEN[what]]), user, before)


def test_nested_compares_need_the_right_to_read(server: Server, before: pb.RangeResponse) -> None:
    """CVE-2026-33343: a compare tells what a value is."""
    for user in ("nobody", "owner", "writer"):
        compare = pb.Compare(key=b"a", target=pb.Compare.VALUE, value=b"a")
        refused(server, pb.TxnRequest(compare=[compare]), user, before)


def test_previous_values_need_the_right_to_read(server: Server, before: pb.RangeResponse) -> None:
    """21681: who may write, but not read, got to read by `prev_kv` in a nested put."""
    put = pb.PutRequest(key=b"c", prev_kv=True)
    delete = pb.DeleteRangeRequest(key=b"c", prev_kv=True)
    for operation in (pb.RequestOp(request_put=put), pb.RequestOp(request_delete_range=delete)):
        refused(server, pb.TxnRequest(success=[operation]), "writer", before)
    without = pb.TxnRequest(
        success=[pb.RequestOp(request_put=pb.PutRequest(key=b"c", value=b"new"))]
    )
    server.answer("KV/Txn", nested(without, 3), "writer")


def test_leases_with_foreign_keys_take_nobody_elses(
    server: Server, before: pb.RangeResponse
) -> None:
    """21685: a nested put attached a key to a lease with keys that its client may not write."""
    put = pb.RequestOp(request_put=pb.PutRequest(key=b"c", lease=FOREIGN))
    refused(server, pb.TxnRequest(success=[put]), "owner", before)
    own = pb.RequestOp(request_put=pb.PutRequest(key=b"c", lease=FREE))
    server.answer("KV/Txn", nested(pb.TxnRequest(success=[own]), 3), "owner")


def test_a_watch_to_the_end_needs_the_right_to_all_of_it(
    server: Server, before: pb.RangeResponse
) -> None:
    """GHSA-xg4h: a user with a single key, or with a range, watched all later keys with it."""
    assert before.kvs
    for user, key in (("of a point", b"c"), ("owner", b"b"), ("of almost everything", b"\0")):
        talk = server.client.talk("Watch/Watch", server.metadata_of(user))
        for end in (b"\0", b""):
            create = pb.WatchCreateRequest(key=key, range_end=end, start_revision=1)
            talk.say(pb.WatchRequest(create_request=create))
            response = talk.hear()
            assert response.created and not response.events
            assert response.canceled is bool(end), (user, end)
            assert not end or response.cancel_reason.endswith(errors.PERMISSION_DENIED.text)
        talk.close()


# Members that decide differently.


def as_root(cluster: Cluster, at: Member) -> None:
    """Log in at a member, and let all calls to the cluster be root's."""
    metadata = token_of(at, "root")
    for member in cluster:
        member.client.metadata = metadata


def token_of(member: Member, user: str) -> tuple[tuple[str, str], ...]:
    login = pb.AuthenticateRequest(name=user, password="secret")
    return (("token", member.answer("Auth/Authenticate", login, metadata=()).token),)


def make_users(member: Member) -> None:
    for name, request, done in (
        (
            "Auth/UserAdd",
            pb.AuthUserAddRequest(name="root", password="secret"),
            errors.USER_ALREADY_EXIST,
        ),
        ("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="root", role="root"), None),
        (
            "Auth/UserAdd",
            pb.AuthUserAddRequest(name="user", password="secret"),
            errors.USER_ALREADY_EXIST,
        ),
        ("Auth/RoleAdd", pb.AuthRoleAddRequest(name="role"), errors.ROLE_ALREADY_EXIST),
        ("Auth/RoleGrantPermission", granted(b"revoked"), None),
        ("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="user", role="role"), None),
        ("Auth/AuthEnable", pb.AuthEnableRequest(), None),
    ):
        member.answer(name, request, done=done)


def granted(key: bytes) -> pb.AuthRoleGrantPermissionRequest:
    perm = Grant(permType=Grant.READWRITE, key=key)
    return pb.AuthRoleGrantPermissionRequest(name="role", perm=perm)


@pytest.mark.long
@pytest.mark.parametrize("by_snapshot", [False, True], ids=["by entries", "by a snapshot"])
def test_a_member_that_was_away_decides_as_the_others(
    processes: Cluster, by_snapshot: bool
) -> None:
    """14571: a member that got users by a snapshot refused what the others applied."""
    leader = processes.leader()
    make_users(leader)
    as_root(processes, leader)
    away = processes.followers()[0]
    away.kill()
    leader = processes.leader([each for each in processes if each is not away])
    leader.answer("Auth/RoleGrantPermission", granted(b"granted"))
    revoke = pb.AuthRoleRevokePermissionRequest(role="role", key=b"revoked")
    leader.answer("Auth/RoleRevokePermission", revoke, done=errors.PERMISSION_NOT_GRANTED)
    if by_snapshot:
        processes.outgrow_logs(processes.others(away), 400, b"x")
    away.start(state="existing")
    # Its tokens are gone, so whoever asks it has to log in anew.
    until("it serves", lambda: _serves(away))
    as_root(processes, leader)
    processes.settle()
    user = token_of(leader, "user")
    for member in processes:
        # What comes back through the log is behind the login.
        member.answer("Auth/AuthStatus", pb.AuthStatusRequest(), metadata=())
        put = pb.PutRequest(key=b"granted", value=member.name.encode())
        member.answer("KV/Put", put, metadata=user)
        denied = member.settled("KV/Put", pb.PutRequest(key=b"revoked"), metadata=user)
        assert denied == errors.PERMISSION_DENIED, member
    processes.check_agreement()


def _serves(member: Member) -> bool:
    """Return whether it answers at all, and be it that it wants to know who asks."""
    try:
        answer: Any = member.client.ask("Maintenance/Status", pb.StatusRequest(), timeout=1.0)
    except grpc.RpcError:
        return False
    return not isinstance(answer, Status) or answer == errors.INVALID_AUTH_TOKEN
