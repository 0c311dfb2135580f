"""Identify clients by their token or certificate.

The member verifies a token at every call and again at every step of a call: the token may have
expired, and users and roles may have changed. It caches callers until users or roles change.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from kvorum.api.errors import INVALID_AUTH_TOKEN
from kvorum.state.apply.callers import MEMBER

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.state.apply.callers import Caller

CACHED_MAX: Final = 10_000
"""How many callers are cached, so that most calls create none."""


class Identities:
    """The clients of one front."""

    __slots__ = ("_cached", "_cached_revision", "_member", "nobody")

    def __init__(self, member: Member) -> None:
        self._member = member
        self.nobody: Caller
        """The caller for clients without token or certificate; the front sets it."""
        # Cached callers by (user, token), valid at one revision of users and roles.
        self._cached: dict[tuple[str, str | None], Caller] = {}
        self._cached_revision = 0

    def identify_token(self, token: str) -> Caller:
        """Return the caller of a token; for an invalid token a caller with a refusal."""
        member = self._member
        own = member.seams.member_token
        if own and compare_digest(token.encode(), own.encode()):
            return MEMBER
        verified = member.state.tokens.verify(token, member.now, member.seams.wall_clock())
        if verified is None:
            return self.nobody.with_identity("", 0, token, INVALID_AUTH_TOKEN)
        return self._caller(verified.user, verified.revision, token)

    def identify_certificate(self, name: str) -> Caller:
        """Return the caller of a certificate's common name; `nobody` for an empty name."""
        return self._caller(name, None, None) if name else self.nobody

    def identify_again(self, caller: Caller) -> Caller:
        """Return the caller that the same token or certificate identifies now."""
        if caller.token is not None:
            return self.identify_token(caller.token)
        return self.identify_certificate(caller.user)

    def _caller(self, user: str, revision: int | None, token: str | None) -> Caller:
        current = self._member.state.auth.revision
        if current != self._cached_revision or len(self._cached) >= CACHED_MAX:
            self._cached = {}
            self._cached_revision = current
        caller = self._cached.get((user, token))
        if caller is None:
            known = current if revision is None else revision
            caller = self.nobody.with_identity(user, known, token)
            self._cached[user, token] = caller
        return caller
