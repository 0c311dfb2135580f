"""The users as which clients call: with passwords and tokens, some without either.

Every call of every client passes the client's badge, which shows the token it has. Where a member
does not know that token, or wants one, the badge logs in through some member, and shows the new one
from then on; the client may repeat the call that was refused. Badges record the token, the request
and the answer of every call, and the judge compares them with the ledger after the run.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import AuthenticateRequest, AuthenticateResponse, WatchResponse
from kvorum.network.edge.interface import Metadata
from kvorum.proxy.freshness import FRESH_SECONDS
from kvorum.sim.arrivals import REFUSED
from kvorum.sim.calls import CallsWithMetadata
from kvorum.sim.ledger import Ledger
from kvorum.sim.permissions import EMPTY, FAILED, REFUSALS, ROOT, TOKEN
from kvorum.sim.world import World

if TYPE_CHECKING:
    from kvorum.sim.cluster import Cluster

CHANCE = 0.25
LOGIN_PATH = "/etcdserverpb.Auth/Authenticate"
WATCH_PATH = "/etcdserverpb.Watch/Watch"
LOGIN_SECONDS = 3.0
"""How long a badge waits for a login."""
NOBODY = ""
"""The user of clients that never show a token."""
WIDE = "wide"
"""A user that may read and write all keys most of the time."""
GHOST = "ghost"
"""A name that no user has."""

UNKNOWN = -1
_SHARES = (0.1, 0.3, 0.55, 0.02, 0.03)
"""The shares of clients that are `root`, `wide`, one of the others, a ghost, and nobody."""
_WORDS = (("token", ""), ("token", "Bearer "), ("authorization", ""), ("authorization", "Bearer "))

Answered = Callable[[bytes | Status | None], None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Realm:
    """The users of a run, and how often something about them changes."""

    users: int
    """How many there are besides `root` and `wide`."""
    roles: int
    administrators: int
    change_gap: float
    """Average time between two requests of an administrator."""
    disable_chance: float
    """The chance that an administrator's request disables authentication, for a while."""
    token_seconds: float
    """How long tokens last after their last use."""
    password_error_chance: float
    """The chance that a job that hashes or checks a password fails."""

    @property
    def names(self) -> list[str]:
        """The users that administrators remove and add again."""
        return [f"u{number}" for number in range(1, self.users + 1)]


def draw_realm(random: Random) -> Realm | None:
    """Return the users of a run; None, in most runs, if there are none."""
    if random.random() >= CHANCE:
        return None
    return Realm(
        users=random.randint(1, 4),
        roles=random.randint(1, 4),
        administrators=random.randint(2, 3),
        change_gap=random.choice([0.02, 0.05, 0.15]),
        disable_chance=random.choice([0.0, 0.05, 0.1]),
        token_seconds=random.choice([300.0, 300.0, 1.5]),
        password_error_chance=random.choice([0.0, 0.0, 0.1]),
    )


class Visit:
    """A call with a badge: its token, its request and its answer."""

    __slots__ = (
        "applied",
        "badge",
        "finished",
        "incarnation",
        "is_proxied",
        "machine",
        "path",
        "payload",
        "result",
        "since",
        "started",
        "token",
        "until",
        "user",
    )

    def __init__(self, badge: "Badge", member: int, path: str, payload: bytes) -> None:
        users = badge.users
        self.badge = badge.name
        self.user = badge.user
        self.token = badge.token
        self.path = path
        self.payload = payload
        # The last entry known to be committed at the request, and at the answer.
        self.since = users.ledger.last
        self.until = 0
        self.machine = users.cluster.machines.get(member)
        self.is_proxied = member in users.cluster.proxies
        there = None if self.machine is None else self.machine.member
        self.applied = 0 if there is None else there.state.applied
        self.incarnation = 0 if self.machine is None else self.machine.incarnation
        if self.is_proxied:
            # Any member may answer, or have answered before.
            self.applied = users.least.applied()
            self.incarnation = users.least.incarnations
        self.started = self.finished = users.world.now
        # The answer, or the first message of a stream; None if there was none.
        self.result: bytes | Status | None = None

    def end(self, users: "Users", result: bytes | Status) -> None:
        """Record the answer."""
        self.result, self.until, self.finished = result, users.ledger.last, users.world.now
        is_other = self.machine is not None and self.machine.incarnation != self.incarnation
        if is_other or (self.is_proxied and users.least.incarnations != self.incarnation):
            # Any process may have answered, with any applied index.
            self.applied, self.incarnation = 0, UNKNOWN
        users.visits.append(self)


