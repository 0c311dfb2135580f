"""Streams that were opened before rights change: who goes on, who is refused, and when."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.cluster.client import Talk
from tests.server.rpc.oracle import status_of
from tests.server.rpc.pair import masked
from tests.state.auth.servers import Both, Server, running_both

KEY, LEASE = b"k", 81
PERMISSION = Permission(permType=Permission.READWRITE, key=KEY)


class Change(NamedTuple):
    """Something that the administrator does."""

    name: str
    request: Any


CHANGES = {
    "nothing": (),
    "the role is revoked": (
        Change("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(name="user", role="role")),
    ),
    "the permission is revoked": (
        Change(
            "Auth/RoleRevokePermission", pb.AuthRoleRevokePermissionRequest(role="role", key=KEY)
        ),
    ),
    "the role is deleted": (Change("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role="role")),),
    "the user is deleted": (Change("Auth/UserDelete", pb.AuthUserDeleteRequest(name="user")),),
    "the user comes again": (
        Change("Auth/UserDelete", pb.AuthUserDeleteRequest(name="user")),
        Change("Auth/UserAdd", pb.AuthUserAddRequest(name="user", password="other")),
        Change("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="user", role="role")),
    ),
    "the password is changed": (
        Change(
            "Auth/UserChangePassword",
            pb.AuthUserChangePasswordRequest(name="user", password="other"),
        ),
    ),
    "another role is granted": (
        Change("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="user", role="root")),
    ),
    "authentication ends": (Change("Auth/AuthDisable", pb.AuthDisableRequest()),),
    "authentication ends and begins": (
        Change("Auth/AuthDisable", pb.AuthDisableRequest()),
        Change("Auth/AuthEnable", pb.AuthEnableRequest()),
    ),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("streams")) as found:
        found.answer("Auth/UserAdd", pb.AuthUserAddRequest(name="root", password="secret"))
        found.answer("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="root", role="root"))
        yield found


class Streams:
    """The streams that a user opened at one server."""

    def __init__(self, server: Server, user: str) -> None:
        metadata = server.metadata_of(user) if user else ()
        self._watch = server.client.talk("Watch/Watch", metadata)
        self._keeping = server.client.talk("Lease/LeaseKeepAlive", metadata)

    def watch(self, key: bytes) -> Any:
        create = pb.WatchCreateRequest(key=key)
        return self._said(self._watch, pb.WatchRequest(create_request=create), "Watch/Watch")

    def event(self) -> Any:
        return masked("Watch/Watch", self._watch.hear())

    def keep_alive(self) -> Any:
        return self._said(self._keeping, pb.LeaseKeepAliveRequest(ID=LEASE), "Lease/LeaseKeepAlive")

    def _said(self, talk: Talk, message: Any, name: str) -> Any:
        talk.say(message)
        try:
            return masked(name, talk.hear())
        except grpc.RpcError as error:
            return status_of(error)

    def close(self) -> None:
        self._watch.close()
        self._keeping.close()


def prepare(both: Both) -> None:
    """Make one user with a role, a key with a lease, and enable authentication."""
    grant = pb.AuthRoleGrantPermissionRequest(name="role", perm=PERMISSION)
    for name, request in (
        ("Auth/RoleAdd", pb.AuthRoleAddRequest(name="role")),
        ("Auth/RoleGrantPermission", grant),
        ("Auth/UserAdd", pb.AuthUserAddRequest(name="user", password="secret")),
        ("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="user", role="role")),
        ("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=LEASE, TTL=9000)),
        ("KV/Put", pb.PutRequest(key=KEY, lease=LEASE)),
    ):
        both.answer(name, request)


def enable(both: Both) -> None:
    both.answer("Auth/AuthEnable", pb.AuthEnableRequest())
    for server in both:
        server.log_in("root", "secret")
        server.log_in("user", "secret")


def clean_up(both: Both) -> None:
    """Take everything away but the administrator, and disable authentication."""
    for server in both:
        if server.answer("Auth/AuthStatus", pb.AuthStatusRequest()).enabled:
            server.log_in("root", "secret")
            server.answer("Auth/AuthDisable", pb.AuthDisableRequest(), "root")
        server.answer("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=LEASE))
        for user in server.answer("Auth/UserList", pb.AuthUserListRequest()).users:
            if user != "root":
                server.answer("Auth/UserDelete", pb.AuthUserDeleteRequest(name=user))
        for role in server.answer("Auth/RoleList", pb.AuthRoleListRequest()).roles:
            server.answer("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=role))


def compare(streams: list[Streams], question: Callable[[Streams], Any]) -> None:
    ours, theirs = map(question, streams)
    assert ours == theirs


def go_on(both: Both, streams: list[Streams]) -> None:
    """Look at everything that streams may still do."""
    both.answer("KV/Put", pb.PutRequest(key=KEY, lease=LEASE), "root")
    compare(streams, Streams.event)
    compare(streams, lambda each: each.watch(KEY))
    compare(streams, lambda each: each.watch(b"other"))
    compare(streams, Streams.keep_alive)
    for each in streams:
        each.close()


@pytest.mark.parametrize("what", CHANGES)
def test_rights_change(both: Both, what: str) -> None:
    prepare(both)
    enable(both)
    streams = [Streams(server, "user") for server in both]
    compare(streams, lambda each: each.watch(KEY))
    compare(streams, Streams.keep_alive)
    for change in CHANGES[what]:
        enabled = both.ours.answer("Auth/AuthStatus", pb.AuthStatusRequest()).enabled
        both.answer(change.name, change.request, "root" if enabled else "")
    for server in both:
        if server.answer("Auth/AuthStatus", pb.AuthStatusRequest()).enabled:
            server.log_in("root", "secret")
    go_on(both, streams)
    clean_up(both)


def test_authentication_begins(both: Both) -> None:
    prepare(both)
    streams = [Streams(server, "") for server in both]
    compare(streams, lambda each: each.watch(KEY))
    compare(streams, Streams.keep_alive)
    enable(both)
    go_on(both, streams)
    clean_up(both)
