"""Sequences of calls by several users as hypothesis makes them, valid and not.

A step is a call and who makes it. There are few users, roles, passwords and keys, so that steps
affect each other; a sequence begins with some users who may do something, most of the time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission, UserAddOptions
from tests.cluster.client import Metadata
from tests.server.rpc import calls
from tests.server.rpc.calls import Call, simple

PASSWORD = "a"
# Of the password `a`, at the lowest cost, as a client may send it.
HASHED = "JDJiJDA0JEo1eE5NNVM5ZVpMRUg4UTRJeTlMLk9FYnlSb0JmNFZ4eFdoOENVOVRYY2dVbmM3Q2FldFFD"


class Caller(NamedTuple):
    """Who makes a call: with which token of a user, and in which form it comes.

    `age` 0 is the newest token. Who never logged in has no token, and comes without metadata.
    """

    user: str
    age: int = 0
    form: tuple[str, str] = ("token", "{}")

    def metadata(self, tokens: dict[str, list[str]]) -> Metadata:
        key, text = self.form
        found = tokens.get(self.user, [])
        if not self.user or (not found and "{}" in text):
            return ()
        token = found[-1 - min(self.age, len(found) - 1)] if found else ""
        return ((key, text.format(token)),)

    def __repr__(self) -> str:
        return f"{self.user}({self.age}, {self.form})" if self.user else "nobody"


class Step(NamedTuple):
    """One call of somebody."""

    caller: Caller
    call: Call

    def __repr__(self) -> str:
        return f"{self.caller!r}: {self.call!r}"


T = TypeVar("T")


def often(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """Choose by weights; `one_of` knows each of its choices only once."""
    return st.sampled_from([each for weight, each in choices for _ in range(weight)]).flatmap(
        lambda chosen: chosen
    )


NOBODY = Caller("")
ROOT = Caller("root")

# Who calls.

forms = st.sampled_from(
    [
        ("token", "{}"),
        ("token", "Bearer {}"),
        ("authorization", "{}"),
        ("authorization", "Bearer {}"),
        ("authorization", "bearer {}"),
        ("token", "x{}"),
        ("token", "nonsense"),
        ("token", "ABCDEFGHIJKLMNOP.1"),
        ("token", ""),
    ]
)
users = st.sampled_from(["alice", "alice", "bob", "root"])
odd_callers = st.builds(Caller, users, st.sampled_from([0, 1, 2]), forms)
plain_users = st.sampled_from([Caller("alice"), Caller("alice"), Caller("bob")])
callers = often((14, plain_users), (3, st.just(ROOT)), (2, odd_callers), (1, st.just(NOBODY)))
administrators = often((16, st.just(ROOT)), (3, callers), (1, odd_callers))

# What administrators do.

names = st.sampled_from(["alice", "alice", "alice", "bob", "bob", "root", "carol", ""])
roles = st.sampled_from(["r1", "r1", "r1", "r2", "r2", "root", "r3", ""])
passwords = st.sampled_from([PASSWORD, PASSWORD, PASSWORD, "b", "", "ü" * 36, "x" * 72, "x" * 73])
hashes = st.sampled_from(["", "", "", HASHED, "not base64!", "YQ=="])
options = st.sampled_from(
    [None, None, UserAddOptions(), UserAddOptions(no_password=True)],
)
grant_keys = st.sampled_from([*calls.KEYS, *calls.KEYS, b"\0", b"", b"q", b"e"])
grant_ends = st.sampled_from([b"", b"", b"\0", b"b", b"b\0", b"c", b"d", b"e", b"\xff", b"a", b"r"])
# Few, so that the same is granted, changed, and revoked.
usual_ranges = st.sampled_from(
    [
        (b"a", b""),
        (b"a", b"c"),
        (b"b", b""),
        (b"b", b"d"),
        (b"c", b"d"),
        (b"c", b"\0"),
        (b"\0", b"\0"),
        (b"e", b"r"),
    ]
)
kinds = st.sampled_from([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, -1])
any_permissions = st.builds(Permission, permType=kinds, key=grant_keys, range_end=grant_ends)
good_permissions = any_permissions.filter(
    lambda each: each.key and (each.range_end in (b"", b"\0") or each.range_end > each.key)
)
usual_permissions = st.builds(
    lambda kind, place: Permission(permType=kind, key=place[0], range_end=place[1]),
    kinds,
    usual_ranges,
)
permissions = often((6, usual_permissions), (4, good_permissions), (1, any_permissions))
logins = simple("Auth/Authenticate", pb.AuthenticateRequest, name=names, password=passwords)
good_logins = simple(
    "Auth/Authenticate",
    pb.AuthenticateRequest,
    name=st.sampled_from(["alice", "bob", "root"]),
    password=st.just(PASSWORD),
)
grants = simple(
    "Auth/RoleGrantPermission",
    pb.AuthRoleGrantPermissionRequest,
    name=st.sampled_from(["r1", "r2"]),
    perm=often((2, usual_permissions), (1, good_permissions)),
)
revocations = usual_ranges.flatmap(
    lambda place: simple(
        "Auth/RoleRevokePermission",
        pb.AuthRoleRevokePermissionRequest,
        role=roles,
        key=st.just(place[0]),
        range_end=st.just(place[1]),
    )
)
user_calls = st.one_of(
    simple(
        "Auth/UserAdd",
        pb.AuthUserAddRequest,
        name=names,
        password=passwords,
        options=options,
        hashedPassword=hashes,
    ),
    simple("Auth/UserGet", pb.AuthUserGetRequest, name=names),
    simple("Auth/UserList", pb.AuthUserListRequest),
    simple("Auth/UserDelete", pb.AuthUserDeleteRequest, name=names),
    simple(
        "Auth/UserChangePassword",
        pb.AuthUserChangePasswordRequest,
        name=names,
        password=passwords,
        hashedPassword=hashes,
    ),
    simple("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest, user=names, role=roles),
    simple("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest, name=names, role=roles),
)
role_calls = st.one_of(
    simple("Auth/RoleAdd", pb.AuthRoleAddRequest, name=roles),
    simple("Auth/RoleGet", pb.AuthRoleGetRequest, role=roles),
    simple("Auth/RoleList", pb.AuthRoleListRequest),
    simple("Auth/RoleDelete", pb.AuthRoleDeleteRequest, role=roles),
    simple(
        "Auth/RoleGrantPermission",
        pb.AuthRoleGrantPermissionRequest,
        name=roles,
        perm=often((1, st.none()), (5, permissions)),
    ),
    grants,
    revocations,
    simple(
        "Auth/RoleRevokePermission",
        pb.AuthRoleRevokePermissionRequest,
        role=roles,
        key=grant_keys,
        range_end=grant_ends,
    ),
)
switches = often(
    (2, simple("Auth/AuthEnable", pb.AuthEnableRequest)),
    (1, simple("Auth/AuthDisable", pb.AuthDisableRequest)),
)

# What users do.


# Ranges that permission is asked for; none is inverted, for those cannot be compared.
ENDS = (b"b", b"b\0", b"c", b"d", b"e", b"\xff")
PLACES = [(key, end) for key in calls.KEYS for end in ENDS if end > key]
PLACES += [(key, end) for key in calls.KEYS for end in (b"", b"", b"", b"\0", b"\0")]
places = st.sampled_from([*PLACES, (b"\0", b"\0"), (b"\0", b"b")])


def in_places(
    name: str, message: Callable[..., Any], **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[Call]:
    """Make calls about a range of keys."""
    return places.flatmap(
        lambda place: simple(
            name, message, key=st.just(place[0]), range_end=st.just(place[1]), **more
        )
    )


def _make_watch(**fields: Any) -> pb.WatchRequest:
    return pb.WatchRequest(create_request=pb.WatchCreateRequest(**fields))


keep_alives = simple("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, ID=calls.lease_ids)
watches = in_places(
    "Watch/Watch",
    _make_watch,
    start_revision=calls.revisions,
    watch_id=st.sampled_from([0, 0, 3, -1]),
)
range_streams = in_places("KV/RangeStream", pb.RangeRequest)
ranges = in_places("KV/Range", pb.RangeRequest, serializable=calls.flags)
deletes = in_places("KV/DeleteRange", pb.DeleteRangeRequest, prev_kv=calls.flags)
puts = simple("KV/Put", pb.PutRequest, **calls.good_put_fields)


@st.composite
def usual_operations(draw: st.DrawFn, key: bytes, depth: int) -> tuple[str, Any]:
    """Draw an operation of a transaction that is refused for lack of rights, or not at all."""
    kind = draw(st.sampled_from(["range", "put", "put", "delete"] + ["txn"] * 3 * bool(depth)))
    if kind == "txn":
        return kind, draw(usual_txns(depth - 1, [key]))
    if kind == "put":
        return kind, draw(st.fixed_dictionaries(calls.good_put_fields | {"key": st.just(key)}))
    if kind == "delete":
        return kind, {"key": key, "prev_kv": draw(calls.flags)}
    place = draw(places)
    return kind, {"key": place[0], "range_end": place[1]}


@st.composite
def usual_txns(draw: st.DrawFn, depth: int, among: list[bytes]) -> dict[str, Any]:
    """Draw the fields of a transaction that writes each key at most once."""
    chosen = draw(st.lists(st.sampled_from(among), min_size=1, max_size=2, unique=True))
    compared = draw(st.lists(places, max_size=1))
    return {
        "compare": [{"key": key, "range_end": end} for key, end in compared],
        "success": [draw(usual_operations(key, depth)) for key in chosen],
        "failure": [draw(usual_operations(key, depth)) for key in chosen[:1]],
    }


good_txns = usual_txns(2, calls.KEYS).map(lambda fields: Call("KV/Txn", fields, calls.make_txn))
data_calls = often(
    (6, ranges),
    (5, deletes),
    (6, puts),
    (1, calls.kv_calls),
    (10, good_txns),
    (1, calls.txn_calls),
    (5, calls.lease_calls),
    (1, calls.grants),
    (2, keep_alives),
    (4, watches),
    (2, range_streams),
    (1, calls.compact_calls),
    (1, calls.cluster_calls),
    (2, calls.maintenance_calls),
    (3, calls.queue_calls),
)

administration = st.builds(Step, administrators, often((1, user_calls), (1, role_calls)))
login_steps = st.builds(Step, st.just(NOBODY), often((1, logins), (2, good_logins)))
data_steps = st.builds(Step, callers, data_calls)
switch_steps = st.builds(Step, administrators, switches)
steps = often((8, administration), (20, data_steps), (3, login_steps), (1, switch_steps))


def _call(name: str, request: Any) -> Call:
    fields = {field.name: value for field, value in request.ListFields()}
    return Call(name, fields, lambda _fields, _revision: request)


@st.composite
def beginnings(draw: st.DrawFn) -> list[Step]:
    """Make some users with some rights and log them in; now and then something is left out."""
    made: list[Call] = [
        _call("Auth/UserAdd", pb.AuthUserAddRequest(name="root", password=PASSWORD)),
        _call("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="root", role="root")),
    ]
    for user, role in (("alice", "r1"), ("bob", "r2")):
        made.append(_call("Auth/UserAdd", pb.AuthUserAddRequest(name=user, password=PASSWORD)))
        made.append(_call("Auth/RoleAdd", pb.AuthRoleAddRequest(name=role)))
        granted = pb.AuthUserGrantRoleRequest(user=user, role=role)
        made.append(_call("Auth/UserGrantRole", granted))
    made += draw(st.lists(grants, min_size=2, max_size=6))
    made += draw(st.lists(st.one_of(calls.grants, calls.writes), min_size=3, max_size=6))
    made.append(_call("Auth/AuthEnable", pb.AuthEnableRequest()))
    for user in ("root", "alice", "bob"):
        login = pb.AuthenticateRequest(name=user, password=PASSWORD)
        made.append(_call("Auth/Authenticate", login))
    left_out = draw(st.sampled_from([None] * 60 + list(range(len(made)))))
    return [Step(NOBODY, call) for number, call in enumerate(made) if number != left_out]


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    found = draw(beginnings())
    return found + draw(st.lists(steps, min_size=15, max_size=30))
