"""Entries about users and roles: every member does the same, and tokens end as they should."""

import logging
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    AuthDisableRequest,
    AuthEnableRequest,
    AuthenticateResponse,
    AuthRoleAddRequest,
    AuthUserAddRequest,
    AuthUserChangePasswordRequest,
    AuthUserDeleteRequest,
    AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest,
    InternalAuthenticateRequest,
)
from kvorum.member.member import Member
from kvorum.state.apply import requests
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.auth.passwords import CheckPassword
from kvorum.storage.files.memory import MemoryFiles
from tests.member.harness import CLIENT, Cluster, Machine

ROOT = Caller(Front.GRPC, "root", 1)
HASH = "aGFzaA=="


class World:
    """A cluster whose entries are administration."""

    def __init__(self, size: int = 1) -> None:
        self.cluster = Cluster(size)
        self.machine: Machine = self.cluster.leader()
        self.cluster.settle()

    @property
    def member(self) -> Member:
        return self.machine.running

    def apply(self, kind: int, request: Any, caller: Caller = CLIENT) -> bytes | Status:
        """Apply a request; return its answer."""
        call = self.machine.propose(kind, request.SerializeToString(), caller=caller)
        answer = self.cluster.answer(self.machine, call)
        self.cluster.settle()
        return answer

    def add_users(self, *names: str) -> None:
        for name in names:
            self.apply(requests.USER_ADD, AuthUserAddRequest(name=name, hashedPassword=HASH), ROOT)

    def enable(self) -> None:
        self.add_users("root")
        grant = AuthUserGrantRoleRequest(user="root", role="root")
        self.apply(requests.USER_GRANT_ROLE, grant, ROOT)
        answer = self.apply(requests.AUTH_ENABLE, AuthEnableRequest(), ROOT)
        assert not isinstance(answer, Status), answer

    def log_in(self, name: str) -> str:
        request = InternalAuthenticateRequest(name=name, simple_token="prefix")
        answer = self.apply(requests.AUTHENTICATE, request)
        assert isinstance(answer, bytes), answer
        return AuthenticateResponse.FromString(answer).token

    def is_valid(self, token: str) -> set[bool]:
        """Return what the members say of a token."""
        return {
            each.running.state.tokens.verify(token, each.running.now, 0.0) is not None
            for each in self.cluster
        }


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", b""),
        ("YQ==", b"a"),
        ("YR==", b"a"),
        ("YWI=", b"ab"),
        ("Y\nQ=\r=\n", b"a"),
        ("+/+/", b"\xfb\xff\xbf"),
        ("YWJj=", None),
        ("YWJj==", None),
        ("YWJj====", None),
        ("YQ=", None),
        ("YQ", None),
        ("YQ== ", None),
        ("====", None),
        ("YQ==YQ==", None),
        ("-_-_", None),
        ("\u00e9\u00e9\u00e9\u00e9", None),
        ("\u0661\u0661\u0661\u0661", None),
    ],
)
def test_a_hash_is_base64_as_go_reads_it(text: str, stored: bytes | None) -> None:
    """Otherwise members that are etcds would decide otherwise."""
    world = World()
    added = world.apply(requests.USER_ADD, AuthUserAddRequest(name="u", hashedPassword=text))
    user = world.member.state.auth.user("u")
    if stored is None:
        assert added == errors.NO_PASSWORD_USER and user is None
        world.add_users("u")
    else:
        assert user is not None and user.password == stored
    change = AuthUserChangePasswordRequest(name="u", hashedPassword=text)
    changed = world.apply(requests.USER_CHANGE_PASSWORD, change)
    assert (changed == errors.NO_PASSWORD_USER) == (stored is None)


def test_an_old_entry_with_a_password_makes_the_same_hash_everywhere() -> None:
    world = World(3)
    request = AuthUserAddRequest(name="u", password="secret")
    world.apply(requests.USER_ADD, request)
    change = AuthUserChangePasswordRequest(name="u", password="other")
    hashes = []
    for password in ("secret", "other"):
        if password == "other":
            world.apply(requests.USER_CHANGE_PASSWORD, change)
        users = [machine.running.state.auth.user("u") for machine in world.cluster]
        (stored,) = {user.password for user in users if user is not None}
        assert CheckPassword(stored, password).run(MemoryFiles())
        hashes.append(stored)
    assert hashes[0] != hashes[1]


