"""Tokens, which clients send instead of name and password; each member verifies them on its own.

Every member creates a simple token when it applies the entry of an authentication, and loses it
when the process ends. The token's text ends with the index before that entry: a member that has not
applied the entry itself cannot verify the token yet. A token lasts for a while after its last use.
"""

from typing import Any, Final, NamedTuple, Protocol

from kvorum.api.errors import AUTH_FAILED, StatusError

SWEEP_SECONDS: Final = 1.0
"""The minimum time between removals of expired tokens."""
LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PREFIX_LETTERS: Final = 16
_INDEX_MAX: Final = (1 << 64) - 1


class TokenIdentity(NamedTuple):
    """A token's user, and the auth revision it was issued at; None: the current revision."""

    user: str
    revision: int | None


class Tokens(Protocol):
    """One kind of tokens, which `--auth-token` selects."""

    def verify(self, token: str, now: float, unix_seconds: float, /) -> TokenIdentity | None:
        """Return a token's user and revision; None if the token is not valid."""

    def index_to_await(self, token: str, /) -> int:
        """Return the index to apply before a token can be verified; 0 if there is none."""

    def assign(self, user: str, prefix: str, index: int, now: float, /) -> str:
        """Create the token of an applied authentication; return "" if `signing_job` creates it."""

    def signing_job(self, user: str, revision: int, unix_seconds: float, /) -> Any:
        """Return the work that creates a token, for a job; raises StatusError."""

    def forget(self, user: str, /) -> None:
        """End all tokens of a user."""

    def forget_all(self) -> None:
        """End all tokens."""


class SimpleTokens:
    """The tokens valid on this member, with their expiry."""

    __slots__ = ("_expiries", "_sweep_at", "_ttl_seconds", "_users")

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        self._users: dict[str, str] = {}
        self._expiries: dict[str, float] = {}
        self._sweep_at = 0.0

    def __len__(self) -> int:
        """Return the number of stored tokens."""
        return len(self._users)

    def assign(self, user: str, prefix: str, index: int, now: float) -> str:
        """Create a valid token, and return it."""
        token = f"{prefix}.{index}"
        self._users[token] = user
        self._expiries[token] = now + self._ttl_seconds
        self._sweep(now)
        return token

    def signing_job(self, _user: str, _revision: int, _unix_seconds: float, /) -> Any:
        """Fail: `assign` creates simple tokens when their entries are applied."""
        raise AssertionError("simple tokens are assigned")

    def index_to_await(self, token: str) -> int:
        """Return the index of the entry behind a token; 0 for a known or malformed token.

        The index is one more than the one in the token's text, for which etcd waits.
        """
        if token in self._users:
            return 0
        index = index_in(token)
        return index + 1 if index else 0

    def verify(self, token: str, now: float, _unix_seconds: float, /) -> TokenIdentity | None:
        """Return a token's user and restart its lifetime; None if the token is not valid."""
        user = self._users.get(token)
        if user is None or self._expiries[token] <= now:
            return None
        self._expiries[token] = now + self._ttl_seconds
        return TokenIdentity(user, None)

    def forget(self, user: str) -> None:
        """End all tokens of a user."""
        for token in [each for each, owner in self._users.items() if owner == user]:
            del self._users[token], self._expiries[token]

    def forget_all(self) -> None:
        """End all tokens."""
        self._users.clear()
        self._expiries.clear()

    def _sweep(self, now: float) -> None:
        """Remove expired tokens, at most once per SWEEP_SECONDS."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        for token in [each for each, expiry in self._expiries.items() if expiry <= now]:
            del self._users[token], self._expiries[token]


class NoTokens:
    """The kind without tokens: none is valid, created or stored.

    Only certificates then identify users.
    """

    __slots__ = ()

    def verify(self, _token: str, _now: float, _unix_seconds: float, /) -> TokenIdentity | None:
        """Return None: no token is valid."""
        return None

    def index_to_await(self, _token: str, /) -> int:
        """Return 0: no token depends on an index."""
        return 0

    def assign(self, _user: str, _prefix: str, _index: int, _now: float, /) -> str:
        """Return "": there is no token to create."""
        return ""

    def signing_job(self, _user: str, _revision: int, _unix_seconds: float, /) -> Any:
        """Refuse to create a token."""
        raise StatusError(AUTH_FAILED)

    def forget(self, _user: str, /) -> None:
        """Have nothing to forget."""

    def forget_all(self) -> None:
        """Have nothing to forget."""


def index_in(token: str) -> int:
    """Return the index in the text of a simple token; 0 for any other text."""
    parts = token.split(".")
    if len(parts) != 2:
        return 0
    digits = parts[1]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 100:
        return 0
    index = int(digits)
    return index if index <= _INDEX_MAX else 0
