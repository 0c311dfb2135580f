"""Judges after a run whether answers were permitted and refusals are explained.

A call is judged by the states of users that existed while it was under way: an answer needs a state
that permits it to its caller, a refusal needs one that causes it. A request that goes through the
log is judged by its own entry. The states are the ledger's, from the entry that the member had
applied when it got the call, or from the last one committed by then if an answer must be current.
"""

from collections.abc import Callable, Iterable
from typing import Any

import bcrypt

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as etcd
from kvorum.sim import permissions
from kvorum.sim.auditor import Auditor, index_of
from kvorum.sim.ledger import Entry, Ledger
from kvorum.sim.permissions import (
    DENIED,
    EMPTY,
    FAILED,
    NO_USER,
    NOT_ENABLED,
    OLD,
    REFUSALS,
    TOKEN,
    State,
    Wanted,
)
from kvorum.sim.users import LOGIN_PATH, WATCH_PATH, Users, Visit
from kvorum.sim.violation import Violation

GUARANTEE = "answers are permitted, refusals are explained"

_ENTRIES: dict[str, tuple[str, Any]] = {
    "/etcdserverpb.KV/Put": ("put", etcd.PutRequest),
    "/etcdserverpb.KV/DeleteRange": ("delete_range", etcd.DeleteRangeRequest),
    "/etcdserverpb.KV/Txn": ("txn", etcd.TxnRequest),
    "/etcdserverpb.Lease/LeaseRevoke": ("lease_revoke", etcd.LeaseRevokeRequest),
    "/etcdserverpb.Auth/AuthEnable": ("auth_enable", etcd.AuthEnableRequest),
    "/etcdserverpb.Auth/AuthDisable": ("auth_disable", etcd.AuthDisableRequest),
    "/etcdserverpb.Auth/UserAdd": ("auth_user_add", etcd.AuthUserAddRequest),
    "/etcdserverpb.Auth/UserDelete": ("auth_user_delete", etcd.AuthUserDeleteRequest),
    "/etcdserverpb.Auth/UserChangePassword": (
        "auth_user_change_password",
        etcd.AuthUserChangePasswordRequest,
    ),
    "/etcdserverpb.Auth/UserGrantRole": ("auth_user_grant_role", etcd.AuthUserGrantRoleRequest),
    "/etcdserverpb.Auth/UserRevokeRole": ("auth_user_revoke_role", etcd.AuthUserRevokeRoleRequest),
    "/etcdserverpb.Auth/RoleAdd": ("auth_role_add", etcd.AuthRoleAddRequest),
    "/etcdserverpb.Auth/RoleDelete": ("auth_role_delete", etcd.AuthRoleDeleteRequest),
    "/etcdserverpb.Auth/RoleGrantPermission": (
        "auth_role_grant_permission",
        etcd.AuthRoleGrantPermissionRequest,
    ),
    "/etcdserverpb.Auth/RoleRevokePermission": (
        "auth_role_revoke_permission",
        etcd.AuthRoleRevokePermissionRequest,
    ),
}
"""Requests that a member judges when it applies their entries."""

_FOR_ADMINISTRATORS = frozenset(
    f"/etcdserverpb.{name}"
    for name in (
        "KV/Compact",
        "Maintenance/Defragment",
        "Maintenance/Hash",
        "Maintenance/HashKV",
        "Maintenance/Snapshot",
        "Maintenance/MoveLeader",
        "Cluster/MemberAdd",
        "Cluster/MemberRemove",
        "Cluster/MemberPromote",
        "Auth/UserList",
        "Auth/RoleList",
    )
)
_FOR_USERS = frozenset(
    f"/etcdserverpb.{name}"
    for name in (
        "Lease/LeaseGrant",
        "Lease/LeaseTimeToLive",
        "Lease/LeaseLeases",
        "Lease/LeaseKeepAlive",
        "Cluster/MemberList",
        "Maintenance/Status",
        "Maintenance/Alarm",
        "Auth/UserGet",
        "Auth/RoleGet",
    )
)
"""Some of these also need a permission on the keys of a lease, or the root role."""

Permits = Callable[[State], bool]


