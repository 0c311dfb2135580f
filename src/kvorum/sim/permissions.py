"""Users, roles and permissions as a small etcd has them: a state for every entry that changed it.

The rules are etcd's and the code is not production's: every call scans the grants one
by one, and nothing is kept between two calls. Refusals are etcd's texts.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.etcdserverpb import InternalRaftRequest

EMPTY: Final = "etcdserver: user name is empty"
OLD: Final = "etcdserver: revision of auth store is old"
DENIED: Final = "etcdserver: permission denied"
TOKEN: Final = "etcdserver: invalid auth token"  # noqa: S105 (a text)
NO_USER: Final = "etcdserver: user name not found"
USER_EXISTS: Final = "etcdserver: user name already exists"
NO_ROLE: Final = "etcdserver: role name not found"
ROLE_EXISTS: Final = "etcdserver: role name already exists"
NOT_GRANTED: Final = "etcdserver: role is not granted to the user"
NOT_PERMITTED: Final = "etcdserver: permission is not granted to the role"
NOT_MANAGEABLE: Final = "etcdserver: invalid auth management"
NO_ROOT_USER: Final = "etcdserver: root user does not exist"
NO_ROOT_ROLE: Final = "etcdserver: root user does not have root role"
NOT_ENABLED: Final = "etcdserver: authentication is not enabled"
FAILED: Final = "etcdserver: authentication failed, invalid user ID or password"

REFUSALS: Final = (EMPTY, OLD, DENIED, TOKEN, NO_USER)
"""Refusals because of the caller."""

ROOT: Final = "root"
_OPEN: Final = b"\0"
_READS: Final = (Permission.READ, Permission.READWRITE)
_WRITES: Final = (Permission.WRITE, Permission.READWRITE)


class Grant(NamedTuple):
    """A permission of a role: a key, or a range of keys."""

    type: int
    key: bytes
    end: bytes


class User(NamedTuple):
    """A user, with the stored hash of its password."""

    password: bytes
    has_password: bool
    roles: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class State:
    """All users, roles and tokens after some entry; immutable."""

    is_enabled: bool = False
    revision: int = 1
    users: Mapping[str, User] = field(default_factory=dict)
    roles: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    """The users of valid tokens; a member knows a token once it has applied the token's entry."""

    # Permissions.

    def keys_refusal(
        self, user: str, revision: int, key: bytes, end: bytes, *, is_write: bool
    ) -> str | None:
        """Return why a user, as of a revision, may not read or write a range; None if it may."""
        if not self.is_enabled:
            return None
        if not revision:
            return EMPTY
        if revision < self.revision:
            return OLD
        if user not in self.users:
            return DENIED
        if ROOT in self.users[user].roles:
            return None
        grants = [
            each
            for role in self.users[user].roles
            for each in self.roles.get(role, ())
            if each.type in (_WRITES if is_write else _READS)
        ]
        return None if _covers(grants, key, end) else DENIED

    def admin_refusal(self, user: str, revision: int) -> str | None:
        """Return why a user does not count as an administrator; None if it does."""
        if not self.is_enabled:
            return None
        if not user or not revision:
            return EMPTY
        if user not in self.users:
            return NO_USER
        return None if ROOT in self.users[user].roles else DENIED


def _covers(grants: list[Grant], key: bytes, end: bytes) -> bool:
    """Return whether grants, taken together, leave no gap in a range."""
    # A range that ends before it starts has no keys; then the key alone counts.
    wanted = end if end == _OPEN or end > key else key + b"\0"
    reached = key
    while wanted == _OPEN or reached < wanted:
        ends = [_end(each) for each in grants if each.key <= reached]
        if _OPEN in ends:
            return True
        furthest = max(ends, default=b"")
        if furthest <= reached:
            return False
        reached = furthest
    return True


def _end(grant: Grant) -> bytes:
    """Return the end of a grant; a zero byte, which no other end is, if it has none."""
    return grant.end or grant.key + b"\0"


# The ranges that requests read and write.

Wanted = tuple[bytes, bytes, bool]
"""A key, the end of its range, and whether the request writes it."""


def put_wants(request: Any, leased: Mapping[int, set[bytes]]) -> Iterator[Wanted | int]:
    """Return the ranges that a put needs, in the order of its checks, and the id of a lease."""
    yield request.key, b"", True
    if request.lease and request.lease in leased:
        yield request.lease
    if request.prev_kv:
        yield request.key, b"", False


def delete_wants(request: Any) -> Iterator[Wanted]:
    """Return the ranges that a deletion needs."""
    yield request.key, request.range_end, True
    if request.prev_kv:
        yield request.key, request.range_end, False


def txn_wants(request: Any, leased: Mapping[int, set[bytes]]) -> Iterator[Wanted | int]:
    """Return the ranges that a transaction needs, in compares, both branches and nested ones."""
    for compare in request.compare:
        yield compare.key, compare.range_end, False
    for operation in (*request.success, *request.failure):
        kind = operation.WhichOneof("request")
        if kind == "request_range":
            yield operation.request_range.key, operation.request_range.range_end, False
        elif kind == "request_put":
            yield from put_wants(operation.request_put, leased)
        elif kind == "request_delete_range":
            deletion = operation.request_delete_range
            if deletion.prev_kv:
                yield deletion.key, deletion.range_end, False
            yield deletion.key, deletion.range_end, True
        elif kind == "request_txn":
            yield from txn_wants(operation.request_txn, leased)


# Changes.


def changed(state: State, kind: str, request: Any, index: int) -> tuple[State, str | None]:
    """Return the state after a request, or the same one and why the request was refused."""
    after = _CHANGES[kind](state, request, index)
    return (state, after) if isinstance(after, str) else (after, None)


