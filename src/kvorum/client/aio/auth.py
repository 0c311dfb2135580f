"""Users, roles, and the permissions of roles."""

from typing import TYPE_CHECKING

from kvorum.client import administration
from kvorum.client.keys import Text, key_range
from kvorum.client.values import Access, AuthStatus, Permission

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient


class AsyncAuth:
    """Administers users, roles and permissions."""

    __slots__ = ("_client",)

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def enable(self, *, timeout: float | None = None) -> None:
        """Enable authentication; a user `root` with the role `root` must exist."""
        await self._client.run(administration.enable_auth(), timeout)

    async def disable(self, *, timeout: float | None = None) -> None:
        """Disable authentication, so that every client may do everything."""
        await self._client.run(administration.disable_auth(), timeout)

    async def status(self, *, timeout: float | None = None) -> AuthStatus:
        """Return whether users have to log in."""
        return await self._client.run(administration.auth_status(), timeout)

    # Users.

    async def users(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all users."""
        return await self._client.run(administration.users(), timeout)

    async def roles_of(self, user: str, *, timeout: float | None = None) -> list[str]:
        """Return the roles of a user."""
        return await self._client.run(administration.roles_of(user), timeout)

    async def add_user(
        self, user: str, password: str | None, *, timeout: float | None = None
    ) -> None:
        """Add a user; with None as password, only a certificate identifies the user."""
        await self._client.run(administration.add_user(user, password), timeout)

    async def delete_user(self, user: str, *, timeout: float | None = None) -> None:
        """Delete a user."""
        await self._client.run(administration.delete_user(user), timeout)

    async def change_password(
        self, user: str, password: str, *, timeout: float | None = None
    ) -> None:
        """Give a user another password."""
        await self._client.run(administration.change_password(user, password), timeout)

    async def grant_role(self, user: str, role: str, *, timeout: float | None = None) -> None:
        """Give a user a role."""
        await self._client.run(administration.grant_role(user, role), timeout)

    async def revoke_role(self, user: str, role: str, *, timeout: float | None = None) -> None:
        """Take a role from a user."""
        await self._client.run(administration.revoke_role(user, role), timeout)

    # Roles.

    async def roles(self, *, timeout: float | None = None) -> list[str]:
        """Return the names of all roles."""
        return await self._client.run(administration.roles(), timeout)

    async def permissions_of(self, role: str, *, timeout: float | None = None) -> list[Permission]:
        """Return the permissions of a role."""
        return await self._client.run(administration.permissions_of(role), timeout)

    async def add_role(self, role: str, *, timeout: float | None = None) -> None:
        """Add a role."""
        await self._client.run(administration.add_role(role), timeout)

    async def delete_role(self, role: str, *, timeout: float | None = None) -> None:
        """Delete a role."""
        await self._client.run(administration.delete_role(role), timeout)

    async def grant(
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
        await self._client.run(administration.grant_permission(role, access, keys), timeout)

    async def revoke(
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
        await self._client.run(administration.revoke_permission(role, keys), timeout)
