"""The users of the table test, what they may do, and the data that they want to see and change.

Everything from `b` to `e` is somebody's; `a` and `z` are foreign to all but those with open-ended
rights and the administrators.
"""

from typing import NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.cluster.client import Metadata
from tests.state.auth.servers import Server, Servers

READ, WRITE, READWRITE = Permission.READ, Permission.WRITE, Permission.READWRITE
UNDEFINED = 7
PASSWORD = "secret"

Grant = tuple[int, bytes, bytes]

ROLES: dict[str, list[Grant]] = {
    "read": [(READ, b"b", b"e")],
    "write": [(WRITE, b"b", b"e")],
    "both": [(READWRITE, b"b", b"e")],
    "point": [(READWRITE, b"c", b"")],
    "touching": [
        (READWRITE, b"d\0", b"e"),
        (READWRITE, b"d", b""),
        (READWRITE, b"c", b"d"),
        (READWRITE, b"b", b"c"),
    ],
    "overlapping": [(READWRITE, b"b", b"d"), (READWRITE, b"c", b"e")],
    "nested": [(READWRITE, b"b", b"e"), (READWRITE, b"c", b"d"), (READWRITE, b"c", b"")],
    "gap": [(READWRITE, b"b", b"c"), (READWRITE, b"d", b"e")],
    "open": [(READWRITE, b"c", b"\0")],
    "everything": [(READWRITE, b"\0", b"\0")],
    "almost everything": [(READWRITE, b"\0", b"\xff\xff")],
    "twice": [(READ, b"b", b"d"), (WRITE, b"b", b"e"), (READWRITE, b"b", b"d")],
    "odd": [(UNDEFINED, b"b", b"e")],
    "empty": [],
}
USERS: dict[str, tuple[str, ...]] = {
    "root": ("root",),
    "another root": ("root",),
    "nobody": (),
    "gone": ("both",),
    "reader": ("read",),
    "writer": ("write",),
    "owner": ("both",),
    "of a point": ("point",),
    "toucher": ("touching",),
    "overlapper": ("overlapping",),
    "nester": ("nested",),
    "gapped": ("gap",),
    "open-ended": ("open",),
    "of everything": ("everything",),
    "of almost everything": ("almost everything",),
    "granted twice": ("twice",),
    "odd": ("odd",),
    "of several": ("empty", "gap", "point", "read"),
}
WITHOUT_PASSWORD = "without password"
VICTIM = "victim"
"""A user and a role to whom things are done."""

KEYS = (b"a", b"a/1", b"b", b"c", b"c\0", b"d", b"d/1", b"z")
FREE, OWN, FOREIGN, ABSENT = 71, 72, 73, 79
"""Leases: one without keys, one with `c` alone, one with `a` and `d`, one that is not there."""
LEASE_OF = {b"c": OWN, b"a": FOREIGN, b"d": FOREIGN}


class Caller(NamedTuple):
    """Who makes a call: a user who has logged in, or somebody whom nobody knows."""

    name: str
    metadata: Metadata | None = None

    def metadata_at(self, server: Server) -> Metadata:
        return server.metadata_of(self.name) if self.metadata is None else self.metadata


CALLERS = (
    Caller("without identity", ()),
    Caller("bad token", (("token", "nonsense"),)),
    Caller("unknown token", (("token", "ABCDEFGHIJKLMNOP.3"),)),
    *(Caller(name) for name in USERS),
)


def prepare(servers: Servers) -> None:
    """Make the users, the roles and the data, enable authentication, and log everybody in."""
    for role, grants in ROLES.items():
        servers.answer("Auth/RoleAdd", pb.AuthRoleAddRequest(name=role))
        for kind, key, range_end in grants:
            perm = Permission(permType=kind, key=key, range_end=range_end)  # type: ignore[arg-type]
            grant = pb.AuthRoleGrantPermissionRequest(name=role, perm=perm)
            servers.answer("Auth/RoleGrantPermission", grant)
    servers.answer("Auth/RoleAdd", pb.AuthRoleAddRequest(name="root"))
    servers.answer("Auth/RoleAdd", pb.AuthRoleAddRequest(name=VICTIM))
    for user, roles in USERS.items():
        servers.answer("Auth/UserAdd", pb.AuthUserAddRequest(name=user, password=PASSWORD))
        for role in roles:
            servers.answer("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role))
    servers.answer("Auth/UserAdd", pb.AuthUserAddRequest(name=VICTIM, password=PASSWORD))
    no_password = pb.AuthUserAddRequest(name=WITHOUT_PASSWORD)
    no_password.options.no_password = True
    servers.answer("Auth/UserAdd", no_password)
    servers.answer("Auth/AuthEnable", pb.AuthEnableRequest())
    log_in(servers)
    servers.answer("Auth/UserDelete", pb.AuthUserDeleteRequest(name="gone"), "root")
    refresh(servers)


def log_in(servers: Servers) -> None:
    """Log in everybody who is there; who is gone keeps an old token."""
    for server in servers:
        for user in USERS:
            if user != "gone" or user not in server.tokens:
                server.log_in(user, PASSWORD)


def refresh(servers: Servers) -> None:
    """Make data and leases as they were, whatever a call did to them."""
    for server in servers:
        leases = server.answer("Lease/LeaseLeases", pb.LeaseLeasesRequest(), "root").leases
        there = {each.ID for each in leases}
        for lease in there - {FREE, OWN, FOREIGN}:
            server.answer("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), "root")
        for lease in {FREE, OWN, FOREIGN} - there:
            server.answer("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=9000), "root")
        everything = pb.DeleteRangeRequest(key=b"\0", range_end=b"\0")
        server.answer("KV/DeleteRange", everything, "root")
        puts = [pb.PutRequest(key=key, value=key, lease=LEASE_OF.get(key, 0)) for key in KEYS]
        operations = [pb.RequestOp(request_put=put) for put in puts]
        server.answer("KV/Txn", pb.TxnRequest(success=operations), "root")
