"""The rows of the table test: for each RPC the requests that are made in everybody's name.

A row says how to undo what its request may do, so that each is made in the same state.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import v3electionpb, v3lockpb
from kvorum.api.pb.authpb import Permission, UserAddOptions
from tests.server.rpc.calls import OWN_ID
from tests.state.auth.asking import HEALTH
from tests.state.auth.people import (
    ABSENT,
    FOREIGN,
    FREE,
    OWN,
    PASSWORD,
    READWRITE,
    VICTIM,
    WITHOUT_PASSWORD,
    log_in,
    refresh,
)
from tests.state.auth.servers import Servers

Undo = Callable[[Servers], None]

FORMS = (
    (b"c", b""),
    (b"c", b"d"),
    (b"b", b"e"),
    (b"d/", b"d0"),
    (b"c", b"\0"),
    (b"\0", b"\0"),
    (b"a", b"f"),
)
"""Ranges as clients ask for them: a key, a prefix, what is granted, from a key on, everything."""
PUTS: tuple[dict[str, Any], ...] = (
    {},
    {"prev_kv": True},
    {"ignore_value": True},
    {"ignore_lease": True},
    {"lease": FREE},
    {"lease": OWN},
    {"lease": FOREIGN},
    {"lease": ABSENT},
    {"lease": FOREIGN, "ignore_value": True, "prev_kv": True},
)
LONG = "x" * 73


class Row(NamedTuple):
    """A request of one RPC."""

    name: str
    request: Any
    undo: Undo | None = None
    """What restores the state if the request was not refused."""

    def __str__(self) -> str:
        return f"{self.name} {self.request!s}".replace("\n", " ")


def _asked(name: str, message: Callable[..., Any], *requests: dict[str, Any]) -> Iterator[Row]:
    for fields in requests:
        yield Row(name, message(**fields))


def _undone(undo: Undo, rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        yield row._replace(undo=undo)


def _restored(name: str, request: Any) -> Undo:
    """Return what makes a request of the administrator to all."""

    def undo(servers: Servers) -> None:
        servers.answer(name, request, "root")

    return undo


# Keys.


def puts(key: bytes) -> Iterator[pb.PutRequest]:
    for fields in PUTS:
        value = b"" if fields.get("ignore_value") else b"new"
        yield pb.PutRequest(key=key, value=value, **fields)


def key_rows() -> Iterator[Row]:
    for key, range_end in FORMS:
        fields: dict[str, Any] = {"key": key, "range_end": range_end}
        options: tuple[dict[str, Any], ...] = ({}, {"serializable": True}, {"count_only": True})
        for option in options:
            yield Row("KV/Range", pb.RangeRequest(**fields, **option))
        yield Row("KV/RangeStream", pb.RangeRequest(**fields))
        for prev_kv in (False, True):
            deletion = pb.DeleteRangeRequest(**fields, prev_kv=prev_kv)
            yield Row("KV/DeleteRange", deletion, refresh)
        create = pb.WatchCreateRequest(**fields)
        yield Row("Watch/Watch", pb.WatchRequest(create_request=create))
    for key in (b"c", b"a"):
        for put in puts(key):
            yield Row("KV/Put", put, refresh)
    # What comes before the question who is asking, and behind it.
    for revision in (-1, 1, 10**9):
        yield Row("KV/Range", pb.RangeRequest(key=b"c", revision=revision))
    yield Row("KV/Range", pb.RangeRequest())
    yield Row("KV/Put", pb.PutRequest())
    yield Row("KV/DeleteRange", pb.DeleteRangeRequest())
    yield from _asked("KV/Compact", pb.CompactionRequest, {"revision": 2}, {"revision": 10**9}, {})
    for watch in (
        pb.WatchCreateRequest(),
        pb.WatchCreateRequest(key=b"c", start_revision=-1),
        pb.WatchCreateRequest(key=b"c", watch_id=-1),
        pb.WatchCreateRequest(key=b"c", start_revision=1, prev_kv=True),
    ):
        yield Row("Watch/Watch", pb.WatchRequest(create_request=watch))


# Transactions.


def operations() -> Iterator[pb.RequestOp]:
    for key, range_end in FORMS:
        read = pb.RangeRequest(key=key, range_end=range_end)
        yield pb.RequestOp(request_range=read)
        for prev_kv in (False, True):
            delete = pb.DeleteRangeRequest(key=key, range_end=range_end, prev_kv=prev_kv)
            yield pb.RequestOp(request_delete_range=delete)
    for key in (b"c", b"a"):
        for put in puts(key):
            yield pb.RequestOp(request_put=put)


def within(txn: pb.TxnRequest, depth: int) -> pb.TxnRequest:
    """Put a transaction into others, at last where it is not executed."""
    for level in range(depth):
        operation = pb.RequestOp(request_txn=txn)
        txn = pb.TxnRequest(failure=[operation]) if level else pb.TxnRequest(success=[operation])
    return txn


def transactions() -> Iterator[pb.TxnRequest]:
    yield pb.TxnRequest()
    yield within(pb.TxnRequest(), 1)
    for depth in (0, 1, 2):
        for key, range_end in FORMS:
            compare = pb.Compare(key=key, range_end=range_end, version=9)
            yield within(pb.TxnRequest(compare=[compare]), depth)
    for number, operation in enumerate(operations()):
        yield pb.TxnRequest(success=[operation])
        yield within(pb.TxnRequest(failure=[operation]), number % 2)
        yield within(pb.TxnRequest(failure=[operation]), 2)
    # Long ones, of which only the last is foreign.
    own = [pb.RequestOp(request_put=pb.PutRequest(key=b"c%02d" % each)) for each in range(40)]
    compares = [pb.Compare(key=b"c", version=9) for _ in range(40)]
    for put in (pb.PutRequest(key=b"a"), pb.PutRequest(key=b"c", lease=FOREIGN)):
        yield pb.TxnRequest(success=[*own, pb.RequestOp(request_put=put)])
        yield pb.TxnRequest(failure=[*own, pb.RequestOp(request_put=put)])
    yield pb.TxnRequest(failure=own)
    yield pb.TxnRequest(compare=compares)
    yield pb.TxnRequest(compare=[*compares, pb.Compare(key=b"a", version=9)])
    # The first refusal decides: of lease, of reading, of writing.
    unknown = pb.RequestOp(request_put=pb.PutRequest(key=b"c", lease=ABSENT))
    future = pb.RequestOp(request_range=pb.RangeRequest(key=b"c", revision=10**9))
    foreign = pb.RequestOp(request_range=pb.RangeRequest(key=b"a"))
    for first, second in ((unknown, foreign), (foreign, unknown), (future, foreign)):
        yield pb.TxnRequest(success=[first, second])


# Leases.


def lease_rows() -> Iterator[Row]:
    leases = [{"ID": lease} for lease in (FREE, OWN, FOREIGN, ABSENT)]
    grants = ({"ID": 74, "TTL": 100}, {"ID": FREE, "TTL": 100}, {"ID": 74, "TTL": 10**10})
    yield from _undone(refresh, _asked("Lease/LeaseGrant", pb.LeaseGrantRequest, *grants))
    yield from _undone(refresh, _asked("Lease/LeaseRevoke", pb.LeaseRevokeRequest, *leases))
    yield from _asked("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, *leases)
    for keys in (False, True):
        questions = [each | {"keys": keys} for each in leases]
        yield from _asked("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, *questions)
    yield Row("Lease/LeaseLeases", pb.LeaseLeasesRequest())


# Members.


def member_rows() -> Iterator[Row]:
    yield Row("Cluster/MemberAdd", pb.MemberAddRequest(peerURLs=["x"]))
    # Its own address: refused to root as well, but later.
    taken = pb.MemberAddRequest(peerURLs=["http://127.0.0.1:2"], isLearner=True)
    yield Row("Cluster/MemberAdd", taken)
    yield from _asked("Cluster/MemberRemove", pb.MemberRemoveRequest, {"ID": 5}, {})
    yield from _asked("Cluster/MemberPromote", pb.MemberPromoteRequest, {"ID": 5}, {"ID": OWN_ID})
    same = {"ID": OWN_ID, "peerURLs": ["http://127.0.0.1:2"]}
    other = {"ID": 5, "peerURLs": ["http://a:1"]}
    yield from _asked("Cluster/MemberUpdate", pb.MemberUpdateRequest, same, other)
    yield from _asked("Cluster/MemberList", pb.MemberListRequest, {}, {"linearizable": True})


def maintenance_rows() -> Iterator[Row]:
    alarm: dict[str, Any] = {"memberID": 5, "alarm": pb.NOSPACE}
    clear = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, **alarm)
    yield Row("Maintenance/Alarm", pb.AlarmRequest())
    yield Row("Maintenance/Alarm", clear)
    yield Row(
        "Maintenance/Alarm",
        pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE, **alarm),
        _restored("Maintenance/Alarm", clear),
    )
    yield Row("Maintenance/Status", pb.StatusRequest())
    yield Row("Maintenance/Defragment", pb.DefragmentRequest())
    yield Row("Maintenance/Hash", pb.HashRequest())
    yield from _asked("Maintenance/HashKV", pb.HashKVRequest, {}, {"revision": 10**9})
    yield Row("Maintenance/Snapshot", pb.SnapshotRequest())
    targets: tuple[dict[str, Any], ...] = ({}, {"targetID": 5}, {"targetID": OWN_ID})
    yield from _asked("Maintenance/MoveLeader", pb.MoveLeaderRequest, *targets)
    downgrades = ({"version": "x"}, {"version": "3.6.0"}, {"action": 2}, {"action": 7})
    yield from _asked("Maintenance/Downgrade", pb.DowngradeRequest, *downgrades)


# Users and roles.


def _enable_again(servers: Servers) -> None:
    servers.answer("Auth/AuthEnable", pb.AuthEnableRequest())
    log_in(servers)


def user_rows() -> Iterator[Row]:
    yield Row("Auth/AuthStatus", pb.AuthStatusRequest())
    yield Row("Auth/AuthEnable", pb.AuthEnableRequest())
    yield Row("Auth/AuthDisable", pb.AuthDisableRequest(), _enable_again)
    logins = [("root", PASSWORD), ("root", "wrong"), ("reader", ""), ("stranger", PASSWORD)]
    logins += [(WITHOUT_PASSWORD, ""), (WITHOUT_PASSWORD, PASSWORD), ("", ""), ("gone", PASSWORD)]
    for name, password in logins:
        request = pb.AuthenticateRequest(name=name, password=password)
        yield Row("Auth/Authenticate", request)
    new_user = pb.AuthUserDeleteRequest(name="new")
    for password, options in (
        (PASSWORD, None),
        (LONG[1:], None),
        (LONG, None),
        ("", UserAddOptions(no_password=True)),
        (LONG, UserAddOptions(no_password=True)),
    ):
        for name in ("new", "reader", ""):
            add = pb.AuthUserAddRequest(name=name, password=password, options=options)
            yield Row("Auth/UserAdd", add, _restored("Auth/UserDelete", new_user))
    for name in ("reader", "nobody", "root", "stranger", "", "gone"):
        yield Row("Auth/UserGet", pb.AuthUserGetRequest(name=name))
    yield Row("Auth/UserList", pb.AuthUserListRequest())
    add_victim = pb.AuthUserAddRequest(name=VICTIM, password=PASSWORD)
    restored = _restored("Auth/UserAdd", add_victim)
    yield Row("Auth/UserDelete", pb.AuthUserDeleteRequest(name=VICTIM), restored)
    for name in ("root", "stranger", ""):
        yield Row("Auth/UserDelete", pb.AuthUserDeleteRequest(name=name))
    for name in (VICTIM, WITHOUT_PASSWORD, "stranger"):
        for password in (PASSWORD, "", LONG):
            change = pb.AuthUserChangePasswordRequest(name=name, password=password)
            yield Row("Auth/UserChangePassword", change)
    for user, role in ((VICTIM, "read"), ("stranger", "read"), ("root", "root"), (VICTIM, "none")):
        grant = pb.AuthUserGrantRoleRequest(user=user, role=role)
        undo = _restored("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(name=user, role=role))
        yield Row("Auth/UserGrantRole", grant, undo if user == VICTIM else None)
    revoke = pb.AuthUserRevokeRoleRequest(name="granted twice", role="twice")
    undo = _restored(
        "Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="granted twice", role="twice")
    )
    yield Row("Auth/UserRevokeRole", revoke, undo)
    for user, role in (("root", "root"), ("stranger", "read"), (VICTIM, "read")):
        yield Row("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(name=user, role=role))


def role_rows() -> Iterator[Row]:
    delete_new = _restored("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role="new"))
    for name in ("new", "read", "root", ""):
        yield Row("Auth/RoleAdd", pb.AuthRoleAddRequest(name=name), delete_new)
    for name in ("read", "both", "twice", "odd", "root", "none", ""):
        yield Row("Auth/RoleGet", pb.AuthRoleGetRequest(role=name))
    yield Row("Auth/RoleList", pb.AuthRoleListRequest())
    add_victim = _restored("Auth/RoleAdd", pb.AuthRoleAddRequest(name=VICTIM))
    yield Row("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=VICTIM), add_victim)
    for name in ("root", "none", ""):
        yield Row("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=name))
    for role, key, range_end in (
        (VICTIM, b"k", b""),
        (VICTIM, b"k", b"l"),
        (VICTIM, b"k", b"\0"),
        (VICTIM, b"k", b"a"),
        (VICTIM, b"k", b"k"),
        (VICTIM, b"", b"k"),
        ("none", b"k", b""),
        ("none", b"", b""),
    ):
        perm = Permission(permType=READWRITE, key=key, range_end=range_end)
        grant = pb.AuthRoleGrantPermissionRequest(name=role, perm=perm)
        revoke = pb.AuthRoleRevokePermissionRequest(role=role, key=key, range_end=range_end)
        undo = _restored("Auth/RoleRevokePermission", revoke)
        yield Row("Auth/RoleGrantPermission", grant, undo)
        # It is not granted.
        yield Row("Auth/RoleRevokePermission", revoke)
    yield Row("Auth/RoleGrantPermission", pb.AuthRoleGrantPermissionRequest(name=VICTIM))


# Queues.


def queue_rows() -> Iterator[Row]:
    # Not queues with somebody in front already, as `a` and `d` have: whoever may enter would wait.
    for name in (b"c", b"bb", b"az"):
        for lease in (FREE, OWN, FOREIGN, ABSENT, 0):
            lock = v3lockpb.LockRequest(name=name, lease=lease)
            campaign = v3electionpb.CampaignRequest(name=name, lease=lease, value=b"new")
            yield Row("Lock/Lock", lock, refresh)
            yield Row("Election/Campaign", campaign, refresh)
    for key in (b"d/1", b"a/1", b"c/none", b""):
        yield Row("Lock/Unlock", v3lockpb.UnlockRequest(key=key), refresh)
    for name in (b"d", b"a"):
        yield Row("Election/Leader", v3electionpb.LeaderRequest(name=name))
        yield Row("Election/Observe", v3electionpb.LeaderRequest(name=name))
        for lease in (FREE, FOREIGN, ABSENT, 0):
            leader = v3electionpb.LeaderKey(name=name, key=name + b"/1", rev=1, lease=lease)
            proclaim = v3electionpb.ProclaimRequest(leader=leader, value=b"new")
            yield Row("Election/Proclaim", proclaim, refresh)
            yield Row("Election/Resign", v3electionpb.ResignRequest(leader=leader), refresh)
    yield Row("Election/Proclaim", v3electionpb.ProclaimRequest())
    yield Row("Election/Resign", v3electionpb.ResignRequest())


def health_rows() -> Iterator[Row]:
    for method in ("Check", "List", "Watch"):
        yield Row(HEALTH + method, b"")
    for method in ("Check", "Watch"):
        yield Row(HEALTH + method, b"\x0a\x01x")


def transaction_rows() -> Iterator[Row]:
    for txn in transactions():
        changes = any(not each.HasField("request_range") for each in txn.success)
        yield Row("KV/Txn", txn, refresh if changes else None)


SERVICES: dict[str, Callable[[], Iterator[Row]]] = {
    "keys": key_rows,
    "transactions": transaction_rows,
    "leases": lease_rows,
    "members": member_rows,
    "maintenance": maintenance_rows,
    "users": user_rows,
    "roles": role_rows,
    "queues": queue_rows,
    "health": health_rows,
}