class Judge:
    """Judges the calls that clients made with their badges (their credentials)."""

    __slots__ = ("_auditor", "_ledger", "_logins", "_passwords", "_token_seconds")

    def __init__(self, users: Users, auditor: Auditor) -> None:
        self._auditor = auditor
        self._ledger: Ledger = auditor.ledger
        self._token_seconds = users.realm.token_seconds
        # When the login started that gave a token.
        self._logins = {
            etcd.AuthenticateResponse.FromString(visit.result).token: visit.started
            for visit in users.visits
            if visit.path == LOGIN_PATH and isinstance(visit.result, bytes)
        }
        self._passwords: dict[tuple[str, bytes], bool] = {}

    def judge(self, visit: Visit) -> None:
        """Raise Violation if no state explains the answer."""
        if visit.path == LOGIN_PATH:
            is_explained = self._is_login_explained(visit)
        elif visit.path in _ENTRIES and not _is_read(visit):
            is_explained = self._is_entry_explained(visit)
        elif visit.path in _FOR_ADMINISTRATORS:
            is_explained = self._is_explained(
                visit, False, lambda state: _administers(state, visit)
            )
        elif visit.path in _FOR_USERS:
            is_explained = self._is_explained(visit, False, lambda _: True)
        elif (wanted := _read_by(visit)) is not None:
            is_explained = self._is_explained(
                visit, wanted[0], lambda state: _permits(state, visit.user, wanted[1])
            )
        else:
            return
        if not is_explained:
            told = visit.result.text if isinstance(visit.result, Status) else "an answer"
            kind = visit.path.rpartition("/")[2]
            raise Violation(
                GUARANTEE,
                f"{visit.badge}, which is {visit.user or 'nobody'} by {visit.token}, was given "
                f"{told!r} to {kind} between {visit.started:.6f} and {visit.finished:.6f}, "
                f"entries {visit.applied}, {visit.since} and {visit.until}",
                visit.badge,
            )

    def _states(self, visit: Visit, *, is_current: bool = False) -> list[State]:
        """Return the states a call may have met; from its start on if its answer is current."""
        first = visit.since if is_current else min(visit.applied, visit.since)
        return self._ledger.states(first, visit.until)

    # Requests that the member judges when it receives them.

    def _is_explained(self, visit: Visit, is_current: bool, permits: Permits) -> bool:
        if isinstance(visit.result, Status):
            return self._is_refusal_explained(visit, visit.result.text, permits)
        return any(
            not state.is_enabled or (_is_token_valid(state, visit) and permits(state))
            for state in self._states(visit, is_current=is_current)
        )

    def _is_refusal_explained(self, visit: Visit, text: str, permits: Permits) -> bool:
        states = self._states(visit)
        if text == TOKEN:
            return self._is_token_bad(visit)
        if text == EMPTY:
            return _has_no_user(states, visit)
        if text == OLD:
            return len({state.revision for state in states}) > 1
        if text == NO_USER:
            asked = {visit.user}
            if visit.path.endswith("/UserGet"):
                asked.add(etcd.AuthUserGetRequest.FromString(visit.payload).name)
            return any(asked - state.users.keys() for state in states)
        if text == DENIED:
            # This check does not know whether a lease has keys of others.
            is_about_leases = visit.path in _FOR_USERS
            return any(
                state.is_enabled
                and permissions.ROOT not in _roles(state, visit)
                and (is_about_leases or not permits(state))
                for state in states
            )
        return True

    def _is_token_bad(self, visit: Visit) -> bool:
        """Return whether the member that got a token may not know it."""
        if visit.is_proxied:
            # The check cannot see which process was asked, and a new process knows no tokens.
            return visit.token is not None
        if visit.token is None or visit.machine is None:
            return False
        made_at = index_of(visit.token)
        first = max(min(visit.applied, visit.since), made_at)
        has_ended = any(
            visit.token not in state.tokens for state in self._ledger.states(first, visit.until)
        )
        process = (visit.machine.number, visit.incarnation)
        ran_out = visit.finished - self._logins.get(visit.token, 0.0) >= self._token_seconds
        waited = visit.finished - visit.started >= visit.machine.config.request_seconds_max
        return has_ended or ran_out or waited or not self._auditor.has_applied(process, made_at)

    # Requests that members judge when they apply them.

    def _is_entry_explained(self, visit: Visit) -> bool:
        refusal = visit.result.text if isinstance(visit.result, Status) else None
        kind, message = _ENTRIES[visit.path]
        if refusal == TOKEN:
            return self._is_token_bad(visit)
        if refusal == EMPTY and _has_no_user(self._states(visit), visit):
            return True
        if refusal is not None and refusal not in _EXPLAINED_REFUSALS:
            return True
        request = message.FromString(visit.payload)
        return any(
            entry.refusal == refusal
            and visit.since < entry.index <= visit.until
            and entry.user in ("", visit.user)
            for entry in self._entries(kind, request)
        )

    def _entries(self, kind: str, request: Any) -> Iterable[Entry]:
        """Return the entries of a request; with a password, by name: entries hold its hash."""
        if not hasattr(request, "hashedPassword"):
            return self._ledger.entries.get((kind, request.SerializeToString()), ())
        return [
            entry
            for (of, _), entries in self._ledger.entries.items()
            for entry in entries
            if of == kind and entry.request.name == request.name
        ]

    # Logins.

    def _is_login_explained(self, visit: Visit) -> bool:
        request = etcd.AuthenticateRequest.FromString(visit.payload)
        states = self._ledger.states(visit.since, visit.until)
        if isinstance(visit.result, bytes):
            token = etcd.AuthenticateResponse.FromString(visit.result).token
            index = index_of(token)
            state = self._ledger.state_at(index)
            return (
                visit.since < index <= visit.until
                and state.tokens.get(token) == request.name
                and self._is_password(state, request)
            )
        assert visit.result is not None
        if visit.result.text == NOT_ENABLED:
            return any(not state.is_enabled for state in states)
        if visit.result.text == FAILED:
            return any(not self._is_password(state, request) for state in states)
        return True

    def _is_password(self, state: State, request: etcd.AuthenticateRequest) -> bool:
        user = state.users.get(request.name)
        if user is None or not user.has_password:
            return False
        of = request.password, user.password
        if of not in self._passwords:
            self._passwords[of] = bcrypt.checkpw(request.password.encode(), user.password)
        return self._passwords[of]