def test_what_ends_tokens_ends_them_on_every_member() -> None:
    world = World(3)
    world.enable()
    world.add_users("u", "v")
    u, v, root = (world.log_in(name) for name in ("u", "v", "root"))
    assert [world.is_valid(token) for token in (u, v, root)] == [{True}] * 3
    grant = AuthUserGrantRoleRequest(user="u", role="root")
    world.apply(requests.USER_GRANT_ROLE, grant, ROOT)
    revoke = AuthUserRevokeRoleRequest(name="u", role="root")
    world.apply(requests.USER_REVOKE_ROLE, revoke, ROOT)
    assert world.is_valid(u) == {True}
    # What is refused ends nothing.
    world.apply(requests.USER_DELETE, AuthUserDeleteRequest(name="u"))
    change = AuthUserChangePasswordRequest(name="u", hashedPassword="-")
    assert world.apply(requests.USER_CHANGE_PASSWORD, change, ROOT) == errors.NO_PASSWORD_USER
    assert world.is_valid(u) == {True}
    change.hashedPassword = HASH
    world.apply(requests.USER_CHANGE_PASSWORD, change, ROOT)
    assert [world.is_valid(token) for token in (u, v, root)] == [{False}, {True}, {True}]
    world.apply(requests.USER_DELETE, AuthUserDeleteRequest(name="v"), ROOT)
    assert [world.is_valid(token) for token in (v, root)] == [{False}, {True}]
    world.apply(requests.AUTH_ENABLE, AuthEnableRequest(), ROOT)
    assert world.is_valid(root) == {True}
    world.apply(requests.AUTH_DISABLE, AuthDisableRequest(), ROOT)
    assert world.is_valid(root) == {False}
    # Enabled again, a token of before is not valid again.
    world.apply(requests.AUTH_ENABLE, AuthEnableRequest())
    assert world.is_valid(root) == {False}


def test_a_token_names_the_index_before_its_entry() -> None:
    world = World()
    world.enable()
    token = world.log_in("root")
    assert token == f"prefix.{world.member.state.applied - 1}"


def test_an_authentication_is_judged_again_when_it_is_applied() -> None:
    """Whatever the proposer found: users may have changed since."""
    world = World()
    request = InternalAuthenticateRequest(name="u", simple_token="prefix")
    assert world.apply(requests.AUTHENTICATE, request) == errors.AUTH_NOT_ENABLED
    world.enable()
    assert world.apply(requests.AUTHENTICATE, request) == errors.AUTH_FAILED
    add = AuthUserAddRequest(name="u")
    add.options.no_password = True
    world.apply(requests.USER_ADD, add, ROOT)
    assert world.apply(requests.AUTHENTICATE, request) == errors.AUTH_FAILED
    assert world.member.state.auth.revision == 4


def test_all_changes_need_the_role_root_of_whatever_revision() -> None:
    world = World()
    world.enable()
    world.add_users("u")
    add = AuthRoleAddRequest(name="r")
    for user, refusal in (
        ("", errors.USER_EMPTY),
        ("stranger", errors.USER_NOT_FOUND),
        ("u", errors.PERMISSION_DENIED),
    ):
        for revision in (0, 1, 1000):
            caller = Caller(Front.GRPC, user, revision)
            assert world.apply(requests.ROLE_ADD, add, caller) == refusal
    for revision, name in ((0, "r0"), (1, "r1"), (1000, "r2")):
        caller = Caller(Front.GRPC, "root", revision)
        answer = world.apply(requests.ROLE_ADD, AuthRoleAddRequest(name=name), caller)
        assert isinstance(answer, bytes), answer
    assert world.member.state.auth.roles == ["r0", "r1", "r2"]


def test_what_is_logged_has_names_and_nothing_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    request = AuthUserAddRequest(name="ev\nil", hashedPassword="c2VjcmV0LWhhc2g=")
    world.apply(requests.USER_ADD, request)
    world.apply(requests.USER_ADD, AuthUserAddRequest(name="old", password="the-password"))
    change = AuthUserChangePasswordRequest(name="ev\nil", hashedPassword="c2VjcmV0LWhhc2g=")
    world.apply(requests.USER_CHANGE_PASSWORD, change)
    world.enable()
    token = world.log_in("old")
    text = caplog.text
    assert "added a user (user-name: 'ev\\nil')" in text and "enabled authentication" in text
    for secret in ("secret-hash", "c2VjcmV0LWhhc2g=", "the-password", "$2a$", token):
        assert secret not in text
