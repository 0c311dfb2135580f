"""The Auth service of a cluster in which authentication is disabled and nobody is registered.

There are no users and no roles, so lookups find none, and authentication cannot be enabled.
Adding users and roles is not served.
"""

from kvorum.api import errors
from kvorum.api.pb.etcdserverpb import (
    AuthDisableRequest,
    AuthEnableRequest,
    AuthenticateRequest,
    AuthRoleDeleteRequest,
    AuthRoleGetRequest,
    AuthRoleGrantPermissionRequest,
    AuthRoleListRequest,
    AuthRoleRevokePermissionRequest,
    AuthStatusRequest,
    AuthStatusResponse,
    AuthUserChangePasswordRequest,
    AuthUserDeleteRequest,
    AuthUserGetRequest,
    AuthUserGrantRoleRequest,
    AuthUserListRequest,
    AuthUserRevokeRoleRequest,
)
from kvorum.member.callers import Caller
from kvorum.member.member import Member
from kvorum.member.outbox import Result

PASSWORD_BYTES_MAX = 72
AUTH_REVISION = 1
"""The revision of a cluster in which no user and no role was ever changed."""


class Auth:
    """Answers at once: no answer here ever changes."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def _header(self) -> bytes:
        return self._member.header.field(self._member.store.revision)

    def status(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Answer that authentication is disabled."""
        AuthStatusRequest.FromString(payload)
        answer = AuthStatusResponse(enabled=False, authRevision=AUTH_REVISION)
        return self._header() + answer.SerializeToString()

    def user_change_password(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no user; a password that cannot be hashed is refused first."""
        request = AuthUserChangePasswordRequest.FromString(payload)
        if len(request.password.encode()) > PASSWORD_BYTES_MAX:
            return errors.PASSWORD_TOO_LONG
        return errors.USER_NOT_FOUND

    def role_grant_permission(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no role; an invalid permission is refused first."""
        request = AuthRoleGrantPermissionRequest.FromString(payload)
        if not request.HasField("perm"):
            return errors.PERMISSION_NOT_GIVEN
        key, range_end = request.perm.key, request.perm.range_end
        if not key or (range_end and range_end != b"\0" and range_end <= key):
            return errors.INVALID_AUTH_MGMT
        return errors.ROLE_NOT_FOUND

    def disable(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Leave authentication disabled."""
        AuthDisableRequest.FromString(payload)
        return self._header()

    def user_list(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """List no users."""
        AuthUserListRequest.FromString(payload)
        return self._header()

    def role_list(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """List no roles."""
        AuthRoleListRequest.FromString(payload)
        return self._header()

    def authenticate(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Refuse: there is nothing to authenticate for."""
        AuthenticateRequest.FromString(payload)
        return errors.AUTH_NOT_ENABLED

    def enable(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Refuse: without a user `root` nobody could disable it again."""
        AuthEnableRequest.FromString(payload)
        return errors.ROOT_USER_NOT_EXIST

    def user_get(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no user."""
        AuthUserGetRequest.FromString(payload)
        return errors.USER_NOT_FOUND

    def user_delete(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no user."""
        AuthUserDeleteRequest.FromString(payload)
        return errors.USER_NOT_FOUND

    def user_grant_role(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no user."""
        AuthUserGrantRoleRequest.FromString(payload)
        return errors.USER_NOT_FOUND

    def user_revoke_role(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no user."""
        AuthUserRevokeRoleRequest.FromString(payload)
        return errors.USER_NOT_FOUND

    def role_get(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no role."""
        AuthRoleGetRequest.FromString(payload)
        return errors.ROLE_NOT_FOUND

    def role_delete(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no role."""
        AuthRoleDeleteRequest.FromString(payload)
        return errors.ROLE_NOT_FOUND

    def role_revoke_permission(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Find no role."""
        AuthRoleRevokePermissionRequest.FromString(payload)
        return errors.ROLE_NOT_FOUND