_EXPLAINED_REFUSALS = frozenset(
    (
        *REFUSALS,
        permissions.USER_EXISTS,
        permissions.NO_ROLE,
        permissions.ROLE_EXISTS,
        permissions.NOT_GRANTED,
        permissions.NOT_PERMITTED,
        permissions.NOT_MANAGEABLE,
        permissions.NO_ROOT_USER,
        permissions.NO_ROOT_ROLE,
    )
)
"""Refusals that only an entry gives; other refusals have nothing to do with users."""


def _is_token_valid(state: State, visit: Visit) -> bool:
    """Return whether the token that the caller showed is the user's."""
    return visit.token is not None and state.tokens.get(visit.token) == visit.user


def _has_no_user(states: list[State], visit: Visit) -> bool:
    """Return whether a caller may count as nobody: it showed no token, or none was needed."""
    may_be_nobody = visit.token is None or any(not state.is_enabled for state in states)
    return may_be_nobody and any(state.is_enabled for state in states)


def _roles(state: State, visit: Visit) -> tuple[str, ...]:
    return state.users[visit.user].roles if visit.user in state.users else ()


def _administers(state: State, visit: Visit) -> bool:
    return state.admin_refusal(visit.user, state.revision) is None


def _permits(state: State, user: str, wanted: list[Wanted]) -> bool:
    return all(
        state.keys_refusal(user, state.revision, key, end, is_write=is_write) is None
        for key, end, is_write in wanted
    )


def _is_read(visit: Visit) -> bool:
    """Return whether a transaction only reads, and so needs no entry."""
    if not visit.path.endswith("/Txn"):
        return False
    request = etcd.TxnRequest.FromString(visit.payload)
    return all(each.HasField("request_range") for each in (*request.success, *request.failure))


def _read_by(visit: Visit) -> tuple[bool, list[Wanted]] | None:
    """Return whether a read must be current, and its ranges; None if it is no read."""
    if visit.path in ("/etcdserverpb.KV/Range", "/etcdserverpb.KV/RangeStream"):
        read = etcd.RangeRequest.FromString(visit.payload)
        return not read.serializable, [(read.key, read.range_end, False)]
    if visit.path == WATCH_PATH:
        create = etcd.WatchRequest.FromString(visit.payload).create_request
        return False, [(create.key or b"\0", create.range_end, False)]
    if _is_read(visit):
        request = etcd.TxnRequest.FromString(visit.payload)
        wanted = [each for each in permissions.txn_wants(request, {}) if not isinstance(each, int)]
        return False, wanted
    return None


def check_visits(users: Users, auditor: Auditor) -> None:
    """Judge every call of every client."""
    judge = Judge(users, auditor)
    for visit in users.visits:
        judge.judge(visit)
