"""Administrators: clients that create users and roles, enable authentication, and change both.

Together they first complete a setup, repeating each request until it succeeds. Afterwards they send
random requests, possible or not: they create and delete roles and permissions, change passwords,
remove users and add them again, and disable authentication for a while.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.etcdserverpb import (
    AuthDisableRequest,
    AuthEnableRequest,
    AuthRoleAddRequest,
    AuthRoleDeleteRequest,
    AuthRoleGetRequest,
    AuthRoleGrantPermissionRequest,
    AuthRoleListRequest,
    AuthRoleRevokePermissionRequest,
    AuthStatusRequest,
    AuthUserAddRequest,
    AuthUserChangePasswordRequest,
    AuthUserDeleteRequest,
    AuthUserGetRequest,
    AuthUserGrantRoleRequest,
    AuthUserListRequest,
    AuthUserRevokeRoleRequest,
)
from kvorum.sim.calls import Caller, PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.permissions import NO_ROLE, NO_USER, ROLE_EXISTS, ROOT, USER_EXISTS
from kvorum.sim.users import GHOST, WIDE, Users
from kvorum.sim.world import World

FIRST_NUMBER = 4000
PATIENCE = (0.5, 3.0)
SHORT_PATIENCE = (0.3, 1.0)
TRIES_MAX = 10
"""Answers NO_USER or NO_ROLE after which a request is dropped: the name may be gone for good."""
KNOWN_CHANCE = 0.8
"""The chance that a request to revoke names a permission or role that is granted."""
ROOT_CHANCE = 0.2
"""The chance that a password change is for `root`."""
EARLY_CHANCE = 0.7
"""The chance that authentication is enabled as soon as `root` exists, before the rest of setup."""
AGAIN_SECONDS = 0.02
DISABLED_SECONDS = (0.05, 0.5)
ALL = (b"\0", b"\0")
_RANGES = (
    (b"k/", b"k0"),
    (b"k/", b"k0"),
    (b"k/00", b"k/03"),
    (b"k/02", b"k/06"),
    (b"k/03", b"k0"),
    (b"k/01", b""),
    (b"k/05", b"\0"),
    (b"/registry/pods/", b"/registry/pods0"),
    (b"/registry/pods/00", b"/registry/pods/04"),
    (b"s/", b"s0"),
    (b"s/10", b"s/40"),
    (b"lock/", b"lock0"),
    (b"election/", b"election0"),
    ALL,
)
"""Ranges to grant: overlapping, adjacent and nested ones, a single key, and open ends."""
_TYPES = (Permission.READ, Permission.WRITE, Permission.READWRITE)
_KINDS = (
    ("grant", 5.0),
    ("revoke", 3.0),
    ("give", 5.0),
    ("take", 2.0),
    ("password", 1.5),
    ("delete user", 1.0),
    ("delete role", 0.5),
    ("forbidden", 0.5),
    ("question", 1.0),
)

Wanted = deque[list[Any]]
"""Lists of requests that must succeed; requests of one list are sent in order."""


class Administrator:
    """One administrator, which sends requests until `stop`."""

    __slots__ = (
        "_asked",
        "_caller",
        "_chain",
        "_random",
        "_tries",
        "_users",
        "_wanted",
        "_world",
        "is_stopped",
        "name",
    )

    def __init__(
        self, world: World, users: Users, history: History, number: int, wanted: Wanted
    ) -> None:
        self.name = f"a{number}"
        self._world = world
        self._users = users
        self._random: Random = world.stream(f"administrator {number}")
        badge = users.badge(self.name, ROOT)
        self._caller = Caller(world, badge, history, FIRST_NUMBER + number, self.name)
        self._caller.roams = 1.0
        # All administrators share `_wanted`. `_chain` is this one's list: its first request is
        # repeated until it succeeds.
        self._wanted = wanted
        self._chain: deque[Any] = deque()
        self._tries = 0
        self._asked: Any = None
        self.is_stopped = False
        if number == 1:
            self._set_up()

    def start(self) -> None:
        """Send the first request at once: users exist early in a run."""
        self._world.after(self._random.uniform(0.0, 0.1), self._next)

    def stop(self) -> None:
        """Send no more requests, and stop waiting for an answer."""
        self.is_stopped = True
        self._caller.abandon()

    # Choosing requests.

    def _roles(self) -> list[str]:
        return [f"r{number}" for number in range(1, self._users.realm.roles + 1)]

    def _set_up(self) -> None:
        """Queue the requests that create the first users, roles and permissions."""
        random = self._random
        self._chain += [self._added(ROOT), AuthUserGrantRoleRequest(user=ROOT, role=ROOT)]
        wide = AuthRoleGrantPermissionRequest(
            name=WIDE, perm=_permission(Permission.READWRITE, ALL)
        )
        chains = [[AuthRoleAddRequest(name=WIDE), wide, *self._anew(WIDE, [WIDE])]]
        chains += [self._anew(name, []) for name in self._users.realm.names]
        for role in self._roles():
            grants = [self._grant(role) for _ in range(random.randint(1, 2))]
            chains.append([AuthRoleAddRequest(name=role), *grants])
        for name in self._users.realm.names:
            given = random.sample(self._roles(), random.randint(1, len(self._roles())))
            chains.append([AuthUserGrantRoleRequest(user=name, role=role) for role in given])
        # Mostly authentication is enabled before the setup is complete.
        if random.random() < EARLY_CHANCE:
            self._chain.append(AuthEnableRequest())
        else:
            chains.append([AuthEnableRequest()])
        self._wanted += chains

    def _added(self, name: str) -> AuthUserAddRequest:
        return AuthUserAddRequest(name=name, password=self._users.new_password(name))

    def _anew(self, name: str, roles: list[str]) -> list[Any]:
        return [
            self._added(name),
            *(AuthUserGrantRoleRequest(user=name, role=role) for role in sorted(roles)),
        ]

    def _grant(self, role: str) -> AuthRoleGrantPermissionRequest:
        perm = _permission(self._random.choice(_TYPES), self._random.choice(_RANGES))
        return AuthRoleGrantPermissionRequest(name=role, perm=perm)

    def _name(self) -> str:
        """Return a user to change; seldom `WIDE`, as which most clients act."""
        names = self._users.realm.names
        return self._random.choice([*names, *names, *names, WIDE])

    def _drawn(self) -> Any:
        """Return a random request."""
        random = self._random
        if random.random() < self._users.realm.disable_chance:
            self._world.after(random.uniform(*DISABLED_SECONDS), self._want, AuthEnableRequest())
            return AuthDisableRequest()
        kind = random.choices([name for name, _ in _KINDS], [weight for _, weight in _KINDS])[0]
        role, name = random.choice(self._roles()), self._name()
        if kind == "grant":
            return self._grant(role)
        if kind == "revoke":
            return self._revoked(role)
        if kind == "give":
            return AuthUserGrantRoleRequest(user=name, role=WIDE if name == WIDE else role)
        if kind == "take":
            return self._taken(name, role)
        if kind == "password":
            name = ROOT if random.random() < ROOT_CHANCE else name
            password = self._users.new_password(name)
            return AuthUserChangePasswordRequest(name=name, password=password)
        if kind == "delete user":
            self._wanted.append(self._anew(name, [WIDE] if name == WIDE else [role]))
            return AuthUserDeleteRequest(name=name)
        if kind == "delete role":
            self._wanted.append([AuthRoleAddRequest(name=role), self._grant(role)])
            return AuthRoleDeleteRequest(role=role)
        if kind == "forbidden":
            return random.choice(
                [
                    AuthUserRevokeRoleRequest(name=GHOST, role=role),
                    AuthUserGrantRoleRequest(user=name, role=GHOST),
                    AuthUserAddRequest(name=name, options={"no_password": True}),
                ]
            )
        return random.choice(
            [
                AuthStatusRequest(),
                AuthUserListRequest(),
                AuthRoleListRequest(),
                AuthUserGetRequest(name=name),
                AuthRoleGetRequest(role=role),
            ]
        )

    def _revoked(self, role: str) -> AuthRoleRevokePermissionRequest:
        """Return a request to revoke a permission, mostly one that is granted."""
        random, ledger = self._random, self._users.ledger
        granted = ledger.state_at(ledger.last).roles.get(role, ())
        key, end = random.choice(_RANGES)
        if granted and random.random() < KNOWN_CHANCE:
            _, key, end = random.choice(granted)
        return AuthRoleRevokePermissionRequest(role=role, key=key, range_end=end)

    def _taken(self, name: str, role: str) -> AuthUserRevokeRoleRequest:
        """Return a request to take a role from a user, mostly one that it has."""
        random, ledger = self._random, self._users.ledger
        user = ledger.state_at(ledger.last).users.get(name)
        if user is not None and user.roles and random.random() < KNOWN_CHANCE:
            role = random.choice(user.roles)
        return AuthUserRevokeRoleRequest(name=name, role=role)

    def _want(self, request: Any) -> None:
        self._wanted.appendleft([request])

    # Sending requests one after the other.

    def _next(self) -> None:
        if self.is_stopped:
            return
        if not self._chain and self._wanted:
            self._chain += self._wanted.popleft()
        if self._chain:
            self._asked = self._chain[0]
            self._ask(self._tried, SHORT_PATIENCE)
        else:
            self._asked = self._drawn()
            self._ask(self._answered, PATIENCE)

    def _ask(self, then: Callable[[Record], None], patience: tuple[float, float]) -> None:
        kind = type(self._asked).__name__.removeprefix("Auth").removesuffix("Request")
        asked = PlannedRequest(kind.lower(), self._asked)
        self._caller.ask(asked, self._random.uniform(*patience), then)

    def _tried(self, record: Record) -> None:
        """Repeat a request of the setup, unless it succeeded, is not needed or seems impossible."""
        text = getattr(record.response, "text", "")
        self._tries += text in (NO_USER, NO_ROLE)
        is_done = record.is_answered or text in (USER_EXISTS, ROLE_EXISTS)
        if is_done or self._tries > TRIES_MAX:
            self._chain.popleft()
            self._tries = 0
        self._world.after(AGAIN_SECONDS * self._random.random(), self._next)

    def _answered(self, _record: Record) -> None:
        gap = self._users.realm.change_gap
        self._world.after(self._random.expovariate(1 / gap), self._next)


def _permission(kind: int, keys: tuple[bytes, bytes]) -> Permission:
    key, end = keys
    return Permission(permType=kind, key=key, range_end=end)  # type: ignore[arg-type]
