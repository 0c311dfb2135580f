"""Users, roles and permitted keys kept the simple way: dictionaries, lists and sets of keys."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvorum.api import errors
from kvorum.api.errors import Status

Pair = tuple[bytes, bytes]
"""A key and a range end, as in permissions and requests."""

OPEN_END = b"\0"
BYTES = (0, 1, 255)
KEYS = sorted(
    {bytes([one]) for one in BYTES} | {bytes([one, two]) for one in BYTES for two in BYTES}
)
"""Keys of one or two bytes of these: neighbours, and the next possible keys of points."""
BEYOND = b"\xff\xff\xff"
"""After all of them: permitted only where a range has no end."""
UNIVERSE = sorted(
    {each for key in KEYS for each in (key, key + b"\0", key + b"\0\0")} | {b"", BEYOND, b"\x01m"}
)

ROOT = "root"
READ, WRITE, READWRITE = 0, 1, 2


def in_permission(key: bytes, permission: Pair) -> bool:
    start, end = permission
    if not end:
        return key == start
    return key >= start and (end == OPEN_END or key < end)


def asked_of(key: bytes, range_end: bytes) -> list[bytes]:
    """Return the keys of the universe that a request asks for; of an empty range, its key."""
    if range_end == OPEN_END:
        return [each for each in UNIVERSE if each >= key]
    return [each for each in UNIVERSE if key <= each < range_end] if range_end > key else [key]


def is_permitted(permitted: Iterable[Pair], key: bytes, range_end: bytes) -> bool:
    """Return whether every key that is asked for is in a permission."""
    pairs = list(permitted)
    return all(
        any(in_permission(each, pair) for pair in pairs) for each in asked_of(key, range_end)
    )


@dataclass
class Person:
    password: bytes
    no_password: bool
    roles: list[str] = field(default_factory=list)

    def row(self, name: str) -> bytes:
        """Return its row; the options are in it even if they say nothing."""
        row = _field(1, name.encode())
        if self.password:
            row += _field(2, self.password)
        for role in self.roles:
            row += _field(3, role.encode())
        return row + _field(4, b"\x08\x01" if self.no_password else b"")


@dataclass
class Permitted:
    type: int
    key: bytes
    end: bytes

    def row(self) -> bytes:
        row = bytes([0x08, self.type]) if self.type else b""
        for number, value in ((2, self.key), (3, self.end)):
            row += _field(number, value) if value else b""
        return row


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


class Model:
    """What a store holds. Changes return the refusal, or None."""

    def __init__(self) -> None:
        self.is_enabled = False
        self.revision = 1
        self.users: dict[str, Person] = {}
        self.roles: dict[str, list[Permitted]] = {}

    def rows(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """Return the rows of users and of roles."""
        users = {name.encode(): user.row(name) for name, user in self.users.items()}
        roles = {
            name.encode(): _field(1, name.encode()) + b"".join(_field(2, each.row()) for each in of)
            for name, of in self.roles.items()
        }
        return users, roles

    # Questions, with the order of refusals of etcd's checks.

    def keys_refusal(
        self, user: str, revision: int, key: bytes, end: bytes, is_write: bool
    ) -> Status | None:
        if revision == 0:
            return errors.USER_EMPTY
        if revision < self.revision:
            return errors.AUTH_OLD_REVISION
        if user not in self.users:
            return errors.PERMISSION_DENIED
        roles = self.users[user].roles
        types = (WRITE if is_write else READ, READWRITE)
        permitted = [
            (each.key, each.end)
            for role in roles
            for each in self.roles.get(role, [])
            if each.type in types
        ]
        if ROOT in roles or is_permitted(permitted, key, end):
            return None
        return errors.PERMISSION_DENIED

    def admin_refusal(self, user: str) -> Status | None:
        if not self.is_enabled:
            return None
        if user == "":
            return errors.USER_EMPTY
        if user not in self.users:
            return errors.USER_NOT_FOUND
        return None if ROOT in self.users[user].roles else errors.PERMISSION_DENIED

    # Changes.

    def enable(self) -> Status | None:
        if self.is_enabled:
            return None
        if ROOT not in self.users:
            return errors.ROOT_USER_NOT_EXIST
        if ROOT not in self.users[ROOT].roles:
            return errors.ROOT_ROLE_NOT_EXIST
        self.is_enabled = True
        return None

    def disable(self) -> None:
        self.revision += self.is_enabled
        self.is_enabled = False

    def add_user(self, name: str, password: bytes | None, *, no_password: bool) -> Status | None:
        if name == "":
            return errors.USER_EMPTY
        if name in self.users:
            return errors.USER_ALREADY_EXIST
        if password is None:
            return errors.NO_PASSWORD_USER
        self.users[name] = Person(b"" if no_password else password, no_password)
        self.revision += 1
        return None

    def delete_user(self, name: str) -> Status | None:
        if self.is_enabled and name == ROOT:
            return errors.INVALID_AUTH_MGMT
        if name not in self.users:
            return errors.USER_NOT_FOUND
        del self.users[name]
        self.revision += 1
        return None

    def change_password(self, name: str, password: bytes | None) -> Status | None:
        if name not in self.users:
            return errors.USER_NOT_FOUND
        if password is None:
            return errors.NO_PASSWORD_USER
        user = self.users[name]
        if not user.no_password:
            user.password = password
        self.revision += 1
        return None

    def grant_role(self, name: str, role: str) -> Status | None:
        if name not in self.users:
            return errors.USER_NOT_FOUND
        if role != ROOT and role not in self.roles:
            return errors.ROLE_NOT_FOUND
        roles = self.users[name].roles
        if role not in roles:
            roles.append(role)
            roles.sort(key=str.encode)
            self.revision += 1
        return None

    def revoke_role(self, name: str, role: str) -> Status | None:
        if self.is_enabled and name == role == ROOT:
            return errors.INVALID_AUTH_MGMT
        if name not in self.users:
            return errors.USER_NOT_FOUND
        if role not in self.users[name].roles:
            return errors.ROLE_NOT_GRANTED
        self.users[name].roles.remove(role)
        self.revision += 1
        return None

    def add_role(self, name: str) -> Status | None:
        if name == "":
            return errors.ROLE_EMPTY
        if name in self.roles:
            return errors.ROLE_ALREADY_EXIST
        self.roles[name] = []
        self.revision += 1
        return None

    def delete_role(self, name: str) -> Status | None:
        if self.is_enabled and name == ROOT:
            return errors.INVALID_AUTH_MGMT
        if name not in self.roles:
            return errors.ROLE_NOT_FOUND
        del self.roles[name]
        for user in self.users.values():
            user.roles = [each for each in user.roles if each != name]
        self.revision += 1
        return None

    def grant_permission(self, name: str, granted: Permitted | None) -> Status | None:
        if granted is None:
            return errors.PERMISSION_NOT_GIVEN
        key, end = granted.key, granted.end
        is_range = end not in (b"", OPEN_END)
        if key == b"" or (is_range and end <= key):
            return errors.INVALID_AUTH_MGMT
        if name not in self.roles:
            return errors.ROLE_NOT_FOUND
        self.revision += 1
        stored = self.roles[name]
        for each in stored:
            if each.key == key:
                # Only the first with this key is looked at.
                if each.end == end:
                    each.type = granted.type
                    return None
                break
        stored.append(Permitted(granted.type, key, end))
        stored.sort(key=lambda each: each.key)
        return None

    def revoke_permission(self, name: str, key: bytes, end: bytes) -> Status | None:
        if name not in self.roles:
            return errors.ROLE_NOT_FOUND
        rest = [each for each in self.roles[name] if (each.key, each.end) != (key, end)]
        if len(rest) == len(self.roles[name]):
            return errors.PERMISSION_NOT_GRANTED
        self.roles[name] = rest
        self.revision += 1
        return None