class Least:
    """The least applied index of the members whose answers a proxy may still give."""

    __slots__ = ("_cluster", "_known", "_world")

    def __init__(self, world: World, cluster: "Cluster") -> None:
        self._world = world
        self._cluster = cluster
        # Samples: the time, the least applied index of all members, and which processes ran.
        self._known: deque[tuple[float, int, int]] = deque()

    @property
    def incarnations(self) -> int:
        """A number that changes whenever a process starts or ends."""
        return sum(machine.incarnation for machine in self._cluster.machines.values())

    def applied(self) -> int:
        """Return the least applied index of late; 0 if a member was down, or a process changed."""
        now, known = self._world.now, self._known
        there = [machine.member for machine in self._cluster.machines.values()]
        least = min(0 if member is None else member.state.applied for member in there)
        known.append((now, least, self.incarnations))
        while len(known) > 1 and known[1][0] <= now - FRESH_SECONDS:
            known.popleft()
        if known[0][2] != known[-1][2]:
            return 0
        return min(applied for _, applied, _ in known)


class Users:
    """All badges, the calls made with them, and the passwords that users may have."""

    __slots__ = (
        "_random",
        "badges",
        "cluster",
        "least",
        "ledger",
        "passwords",
        "realm",
        "visits",
        "way",
        "world",
    )

    def __init__(
        self,
        world: World,
        cluster: "Cluster",
        realm: Realm,
        ledger: Ledger,
        way: Callable[[str], CallsWithMetadata],
    ) -> None:
        """Set up badges; `way` returns the transport of a client, by the client's name."""
        self.world = world
        self.cluster = cluster
        self.way = way
        self.least = Least(world, cluster)
        self.realm = realm
        self.ledger = ledger
        self._random: Random = world.stream("users")
        # All passwords that each user ever got: a change may be lost, or take effect late.
        self.passwords: dict[str, list[str]] = {}
        self.badges: dict[str, Badge] = {}
        self.visits: list[Visit] = []

    def badge(self, name: str, user: str | None = None) -> "Badge":
        """Return the badge of a client: for the given user, or for a random one."""
        random = self._random
        if user is None:
            other = random.choice(self.realm.names)
            user = random.choices([ROOT, WIDE, other, GHOST, NOBODY], _SHARES)[0]
        badge = self.badges[name] = Badge(self, name, user)
        return badge

    def promote(self) -> None:
        """Make every client `root` from now on."""
        for badge in self.badges.values():
            badge.become(ROOT)

    def counts(self) -> dict[str, int]:
        """Return how much happened, by kind."""
        refused = [each.result for each in self.visits if isinstance(each.result, Status)]
        changes = len(self.ledger.states(0, self.ledger.last)) - 1
        return {
            "changes of users": changes,
            "calls of users": len(self.visits),
            "refused for who asked": sum(each.text in REFUSALS for each in refused),
            "logins": sum(each.path == LOGIN_PATH for each in self.visits),
        }

    def new_password(self, user: str) -> str:
        """Return a password that the user never had before."""
        known = self.passwords.setdefault(user, [])
        known.insert(0, f"{user}-{len(known)}")
        return known[0]

    def note_password(self, login: AuthenticateRequest) -> None:
        """Record that a password was right, so that the next login tries it first."""
        known = self.passwords[login.name]
        known.remove(login.password)
        known.insert(0, login.password)


