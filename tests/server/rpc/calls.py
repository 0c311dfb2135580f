"""Calls as hypothesis makes them: every unary method, every option, valid and not.

A call is a name and a function that makes its request from the revision at that moment, so that
past, present and future revisions occur. There are few keys, values and leases, so that calls
affect each other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import v3electionpb, v3lockpb
from kvorum.api.pb.authpb import Permission
from tests.etcd import is_target

OWN_ID = 4885544938433206482
"""The id that both servers have: it follows from the peer URL and the token."""


class Call(NamedTuple):
    """One call of a sequence."""

    name: str
    fields: dict[str, Any]
    make: Callable[[dict[str, Any], int], Message]

    def request(self, revision: int) -> Message:
        return self.make(self.fields, revision)

    def __repr__(self) -> str:
        return f"{self.name}({self.fields})"


class At(NamedTuple):
    """A revision relative to the current one."""

    offset: int

    def __repr__(self) -> str:
        return f"r{self.offset:+d}"


# Six keys at most are alive: with more, etcd 3.5.1 sorts equal ones in no particular order.
KEYS = [b"a", b"b", b"b\0", b"c", b"cc", b"d"]
ENDS = [b"", b"", b"", b"\0", b"b", b"c", b"\xff", b"a"]

keys = st.sampled_from(KEYS)
any_keys = st.one_of(keys, keys, keys, st.just(b""))
ends = st.sampled_from(ENDS)
values = st.sampled_from([b"", b"1", b"2", b"33"])
leases = st.sampled_from([0, 0, 0, 7, 8, 9, -3])
flags = st.booleans()
rarely = st.sampled_from([False, False, False, True])
few = st.sampled_from([0, 0, 0, 1, 2, 3, -1])
revisions = st.one_of(
    st.sampled_from([0, 0, 0, 0, -1, -5, 1]), st.integers(-6, 2).map(At), st.just(At(0))
)
bounds = st.one_of(st.just(0), st.just(0), st.integers(-6, 1).map(At))


def resolved(fields: dict[str, Any], revision: int) -> dict[str, Any]:
    """Return fields with the revisions that are meant at this one."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, At):
            value = max(1, revision + value.offset)
        found[name] = value
    return found


def simple(
    name: str, message: Callable[..., Message], /, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[Call]:
    """Make calls whose request has these fields."""

    def make(values: dict[str, Any], revision: int) -> Message:
        return message(**resolved(values, revision))

    return st.fixed_dictionaries(fields).map(lambda values: Call(name, values, make))


range_fields: dict[str, st.SearchStrategy[Any]] = {
    "key": any_keys,
    "range_end": ends,
    "limit": few,
    "revision": revisions,
    "sort_order": st.sampled_from([0, 0, 1, 2]),
    "sort_target": st.sampled_from([0, 0, 1, 2, 3, 4]),
    "serializable": flags,
    "keys_only": rarely,
    "count_only": rarely,
    "min_mod_revision": bounds,
    "max_mod_revision": bounds,
    "min_create_revision": bounds,
    "max_create_revision": bounds,
}
put_fields: dict[str, st.SearchStrategy[Any]] = {
    "key": any_keys,
    "value": values,
    "lease": leases,
    "prev_kv": flags,
    "ignore_value": rarely,
    "ignore_lease": rarely,
}
good_put_fields: dict[str, st.SearchStrategy[Any]] = {
    "key": keys,
    "value": values,
    "lease": st.sampled_from([0, 0, 7]),
    "prev_kv": flags,
}
delete_fields: dict[str, st.SearchStrategy[Any]] = {
    "key": any_keys,
    "range_end": ends,
    "prev_kv": flags,
}

_OPERANDS = ("version", "create_revision", "mod_revision", "value", "lease")


@st.composite
def compare_fields(draw: st.DrawFn) -> dict[str, Any]:
    target = draw(st.integers(0, 5))
    union = draw(st.sampled_from([target, target, target, 0, 3])) % 5
    operand = draw(
        values if union == 3 else st.sampled_from([0, 0, 1, 2, At(0), At(-1), At(-2), 7])
    )
    return {
        "result": draw(st.sampled_from([0, 0, 1, 2, 3, 4])),
        "target": target,
        "key": draw(any_keys),
        "range_end": draw(st.sampled_from([b"", b"", b"", b"c", b"\0", b"a"])),
        _OPERANDS[union]: operand,
    }


@st.composite
def operation(draw: st.DrawFn, depth: int) -> tuple[str, Any]:
    kind = draw(
        st.sampled_from(["put", "put", "range", "delete", "txn" if depth else "put", "none"])
    )
    if kind == "put":
        fields = draw(st.sampled_from([put_fields, good_put_fields, good_put_fields]))
        return kind, draw(st.fixed_dictionaries(fields))
    if kind == "range":
        return kind, draw(st.fixed_dictionaries(range_fields | {"key": keys}))
    if kind == "delete":
        return kind, draw(st.fixed_dictionaries(delete_fields | {"key": keys}))
    if kind == "txn":
        return kind, draw(txn_fields(depth - 1))
    return ("none", None) if draw(rarely) else ("put", draw(st.fixed_dictionaries(good_put_fields)))


@st.composite
def txn_fields(draw: st.DrawFn, depth: int) -> dict[str, Any]:
    return {
        "compare": draw(st.lists(compare_fields(), max_size=2)),
        "success": draw(st.lists(operation(depth), max_size=3)),
        "failure": draw(st.lists(operation(depth), max_size=3)),
    }


def make_txn(fields: dict[str, Any], revision: int) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[pb.Compare(**resolved(each, revision)) for each in fields["compare"]],
        success=[_make_operation(kind, each, revision) for kind, each in fields["success"]],
        failure=[_make_operation(kind, each, revision) for kind, each in fields["failure"]],
    )


