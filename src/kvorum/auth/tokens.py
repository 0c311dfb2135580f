"""Tokens: what a client shows instead of its name and password. Each member judges them by itself.

Simple tokens are made by every member when it applies the entry of an authentication, and forgotten
when the process ends. Their text ends with the index before that entry: a member that has not
applied the entry itself cannot judge them yet. They last for a while after their last use.
"""

from typing import Any, Final, NamedTuple, Protocol

from kvorum.api.errors import AUTH_FAILED, StatusError

SWEEP_SECONDS: Final = 1.0
"""How often tokens that have run out are forgotten."""
LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PREFIX_LETTERS: Final = 16
_INDEX_MAX: Final = (1 << 64) - 1


class Shown(NamedTuple):
    """Who a token was given to, and as of which revision; None: of the moment it is shown."""

    user: str
    revision: int | None


class Tokens(Protocol):
    """One kind of tokens; `--auth-token` says which."""

    def shown(self, token: str, now: float, unix_seconds: float, /) -> Shown | None:
        """Return whose token it is; None if it is not valid."""

    def index_awaited(self, token: str, /) -> int:
        """Return the index that has to be applied before a token can be judged; 0 if none."""

    def assign(self, user: str, prefix: str, index: int, now: float, /) -> str:
        """Make the token of an authentication that is applied; empty if `making` does that."""

    def making(self, user: str, revision: int, unix_seconds: float, /) -> Any:
        """Return the work that makes a token, for a job; raises StatusError."""

    def forget(self, user: str, /) -> None:
        """End all tokens of a user."""

    def forget_all(self) -> None:
        """End all tokens."""


class SimpleTokens:
    """The tokens that are valid here, and until when."""

    __slots__ = ("_expiries", "_sweep_at", "_ttl_seconds", "_users")

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        self._users: dict[str, str] = {}
        self._expiries: dict[str, float] = {}
        self._sweep_at = 0.0

    def __len__(self) -> int:
        """Count the tokens that are kept."""
        return len(self._users)

    def assign(self, user: str, prefix: str, index: int, now: float) -> str:
        """Make a token valid, and return it."""
        token = f"{prefix}.{index}"
        self._users[token] = user
        self._expiries[token] = now + self._ttl_seconds
        self._sweep(now)
        return token

    def making(self, _user: str, _revision: int, _unix_seconds: float, /) -> Any:
        """Fail: they are made when their entries are applied."""
        raise AssertionError("simple tokens are assigned")

    def index_awaited(self, token: str) -> int:
        """Return the index of the entry that made a token; 0 if it is valid here, or no such token.

        That is one more than its text says, for which etcd waits.
        """
        if token in self._users:
            return 0
        index = index_in(token)
        return index + 1 if index else 0

    def shown(self, token: str, now: float, _unix_seconds: float, /) -> Shown | None:
        """Return whose token it is, and let it last anew; None if it is not valid."""
        user = self._users.get(token)
        if user is None or self._expiries[token] <= now:
            return None
        self._expiries[token] = now + self._ttl_seconds
        return Shown(user, None)

    def forget(self, user: str) -> None:
        """End all tokens of a user."""
        for token in [each for each, owner in self._users.items() if owner == user]:
            del self._users[token], self._expiries[token]

    def forget_all(self) -> None:
        """End all tokens."""
        self._users.clear()
        self._expiries.clear()

    def _sweep(self, now: float) -> None:
        """Forget the tokens that have run out; once in a while, as others are assigned."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        for token in [each for each, expiry in self._expiries.items() if expiry <= now]:
            del self._users[token], self._expiries[token]


class NoTokens:
    """No token is valid, none is made and none is remembered.

    With these, users are known by their certificates alone.
    """

    __slots__ = ()

    def shown(self, _token: str, _now: float, _unix_seconds: float, /) -> Shown | None:
        """Find none."""
        return None

    def index_awaited(self, _token: str, /) -> int:
        """Await nothing."""
        return 0

    def assign(self, _user: str, _prefix: str, _index: int, _now: float, /) -> str:
        """Make none."""
        return ""

    def making(self, _user: str, _revision: int, _unix_seconds: float, /) -> Any:
        """Refuse."""
        raise StatusError(AUTH_FAILED)

    def forget(self, _user: str, /) -> None:
        """Have nothing to forget."""

    def forget_all(self) -> None:
        """Have nothing to forget."""


def index_in(token: str) -> int:
    """Return the index in the text of a simple token; 0 if it is none."""
    parts = token.split(".")
    if len(parts) != 2:
        return 0
    digits = parts[1]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 100:
        return 0
    index = int(digits)
    return index if index <= _INDEX_MAX else 0