class Badge:
    """The credentials of one client, and the transport of its calls."""

    __slots__ = (
        "_attempts",
        "_login",
        "_random",
        "_streams",
        "_way",
        "_word",
        "name",
        "token",
        "user",
        "users",
    )

    def __init__(self, users: Users, name: str, user: str) -> None:
        self.users = users
        self._way = users.way(name)
        self.name = name
        self.user = user
        self.token: str | None = None
        self._random: Random = users.world.stream(f"badge {name}")
        # The key of the metadata that shows the token, and the prefix of its value.
        self._word = self._random.choice(_WORDS)
        self._streams: dict[int, Visit] = {}
        # The login under way, and how many attempts have failed.
        self._login: int | None = None
        self._attempts = 0

    def become(self, user: str) -> None:
        """Act as another user from now on."""
        if user != self.user:
            self.user, self.token = user, None

    # The interface for clients.

    @property
    def members(self) -> Sequence[int]:
        """The members, or proxies, that clients can ask."""
        return self._way.members

    def call(self, member: int, path: str, payload: bytes, answered: Answered) -> int:
        """Send a request with the user's token, like `Cluster.call`."""
        visit = Visit(self, member, path, payload)

        def ended(result: bytes | Status | None) -> None:
            self._note(visit, result)
            answered(result)

        return self._way.call(member, path, payload, ended, self._metadata())

    def open_stream(
        self, member: int, path: str, answered: Answered, message: Callable[[bytes], None]
    ) -> int:
        """Open a stream with the user's token, like `Cluster.open_stream`."""
        visit = Visit(self, member, path, b"")

        def ended(result: bytes | Status | None) -> None:
            self._note(visit, result)
            answered(result)

        def took(data: bytes) -> None:
            self._note(visit, _meaning(path, data))
            message(data)

        call = self._way.open_stream(member, path, ended, took, self._metadata())
        self._streams[call] = visit
        return call

    def send(self, member: int, call: int, payload: bytes) -> None:
        """Send a message on a stream; the first one is recorded as the request."""
        visit = self._streams.pop(call, None)
        if visit is not None:
            visit.payload = payload
        self._way.send(member, call, payload)

    def hang_up(self, member: int, call: int) -> None:
        """Abandon a call, or break off a stream."""
        self._way.hang_up(member, call)

    def stall(self, member: int, call: int, seconds: float) -> None:
        """Stop reading a stream for a while."""
        self._way.stall(member, call, seconds)

    def is_ready(self) -> bool:
        """Return whether no login is under way."""
        return self._login is None

    def stays(self, name: str, member: int) -> bool:
        """Return whether a client keeps to its member although that was removed."""
        return self.users.cluster.stays(name, member)

    def _metadata(self) -> Metadata | None:
        if self.token is None:
            return None
        key, before = self._word
        return {key: f"{before}{self.token}".encode()}

    def _note(self, visit: Visit, result: bytes | Status | None) -> None:
        """Record the first answer to a call; log in where a token was missing or refused."""
        if result is None or result is REFUSED or visit.result is not None:
            return
        visit.end(self.users, result)
        is_refused = isinstance(result, Status) and result.text in (EMPTY, TOKEN)
        if is_refused and self.user and visit.token == self.token:
            self.token = None
            self._log_in()

    # Logging in.

    def _log_in(self) -> None:
        if self._login is not None:
            return
        users, user = self.users, self.user
        # The newest password first; its change may be lost, or take effect only later.
        known = users.passwords.get(user) or [f"{user}-0"]
        password = known[self._attempts % len(known)]
        request = AuthenticateRequest(name=user, password=password)
        member = self._random.choice(self.members)
        visit = Visit(self, member, LOGIN_PATH, request.SerializeToString())

        def answered(result: bytes | Status | None) -> None:
            if self._login == call:
                self._login = None
                self._logged_in(visit, result)

        def lose_patience() -> None:
            if self._login == call:
                self.hang_up(member, call)
                answered(None)

        call = self._login = self._way.call(member, LOGIN_PATH, visit.payload, answered, None)
        users.world.after(LOGIN_SECONDS, lose_patience)

    def _logged_in(self, visit: Visit, result: bytes | Status | None) -> None:
        users = self.users
        if result is None or result is REFUSED:
            return
        visit.end(users, result)
        if isinstance(result, bytes):
            self._attempts = 0
            users.note_password(AuthenticateRequest.FromString(visit.payload))
            token = AuthenticateResponse.FromString(result).token
            self._line(f"is {visit.user} by {token}")
            for badge in users.badges.values():
                # Clients of one user share its token.
                if badge.user == visit.user and (badge is self or badge.token is None):
                    badge.token = token
            return
        self._line(f"is not {visit.user}: {result.text}")
        if result.text == FAILED:
            self._attempts += 1

    def _line(self, what: str) -> None:
        world = self.users.world
        if world.trace is not None:
            world.trace.line(world.now, self.name, what)


def _meaning(path: str, data: bytes) -> bytes | Status | None:
    """Return a stream's message as an answer to its caller; a refused watch gives a status."""
    if path != WATCH_PATH:
        return data
    response = WatchResponse.FromString(data)
    if not response.created:
        return None
    if not response.canceled:
        return data
    text = next((each for each in REFUSALS if each in response.cancel_reason), "")
    return Status(Code.UNKNOWN, text or response.cancel_reason)
