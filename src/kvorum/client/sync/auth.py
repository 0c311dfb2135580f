# Written by `make client` from kvorum/client/aio; change that.
"""Users, roles, and the permissions of roles."""

from typing import TYPE_CHECKING

from kvorum.client import administration
from kvorum.client.keys import Text, key_range
from kvorum.client.values import Access, AuthStatus, Permission

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class Auth:
    """Administers users, roles and permissions."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client") -> None:
        self._client = client

    def enable(self, *, timeout: float | None = None) -> None:
        """Enable authentication; a user `root` with the role `root` must exist."""
        self._client.run(administration.enable_auth(), timeout)

    def disable(self, *, timeout: float | None = None) -> None:
        """Disable authentication, so that every client may do everything."""
        self._client.run(administration.disable_auth(), timeout)

    def status(self, *, timeout: float | None = None) -> AuthStatus:
        """Return whether users have to log in."""
        return self._client.run(administration.auth_status(), timeout)

    # Users.

    def users(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all users."""
        return self._client.run(administration.users(), timeout)

    def roles_of(self, user: str, *, timeout: float | None = None) -> list[str]:
        """Return the roles of a user."""
        return self._client.run(administration.roles_of(user), timeout)

    def add_user(self, user: str, password: str | None, *, timeout: float | None = None) -> None:
        """Add a user; with None as password, only a certificate identifies the user."""
        self._client.run(administration.add_user(user, password), timeout)

    def delete_user(self, user: str, *, timeout: float | None = None) -> None:
        """Delete a user."""
        self._client.run(administration.delete_user(user), timeout)

    def change_password(self, user: str, password: str, *, timeout: float | None = None) -> None:
        """Give a user another password."""
        self._client.run(administration.change_password(user, password), timeout)

    def grant_role(self, user: str, role: str, *, timeout: float | None = None) -> None:
        """Give a user a role."""
        self._client.run(administration.grant_role(user, role), timeout)

    def revoke_role(self, user: str, role: str, *, timeout: float | None = None) -> None:
        """Take a role from a user."""
        self._client.run(administration.revoke_role(user, role), timeout)

    # Roles.

    def roles(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all roles."""
        return self._client.run(administration.roles(), timeout)

    def permissions_of(self, role: str, *, timeout: float | None = None) -> list[Permission]:
        """Return the permissions of a role."""
        return self._client.run(administration.permissions_of(role), timeout)

    def add_role(self, role: str, *, timeout: float | None = None) -> None:
        """Add a role."""
        self._client.run(administration.add_role(role), timeout)

    def delete_role(self, role: str, *, timeout: float | None = None) -> None:
        """Delete a role."""
        self._client.run(administration.delete_role(role), timeout)

    def grant(
        self,
        role: str,
        access: Access,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        timeout: float | None = None,
    ) -> None:
        """Let a role read or write keys, or both."""
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        self._client.run(administration.grant_permission(role, access, keys), timeout)

    def revoke(
        self,
        role: str,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        timeout: float | None = None,
    ) -> None:
        """Revoke the permission that a role has for exactly these keys."""
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        self._client.run(administration.revoke_permission(role, keys), timeout)