def _make_operation(kind: str, fields: Any, revision: int) -> pb.RequestOp:
    if kind == "none":
        return pb.RequestOp()
    if kind == "txn":
        return pb.RequestOp(request_txn=make_txn(fields, revision))
    fields = resolved(fields, revision)
    if kind == "put":
        return pb.RequestOp(request_put=pb.PutRequest(**fields))
    if kind == "range":
        return pb.RequestOp(request_range=pb.RangeRequest(**fields))
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(**fields))


txn_calls = txn_fields(2).map(lambda fields: Call("KV/Txn", fields, make_txn))

odd_orders: dict[str, st.SearchStrategy[Any]] = {
    "sort_order": st.sampled_from([0, 1, 3, -1]),
    "sort_target": st.sampled_from([0, 4, 5, -1]),
}
kv_calls = st.one_of(
    simple("KV/Range", pb.RangeRequest, **(range_fields | odd_orders)),
    simple("KV/Range", pb.RangeRequest, **range_fields),
    simple("KV/Put", pb.PutRequest, **put_fields),
    simple("KV/Put", pb.PutRequest, **good_put_fields),
    simple("KV/Put", pb.PutRequest, **good_put_fields),
    simple("KV/DeleteRange", pb.DeleteRangeRequest, **delete_fields),
    txn_calls,
    txn_calls,
)
compact_calls = simple(
    "KV/Compact",
    pb.CompactionRequest,
    revision=st.one_of(st.integers(-4, 1).map(At), st.sampled_from([0, -1])),
    physical=rarely,
)
lease_ids = st.sampled_from([7, 8, 9, -3, 99])
lease_calls = st.one_of(
    simple(
        "Lease/LeaseGrant",
        pb.LeaseGrantRequest,
        ID=st.sampled_from([7, 8, 9, -3]),
        TTL=st.sampled_from([100, 200, 3000, 9_000_000_000, 9_000_000_001]),
    ),
    simple("Lease/LeaseRevoke", pb.LeaseRevokeRequest, ID=lease_ids),
    simple("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, ID=lease_ids, keys=flags),
    simple("Lease/LeaseLeases", pb.LeaseLeasesRequest),
)
cluster_calls = st.one_of(
    simple("Cluster/MemberList", pb.MemberListRequest, linearizable=flags),
    simple(
        "Cluster/MemberAdd",
        pb.MemberAddRequest,
        # Nothing that would succeed: a member that never starts breaks the quorum.
        peerURLs=st.sampled_from(
            [[], ["x"], ["http://127.0.0.1"], ["ftp://a:1"], ["http://a:1/b"], ["http://a:1", "y"]]
        ),
        isLearner=flags,
    ),
    simple("Cluster/MemberRemove", pb.MemberRemoveRequest, ID=st.sampled_from([0, 5, OWN_ID])),
    simple(
        "Cluster/MemberUpdate",
        pb.MemberUpdateRequest,
        ID=st.sampled_from([0, 5]),
        peerURLs=st.sampled_from([[], ["http://127.0.0.1:2"], ["http://a:1"]]),
    ),
    simple("Cluster/MemberPromote", pb.MemberPromoteRequest, ID=st.sampled_from([0, 5, OWN_ID])),
)
maintenance_calls = st.one_of(
    simple("Maintenance/Alarm", pb.AlarmRequest, action=st.sampled_from([0, 3, -1])),
    simple("Maintenance/Status", pb.StatusRequest),
    simple("Maintenance/HashKV", pb.HashKVRequest, revision=revisions),
    simple(
        "Maintenance/MoveLeader", pb.MoveLeaderRequest, targetID=st.sampled_from([0, 5, OWN_ID])
    ),
    simple(
        "Maintenance/Downgrade",
        pb.DowngradeRequest,
        action=st.sampled_from([0, 0, 1, 2, 7]),
        version=st.sampled_from(["", "x", "3", "4.0", "3.1.2", "3.5.0.1"]),
    ),
)
names = st.sampled_from(["", "root", "alice"])
auth_calls = st.one_of(
    simple("Auth/AuthStatus", pb.AuthStatusRequest),
    simple("Auth/AuthEnable", pb.AuthEnableRequest),
    simple("Auth/AuthDisable", pb.AuthDisableRequest),
    simple("Auth/Authenticate", pb.AuthenticateRequest, name=names, password=names),
    simple("Auth/UserGet", pb.AuthUserGetRequest, name=names),
    simple("Auth/UserList", pb.AuthUserListRequest),
    simple("Auth/UserDelete", pb.AuthUserDeleteRequest, name=names),
    simple(
        "Auth/UserChangePassword",
        pb.AuthUserChangePasswordRequest,
        name=names,
        password=st.sampled_from(["", "x", "x" * 73]),
    ),
    simple("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest, user=names, role=names),
    simple("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest, name=names, role=names),
    simple("Auth/RoleGet", pb.AuthRoleGetRequest, role=names),
    simple("Auth/RoleList", pb.AuthRoleListRequest),
    simple("Auth/RoleDelete", pb.AuthRoleDeleteRequest, role=names),
    simple(
        "Auth/RoleGrantPermission",
        pb.AuthRoleGrantPermissionRequest,
        name=names,
        perm=st.one_of(st.none(), st.builds(Permission, key=any_keys, range_end=ends)),
    ),
    simple(
        "Auth/RoleRevokePermission", pb.AuthRoleRevokePermissionRequest, role=names, key=any_keys
    ),
)
queue_names = st.sampled_from([b"q", b"q", b""])
leader_keys = st.builds(
    v3electionpb.LeaderKey,
    name=queue_names,
    key=st.sampled_from([b"q/7", b"q/8", b"/7", b""]),
    rev=st.sampled_from([1, 5]),
    lease=st.sampled_from([7, 8, 99]),
)
queue_calls = st.one_of(
    # One contender alone: waiting is tested elsewhere.
    simple("Lock/Lock", v3lockpb.LockRequest, name=queue_names, lease=st.just(7)),
    simple("Lock/Lock", v3lockpb.LockRequest, name=queue_names, lease=st.just(99)),
    simple("Lock/Unlock", v3lockpb.UnlockRequest, key=st.sampled_from([b"q/7", b"/7", b""])),
    simple(
        "Election/Campaign",
        v3electionpb.CampaignRequest,
        name=st.just(b"e"),
        lease=st.sampled_from([7, 7, 99]),
        value=values,
    ),
    simple(
        "Election/Proclaim",
        v3electionpb.ProclaimRequest,
        leader=st.one_of(st.none(), leader_keys),
        value=values,
    ),
    simple("Election/Leader", v3electionpb.LeaderRequest, name=st.sampled_from([b"e", b"none"])),
    simple("Election/Resign", v3electionpb.ResignRequest, leader=st.one_of(st.none(), leader_keys)),
)

every_call = st.one_of(
    kv_calls,
    kv_calls,
    kv_calls,
    compact_calls,
    lease_calls,
    lease_calls,
    cluster_calls,
    maintenance_calls,
    auth_calls,
    queue_calls,
)

writes = st.one_of(
    simple("KV/Put", pb.PutRequest, key=keys, value=values, lease=st.sampled_from([0, 0, 7, 8])),
    simple("KV/Put", pb.PutRequest, key=keys, value=values),
    simple(
        "KV/DeleteRange", pb.DeleteRangeRequest, key=keys, range_end=st.sampled_from([b"", b"c"])
    ),
)
grants = simple(
    "Lease/LeaseGrant", pb.LeaseGrantRequest, ID=st.sampled_from([7, 8]), TTL=st.just(1000)
)


flat_txn_calls = txn_fields(0).map(lambda fields: Call("KV/Txn", fields, make_txn))


@st.composite
def alarm_sequences(draw: st.DrawFn) -> list[Call]:
    """Make calls while alarms come and go.

    With 3.5.1 one alarm at a time: it forgets all others when it clears one, and of two types obeys
    the last. And flat transactions: it does not see puts in nested ones.
    """
    member: st.SearchStrategy[int] = st.sampled_from([0, 5, OWN_ID])
    alarm: st.SearchStrategy[int] = st.sampled_from([1, 2])
    listed = {"memberID": member, "alarm": st.sampled_from([0, 1, 2])}
    if not is_target():
        member, alarm = st.just(draw(member)), st.just(draw(alarm))
    calls = st.one_of(
        simple(
            "Maintenance/Alarm",
            pb.AlarmRequest,
            action=st.sampled_from([1, 1, 2]),
            memberID=member,
            alarm=alarm,
        ),
        simple("Maintenance/Alarm", pb.AlarmRequest, **listed),
        simple("Maintenance/Status", pb.StatusRequest),
        simple("KV/Range", pb.RangeRequest, **range_fields),
        writes,
        writes,
        txn_calls if is_target() else flat_txn_calls,
        lease_calls,
        compact_calls,
    )
    return draw(sequences(calls))


@st.composite
def sequences(draw: st.DrawFn, calls: st.SearchStrategy[Call]) -> list[Call]:
    """Make some leases and some history, and then any calls."""
    found = draw(st.lists(grants, max_size=2))
    found += draw(st.lists(writes, min_size=2, max_size=6))
    return found + draw(st.lists(calls, min_size=5, max_size=20))
