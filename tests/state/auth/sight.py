"""All that one server shows of its users, roles and data to those who may see it."""

from typing import Any

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.state.auth.asking import comparable, hear
from tests.state.auth.servers import Server

PASSWORDS = {"root": "secret", "alice": "of alice", "bob": "of bob"}
EVERYTHING = pb.RangeRequest(key=b"\0", range_end=b"\0")
QUESTIONS: tuple[tuple[str, Any], ...] = (
    ("KV/Range", EVERYTHING),
    ("KV/Range", pb.RangeRequest(key=b"a")),
    ("KV/Range", pb.RangeRequest(key=b"b")),
    ("KV/Put", pb.PutRequest(key=b"a", value=b"denied to all but root")),
    ("Maintenance/HashKV", pb.HashKVRequest()),
    ("Auth/UserList", pb.AuthUserListRequest()),
    ("Auth/RoleList", pb.AuthRoleListRequest()),
    *(("Auth/UserGet", pb.AuthUserGetRequest(name=name)) for name in (*PASSWORDS, "carol")),
    *(("Auth/RoleGet", pb.AuthRoleGetRequest(role=role)) for role in ("r", "w", "root")),
    ("Auth/AuthStatus", pb.AuthStatusRequest()),
)


def populate(server: Server) -> None:
    """Make users, roles and data, and enable authentication."""
    grants = {
        "r": [(Permission.READ, b"a", b""), (Permission.READ, b"p", b"q")],
        "w": [(Permission.WRITE, b"b", b"\0")],
    }
    for role, permissions in grants.items():
        server.answer("Auth/RoleAdd", pb.AuthRoleAddRequest(name=role))
        for kind, key, range_end in permissions:
            perm = Permission(permType=kind, key=key, range_end=range_end)
            grant = pb.AuthRoleGrantPermissionRequest(name=role, perm=perm)
            server.answer("Auth/RoleGrantPermission", grant)
    for user, roles in (("root", ["root"]), ("alice", ["r", "w"]), ("bob", ["w"])):
        add = pb.AuthUserAddRequest(name=user, password=PASSWORDS[user])
        server.answer("Auth/UserAdd", add)
        for role in roles:
            granted = pb.AuthUserGrantRoleRequest(user=user, role=role)
            server.answer("Auth/UserGrantRole", granted)
    nobody = pb.AuthUserAddRequest(name="carol")
    nobody.options.no_password = True
    server.answer("Auth/UserAdd", nobody)
    server.answer("Auth/AuthEnable", pb.AuthEnableRequest())
    log_in(server)
    for key in (b"a", b"b", b"c"):
        server.answer("KV/Put", pb.PutRequest(key=key, value=key), "root")


def log_in(server: Server) -> None:
    for user, password in PASSWORDS.items():
        server.log_in(user, password)


def guards(server: Server) -> None:
    """Check that a server which has just started serves nobody without identity."""
    for name, request in QUESTIONS:
        if name != "Auth/AuthStatus":
            assert server.client.ask(name, request) == errors.USER_EMPTY, name


def sight(server: Server) -> list[Any]:
    """Return all answers to everybody; only ids and terms are left out, which are others."""
    seen: list[Any] = []
    for user in ("alice", "bob", "root"):
        for name, request in QUESTIONS:
            if name == "KV/Put" and user == "root":
                continue
            heard = hear(server.client, name, request, server.metadata_of(user))
            for message in heard.messages:
                message.header.member_id = message.header.cluster_id = 0
            seen.append((user, name, comparable(name, request, heard)))
    return seen
