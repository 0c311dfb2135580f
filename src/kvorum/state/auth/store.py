"""The replicated store of users, roles and permissions, alike on every member.

Only entries change the store, and each successful change but `enable` increments its revision. A
caller is a user at a revision. Checks of keys refuse a caller with an older revision, because its
permissions may have changed. Checks return the status that refuses, or None; a change that raises
StatusError has changed nothing.

The role `root` permits everything. It is a name in a user's list: the role itself need not exist.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from kvorum.api import errors
from kvorum.api.coverage import reach
from kvorum.api.errors import Status, StatusError
from kvorum.api.pb.authpb import Permission, Role, User
from kvorum.state.auth.ranges import OPEN_END, KeyRanges
from kvorum.state.auth.rows import decoded, encoded
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.buckets import AUTH, AUTH_ENABLED, AUTH_REVISION, AUTH_ROLES, AUTH_USERS

ROOT: Final = "root"
"""The name of the user that cannot be removed while authentication is enabled, and of its role."""

FIRST_REVISION: Final = 1
"""The revision of a store without any change; it need not be stored."""

_READS: Final = (Permission.READ, Permission.READWRITE)
_WRITES: Final = (Permission.WRITE, Permission.READWRITE)


class Rights:
    """A user's permissions."""

    __slots__ = ("is_root", "reads", "writes")

    def __init__(self, is_root: bool, reads: KeyRanges, writes: KeyRanges) -> None:
        self.is_root = is_root
        self.reads = reads
        self.writes = writes


