"""Apply requests about users and roles.

While authentication is enabled, every request but Authenticate needs the role `root`; the applier
first checks it for the user that the entry names, at any auth revision. Deleting a user or changing
its password ends the user's tokens; disabling authentication ends all tokens.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kvorum.api.errors import AUTH_FAILED, AUTH_NOT_ENABLED
from kvorum.api.pb.etcdserverpb import (
    AuthDisableRequest,
    AuthEnableRequest,
    AuthenticateResponse,
    AuthRoleAddRequest,
    AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest,
    AuthUserAddRequest,
    AuthUserChangePasswordRequest,
    AuthUserDeleteRequest,
    AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest,
    InternalAuthenticateRequest,
)
from kvorum.raft.logger import log_fields
from kvorum.state.apply import requests
from kvorum.state.auth.passwords import hash_now

if TYPE_CHECKING:
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Result
    from kvorum.state.apply.state import State

    Change = Callable[[State, Any], None]
    Applier = Callable[[State, Caller, Any, bool], Result]

_OLD_COST: Final = 10

_BASE64: Final = re.compile(
    "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII
)
"""The base64 that Go accepts. Some versions of Python ignore excess padding."""


def _enable(state: State, _request: AuthEnableRequest) -> None:
    if state.auth.enable():
        state.logger.info("enabled authentication")


def _disable(state: State, _request: AuthDisableRequest) -> None:
    if state.auth.disable():
        state.tokens.forget_all()
        state.logger.info("disabled authentication")


def _add_user(state: State, request: AuthUserAddRequest) -> None:
    no_password = request.options.no_password
    hashed = b"" if no_password else _hashed(state, request)
    state.auth.add_user(request.name, hashed, no_password=no_password)
    log_fields(state.logger, "info", "added a user", user_name=request.name)


def _delete_user(state: State, request: AuthUserDeleteRequest) -> None:
    state.auth.delete_user(request.name)
    state.tokens.forget(request.name)
    log_fields(state.logger, "info", "deleted a user", user_name=request.name)


def _change_password(state: State, request: AuthUserChangePasswordRequest) -> None:
    state.auth.change_password(request.name, _hashed(state, request))
    state.tokens.forget(request.name)
    log_fields(state.logger, "info", "changed a password of a user", user_name=request.name)


def _hashed(
    state: State, request: AuthUserAddRequest | AuthUserChangePasswordRequest
) -> bytes | None:
    """Return the hash of a request's password; None if it is not in base64.

    Entries from before etcd 3.5 hold the password itself, which every member hashes alike.
    """
    if request.password and not request.hashedPassword:
        seed = f"{state.applied} {request.name}".encode()
        return hash_now(request.password, _OLD_COST, seed)
    text = request.hashedPassword.replace("\n", "").replace("\r", "")
    return base64.b64decode(text) if _BASE64.fullmatch(text) else None


def _grant_role(state: State, request: AuthUserGrantRoleRequest) -> None:
    if state.auth.grant_role(request.user, request.role):
        message, user, role = "granted a role to a user", request.user, request.role
        log_fields(state.logger, "info", message, user_name=user, added_role_name=role)


def _revoke_role(state: State, request: AuthUserRevokeRoleRequest) -> None:
    state.auth.revoke_role(request.name, request.role)
    message, user, role = "revoked a role from a user", request.name, request.role
    log_fields(state.logger, "info", message, user_name=user, revoked_role_name=role)


def _add_role(state: State, request: AuthRoleAddRequest) -> None:
    state.auth.add_role(request.name)
    log_fields(state.logger, "info", "created a role", role_name=request.name)


def _delete_role(state: State, request: AuthRoleDeleteRequest) -> None:
    state.auth.delete_role(request.role)
    log_fields(state.logger, "info", "deleted a role", role_name=request.role)


def _grant_permission(state: State, request: AuthRoleGrantPermissionRequest) -> None:
    granted = request.perm if request.HasField("perm") else None
    state.auth.grant_permission(request.name, granted)
    # etcd's log line puts the role into the field for the user.
    log_fields(
        state.logger, "info", "granted/updated a permission to a user", user_name=request.name
    )


def _revoke_permission(state: State, request: AuthRoleRevokePermissionRequest) -> None:
    state.auth.revoke_permission(request.role, request.key, request.range_end)
    log_fields(state.logger, "info", "revoked a permission on range", role_name=request.role)


def _authenticate(
    state: State, _caller: Caller, request: InternalAuthenticateRequest, _wanted: bool
) -> Result:
    """Assign the token of a user whose password the proposer has verified."""
    auth = state.auth
    if not auth.is_enabled:
        return AUTH_NOT_ENABLED
    user = auth.user(request.name)
    if user is None or user.options.no_password:
        return AUTH_FAILED
    # etcd's tokens end with the index before this entry.
    token = state.tokens.assign(request.name, request.simple_token, state.applied, state.now)
    header = state.header.field(state.store.revision)
    return header + AuthenticateResponse(token=token).SerializeToString()


def _by_administrators(change: Change) -> Applier:
    def apply(state: State, caller: Caller, request: Any, _wanted: bool) -> Result:
        refusal = state.auth.admin_refusal(caller.user)
        if refusal is not None:
            return refusal
        change(state, request)
        return state.header.field(state.store.revision)

    return apply


def _no_effect(_state: State, _caller: Caller, _request: bytes, _wanted: bool) -> Result:
    return b""


_CHANGES: Final[dict[int, tuple[Callable[[bytes], object], Change]]] = {
    requests.AUTH_ENABLE: (AuthEnableRequest.FromString, _enable),
    requests.AUTH_DISABLE: (AuthDisableRequest.FromString, _disable),
    requests.USER_ADD: (AuthUserAddRequest.FromString, _add_user),
    requests.USER_DELETE: (AuthUserDeleteRequest.FromString, _delete_user),
    requests.USER_CHANGE_PASSWORD: (AuthUserChangePasswordRequest.FromString, _change_password),
    requests.USER_GRANT_ROLE: (AuthUserGrantRoleRequest.FromString, _grant_role),
    requests.USER_REVOKE_ROLE: (AuthUserRevokeRoleRequest.FromString, _revoke_role),
    requests.ROLE_ADD: (AuthRoleAddRequest.FromString, _add_role),
    requests.ROLE_DELETE: (AuthRoleDeleteRequest.FromString, _delete_role),
    requests.ROLE_GRANT_PERMISSION: (AuthRoleGrantPermissionRequest.FromString, _grant_permission),
    requests.ROLE_REVOKE_PERMISSION: (
        AuthRoleRevokePermissionRequest.FromString,
        _revoke_permission,
    ),
}

# Reads that etcd sends through its log; members of this project answer them from local state.
_READS: Final = (
    requests.AUTH_STATUS,
    requests.USER_GET,
    requests.USER_LIST,
    requests.ROLE_GET,
    requests.ROLE_LIST,
)

APPLIERS: Final[dict[int, Applier]] = {
    **{kind: _by_administrators(change) for kind, (_, change) in _CHANGES.items()},
    requests.AUTHENTICATE: _authenticate,
    **dict.fromkeys(_READS, _no_effect),
}

DECODERS: Final[dict[int, Callable[[bytes], object]]] = {
    **{kind: decode for kind, (decode, _) in _CHANGES.items()},
    requests.AUTHENTICATE: InternalAuthenticateRequest.FromString,
    **dict.fromkeys(_READS, bytes),
}
