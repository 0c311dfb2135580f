"""Members of both kinds with the same history, stopped: what dumps show."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.etcdserverpb import (
    AuthEnableRequest,
    AuthenticateRequest,
    AuthRoleAddRequest,
    AuthRoleGrantPermissionRequest,
    AuthUserAddRequest,
    AuthUserChangePasswordRequest,
    AuthUserGrantRoleRequest,
)
from kvorum.client import Client
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.server.rpc.oracle import Oracle
from tests.tools.utl.history import ask, connected, perform, random_calls

PASSWORDS = ("correct horse", "battery staple", "open sesame")


class Stopped(NamedTuple):
    """The data directory of a member that ran, and the hash of its database when it ended."""

    directory: Path
    hash: int


Running = Callable[..., AbstractContextManager[Any]]


def stopped(running: Running, directory: Path) -> Stopped:
    with running(directory, "--snapshot-count=100") as server, connected(server.address) as client:
        perform(client, random_calls(7, 350), compactions=2)
        make_users(client)
        with Client(server.address, user="root", password=PASSWORDS[0]) as root:
            value = root.maintenance.hash()
    return Stopped(directory, value)


def make_users(client: Oracle) -> None:
    """Turn authentication on, with users and roles of every kind."""
    users = [("root", PASSWORDS[0]), ("someone", PASSWORDS[1]), ("nobody", "")]
    for name, password in users:
        request = AuthUserAddRequest(name=name, password=password)
        request.options.no_password = not password
        ask(client, "Auth/UserAdd", request)
    for role in ("root", "reader"):
        ask(client, "Auth/RoleAdd", AuthRoleAddRequest(name=role))
        ask(client, "Auth/UserGrantRole", AuthUserGrantRoleRequest(user="root", role=role))
    for key, end in ((b"a", b"b"), (b"\xff\0", b""), (b"q", b"\0")):
        permission = Permission(permType=Permission.READWRITE, key=key, range_end=end)
        grant = AuthRoleGrantPermissionRequest(name="reader", perm=permission)
        ask(client, "Auth/RoleGrantPermission", grant)
    change = AuthUserChangePasswordRequest(name="someone", password=PASSWORDS[2])
    ask(client, "Auth/UserChangePassword", change)
    ask(client, "Auth/AuthEnable", AuthEnableRequest())
    for name, password in (("root", PASSWORDS[0]), ("someone", PASSWORDS[2])):
        ask(client, "Auth/Authenticate", AuthenticateRequest(name=name, password=password))


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stopped(running_etcd, tmp_path_factory.mktemp("dumps") / "etcd")


@pytest.fixture(scope="session")
def kvorum(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stopped(running_kvorum, tmp_path_factory.mktemp("dumps") / "kvorum")


@pytest.fixture(params=["etcd", "kvorum"])
def member(request: pytest.FixtureRequest) -> Stopped:
    found: Stopped = request.getfixturevalue(request.param)
    return found