class AuthStore:
    """The users and roles of a cluster, and whether authentication is enabled."""

    __slots__ = ("_backend", "_rights", "_roles", "_users", "is_enabled", "revision")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.is_enabled = False
        """Whether authentication is enabled."""
        self.revision = FIRST_REVISION
        """A counter of changes, except of `enable`."""
        self._users: dict[str, User] = {}
        self._roles: dict[str, Role] = {}
        # A cache that every change of the revision clears.
        self._rights: dict[str, Rights] = {}

    def restore(self) -> None:
        """Read users and roles from the storage."""
        rows = dict(self._backend.items(AUTH))
        self.is_enabled = rows.get(AUTH_ENABLED) == b"\x01"
        self.revision = int.from_bytes(rows.get(AUTH_REVISION, b""), "big") or FIRST_REVISION
        self._users = {
            _text(key): decoded(User, AUTH_USERS, key, value)
            for key, value in self._backend.items(AUTH_USERS)
        }
        self._roles = {
            _text(key): decoded(Role, AUTH_ROLES, key, value)
            for key, value in self._backend.items(AUTH_ROLES)
        }
        self._rights = {}

    # Checks.

    def keys_refusal(
        self, user: str, revision: int, key: bytes, range_end: bytes, is_write: bool
    ) -> Status | None:
        """Check whether a user at a revision may read or write a range of keys."""
        if not revision:
            return errors.USER_EMPTY
        if revision < self.revision:
            reach("caller of an old revision")
            return errors.AUTH_OLD_REVISION
        rights = self._rights.get(user) or self._computed(user)
        if rights is None:
            return errors.PERMISSION_DENIED
        if rights.is_root or (rights.writes if is_write else rights.reads).permits(key, range_end):
            return None
        return errors.PERMISSION_DENIED

    def admin_refusal(self, user: str) -> Status | None:
        """Check whether a user has the role `root`, at any revision."""
        if not self.is_enabled:
            return None
        if not user:
            return errors.USER_EMPTY
        known = self._users.get(user)
        if known is None:
            return errors.USER_NOT_FOUND
        return None if ROOT in known.roles else errors.PERMISSION_DENIED

    def is_all_permitted(self, user: str, revision: int) -> bool:
        """Return whether a user has the role `root`, at a revision that is not outdated."""
        if revision < self.revision:
            return False
        rights = self._rights.get(user) or self._computed(user)
        return rights is not None and rights.is_root

    def _computed(self, user: str) -> Rights | None:
        known = self._users.get(user)
        if known is None:
            return None
        permissions = [
            each
            for name in known.roles
            if name in self._roles
            for each in self._roles[name].keyPermission
        ]
        rights = Rights(
            ROOT in known.roles, _ranges(permissions, _READS), _ranges(permissions, _WRITES)
        )
        self._rights[user] = rights
        return rights

    # Queries.

    @property
    def users(self) -> list[str]:
        """The names of all users, in the order of their bytes."""
        return sorted(self._users, key=_bytes)

    @property
    def roles(self) -> list[str]:
        """The names of all roles, in the order of their bytes."""
        return sorted(self._roles, key=_bytes)

    def user(self, name: str) -> User | None:
        """Return a user, which the caller must not change."""
        return self._users.get(name)

    def role(self, name: str) -> Role | None:
        """Return a role, which the caller must not change."""
        return self._roles.get(name)

    def permissions(self, name: str) -> Iterable[Permission]:
        """Return a role's permissions; raises StatusError if the role does not exist."""
        role = self._role(name)
        if name == ROOT:
            return [Permission(permType=Permission.READWRITE, range_end=OPEN_END)]
        return role.keyPermission

    # Changes.

    def enable(self) -> bool:
        """Enable authentication; return whether it was disabled.

        Raises StatusError without a user `root` that has the role `root`.
        """
        if self.is_enabled:
            return False
        root = self._users.get(ROOT)
        if root is None:
            raise StatusError(errors.ROOT_USER_NOT_EXIST)
        if ROOT not in root.roles:
            raise StatusError(errors.ROOT_ROLE_NOT_EXIST)
        self.is_enabled = True
        self._backend.put(AUTH, AUTH_ENABLED, b"\x01")
        return True

    def disable(self) -> bool:
        """Disable authentication; return whether it was enabled."""
        if not self.is_enabled:
            return False
        self.is_enabled = False
        self._backend.put(AUTH, AUTH_ENABLED, b"\x00")
        self._changed()
        return True

    def add_user(self, name: str, password: bytes | None, *, no_password: bool) -> None:
        """Add a user with a password's hash, or without a password; refuse None as the hash."""
        if not name:
            raise StatusError(errors.USER_EMPTY)
        if name in self._users:
            raise StatusError(errors.USER_ALREADY_EXIST)
        if password is None:
            raise StatusError(errors.NO_PASSWORD_USER)
        user = User(name=_bytes(name), password=b"" if no_password else password)
        user.options.no_password = no_password
        self._keep_user(name, user)

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        if self.is_enabled and name == ROOT:
            raise StatusError(errors.INVALID_AUTH_MGMT)
        self._user(name)
        del self._users[name]
        self._backend.delete(AUTH_USERS, _bytes(name))
        self._changed()

    def change_password(self, name: str, password: bytes | None) -> None:
        """Give a user another password; a user without a password stays without one.

        The hash is as in `add_user`.
        """
        user = self._changeable_user(name)
        if password is None:
            raise StatusError(errors.NO_PASSWORD_USER)
        user.password = b"" if user.options.no_password else password
        self._keep_user(name, user)

    def grant_role(self, name: str, role: str) -> bool:
        """Give a user a role; return whether it did not have it."""
        user = self._changeable_user(name)
        if role != ROOT:
            self._role(role)
        if role in user.roles:
            return False
        user.roles[:] = sorted([*user.roles, role], key=_bytes)
        self._keep_user(name, user)
        return True

    def revoke_role(self, name: str, role: str) -> None:
        """Take a role from a user; the role itself need not exist."""
        if self.is_enabled and name == ROOT and role == ROOT:
            raise StatusError(errors.INVALID_AUTH_MGMT)
        user = self._changeable_user(name)
        if role not in user.roles:
            raise StatusError(errors.ROLE_NOT_GRANTED)
        user.roles[:] = [each for each in user.roles if each != role]
        self._keep_user(name, user)

    def add_role(self, name: str) -> None:
        """Add a role that permits nothing."""
        if not name:
            raise StatusError(errors.ROLE_EMPTY)
        if name in self._roles:
            raise StatusError(errors.ROLE_ALREADY_EXIST)
        self._keep_role(name, Role(name=_bytes(name)))

    def delete_role(self, name: str) -> None:
        """Remove a role, and revoke it from every user."""
        if self.is_enabled and name == ROOT:
            raise StatusError(errors.INVALID_AUTH_MGMT)
        self._role(name)
        del self._roles[name]
        self._backend.delete(AUTH_ROLES, _bytes(name))
        for user_name in [each for each, user in self._users.items() if name in user.roles]:
            user = self._changeable_user(user_name)
            user.roles[:] = [each for each in user.roles if each != name]
            self._users[user_name] = user
            self._backend.put(AUTH_USERS, _bytes(user_name), encoded(user))
        self._changed()

    def grant_permission(self, name: str, granted: Permission | None) -> None:
        """Grant a role a permission; increment the revision even if the role already has it.

        Of several permissions with the same key only the first counts, as in etcd: if its range
        end differs, the role gets another permission, whatever the others are.
        """
        if granted is None:
            raise StatusError(errors.PERMISSION_NOT_GIVEN)
        key, range_end = granted.key, granted.range_end
        if not key or (range_end and range_end != OPEN_END and range_end <= key):
            raise StatusError(errors.INVALID_AUTH_MGMT)
        role = Role()
        role.CopyFrom(self._role(name))
        permissions = role.keyPermission
        place = bisect_left(permissions, key, key=_key)
        is_known = place < len(permissions) and permissions[place].key == key
        if is_known and permissions[place].range_end == range_end:
            permissions[place].permType = granted.permType
        else:
            kept = Permission(permType=granted.permType, key=key, range_end=range_end)
            ordered = sorted([*permissions, kept], key=_key)
            del role.keyPermission[:]
            role.keyPermission.extend(ordered)
        self._keep_role(name, role)

    def revoke_permission(self, name: str, key: bytes, range_end: bytes) -> None:
        """Revoke a role's permissions for exactly this range."""
        before = self._role(name)
        rest = [
            each for each in before.keyPermission if (each.key, each.range_end) != (key, range_end)
        ]
        if len(rest) == len(before.keyPermission):
            raise StatusError(errors.PERMISSION_NOT_GRANTED)
        role = Role()
        role.CopyFrom(before)
        del role.keyPermission[:]
        role.keyPermission.extend(rest)
        self._keep_role(name, role)

    def _user(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise StatusError(errors.USER_NOT_FOUND)
        return user

    def _changeable_user(self, name: str) -> User:
        """Return a copy, so that readers of the current user see no change."""
        user = User()
        user.CopyFrom(self._user(name))
        return user

    def _role(self, name: str) -> Role:
        role = self._roles.get(name)
        if role is None:
            raise StatusError(errors.ROLE_NOT_FOUND)
        return role

    def _keep_user(self, name: str, user: User) -> None:
        self._users[name] = user
        self._backend.put(AUTH_USERS, _bytes(name), encoded(user))
        self._changed()

    def _keep_role(self, name: str, role: Role) -> None:
        self._roles[name] = role
        self._backend.put(AUTH_ROLES, _bytes(name), encoded(role))
        self._changed()

    def _changed(self) -> None:
        self.revision += 1
        self._backend.put(AUTH, AUTH_REVISION, self.revision.to_bytes(8, "big"))
        self._rights = {}


def _key(permission: Permission) -> bytes:
    return permission.key


def _ranges(permissions: Iterable[Permission], types: tuple[int, ...]) -> KeyRanges:
    return KeyRanges((each.key, each.range_end) for each in permissions if each.permType in types)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