def is_change(kind: str) -> bool:
    """Return whether a kind of entry is about users."""
    return kind in _CHANGES


def name_of(request: InternalRaftRequest) -> str:
    """Return the kind of an entry: the name of the only request in it; empty if there is none."""
    names = [each.name for each, _ in request.ListFields() if each.name not in ("header", "ID")]
    assert len(names) < 2, f"several requests in one entry: {names}"
    return names[0] if names else ""


def _raised(state: State, **fields: Any) -> State:
    return replace(state, revision=state.revision + 1, **fields)


def _with_user(state: State, name: str, user: User) -> State:
    return _raised(state, users={**state.users, name: user})


def _without_tokens(state: State, name: str) -> dict[str, str]:
    return {token: user for token, user in state.tokens.items() if user != name}


def _enable(state: State, _request: Any, _index: int) -> State | str:
    if state.is_enabled:
        return state
    if ROOT not in state.users:
        return NO_ROOT_USER
    return replace(state, is_enabled=True) if ROOT in state.users[ROOT].roles else NO_ROOT_ROLE


def _disable(state: State, _request: Any, _index: int) -> State | str:
    return _raised(state, is_enabled=False, tokens={}) if state.is_enabled else state


def _authenticate(state: State, request: Any, index: int) -> State | str:
    if not state.is_enabled:
        return NOT_ENABLED
    user = state.users.get(request.name)
    if user is None or not user.has_password:
        return FAILED
    token = f"{request.simple_token}.{index - 1}"
    return replace(state, tokens={**state.tokens, token: request.name})


def _user_add(state: State, request: Any, _index: int) -> State | str:
    if not request.name:
        return EMPTY
    if request.name in state.users:
        return USER_EXISTS
    has_password = not request.options.no_password
    password = base64.b64decode(request.hashedPassword) if has_password else b""
    return _with_user(state, request.name, User(password, has_password))


def _user_delete(state: State, request: Any, _index: int) -> State | str:
    if state.is_enabled and request.name == ROOT:
        return NOT_MANAGEABLE
    if request.name not in state.users:
        return NO_USER
    users = {name: user for name, user in state.users.items() if name != request.name}
    return _raised(state, users=users, tokens=_without_tokens(state, request.name))


def _change_password(state: State, request: Any, _index: int) -> State | str:
    user = state.users.get(request.name)
    if user is None:
        return NO_USER
    if user.has_password:
        user = user._replace(password=base64.b64decode(request.hashedPassword))
    after = _with_user(state, request.name, user)
    return replace(after, tokens=_without_tokens(state, request.name))


def _grant_role(state: State, request: Any, _index: int) -> State | str:
    user = state.users.get(request.user)
    if user is None:
        return NO_USER
    if request.role != ROOT and request.role not in state.roles:
        return NO_ROLE
    if request.role in user.roles:
        return state
    roles = tuple(sorted((*user.roles, request.role)))
    return _with_user(state, request.user, user._replace(roles=roles))


def _revoke_role(state: State, request: Any, _index: int) -> State | str:
    if state.is_enabled and request.name == ROOT and request.role == ROOT:
        return NOT_MANAGEABLE
    user = state.users.get(request.name)
    if user is None:
        return NO_USER
    if request.role not in user.roles:
        return NOT_GRANTED
    roles = tuple(each for each in user.roles if each != request.role)
    return _with_user(state, request.name, user._replace(roles=roles))


def _role_add(state: State, request: Any, _index: int) -> State | str:
    if request.name in state.roles:
        return ROLE_EXISTS
    return _raised(state, roles={**state.roles, request.name: ()})


def _role_delete(state: State, request: Any, _index: int) -> State | str:
    if state.is_enabled and request.role == ROOT:
        return NOT_MANAGEABLE
    if request.role not in state.roles:
        return NO_ROLE
    roles = {name: grants for name, grants in state.roles.items() if name != request.role}
    users = {
        name: user._replace(roles=tuple(each for each in user.roles if each != request.role))
        for name, user in state.users.items()
    }
    return _raised(state, roles=roles, users=users)


def _grant(state: State, request: Any, _index: int) -> State | str:
    granted = Grant(request.perm.permType, request.perm.key, request.perm.range_end)
    is_empty = granted.end not in (b"", _OPEN) and granted.end <= granted.key
    if not granted.key or is_empty:
        return NOT_MANAGEABLE
    if request.name not in state.roles:
        return NO_ROLE
    grants = list(state.roles[request.name])
    # Of grants with the same key, etcd considers only the first one.
    same = [place for place, each in enumerate(grants) if each.key == granted.key]
    if same and grants[same[0]].end == granted.end:
        grants[same[0]] = granted
    else:
        grants.append(granted)
        grants.sort(key=lambda each: each.key)
    return _raised(state, roles={**state.roles, request.name: tuple(grants)})


def _revoke(state: State, request: Any, _index: int) -> State | str:
    if request.role not in state.roles:
        return NO_ROLE
    grants = state.roles[request.role]
    rest = tuple(each for each in grants if each[1:] != (request.key, request.range_end))
    if len(rest) == len(grants):
        return NOT_PERMITTED
    return _raised(state, roles={**state.roles, request.role: rest})


_CHANGES: Final = {
    "auth_enable": _enable,
    "auth_disable": _disable,
    "authenticate": _authenticate,
    "auth_user_add": _user_add,
    "auth_user_delete": _user_delete,
    "auth_user_change_password": _change_password,
    "auth_user_grant_role": _grant_role,
    "auth_user_revoke_role": _revoke_role,
    "auth_role_add": _role_add,
    "auth_role_delete": _role_delete,
    "auth_role_grant_permission": _grant,
    "auth_role_revoke_permission": _revoke,
}
