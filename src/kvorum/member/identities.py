"""Who a client is: by the token it shows, or by its certificate.

A token is judged whenever it is shown, and anew at every step of a call: it may have ended, and
users and roles may have changed. What was found is kept for as long as they do not.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from kvorum.api.errors import INVALID_AUTH_TOKEN
from kvorum.member.callers import MEMBER

if TYPE_CHECKING:
    from kvorum.member.callers import Caller
    from kvorum.member.member import Member

KEPT_MAX: Final = 10_000
"""How many callers are kept, so that they need not be made for every call."""


class Identities:
    """The clients of one front."""

    __slots__ = ("_kept", "_kept_revision", "_member", "nobody")

    def __init__(self, member: Member) -> None:
        self._member = member
        self.nobody: Caller
        """Who shows neither a token nor a certificate; set by the front."""
        # By what they show, as of one revision.
        self._kept: dict[tuple[str, str | None], Caller] = {}
        self._kept_revision = 0

    def of_token(self, token: str) -> Caller:
        """Return whose token it is; a caller who is refused if it is not valid."""
        member = self._member
        own = member.seams.member_token
        if own and compare_digest(token.encode(), own.encode()):
            return MEMBER
        shown = member.tokens.shown(token, member.now, member.seams.wall_clock())
        if shown is None:
            return self.nobody.with_identity("", 0, token, INVALID_AUTH_TOKEN)
        return self._caller(shown.user, shown.revision, token)

    def of_certificate(self, name: str) -> Caller:
        """Return who has a certificate with this common name; nobody if that is empty."""
        return self._caller(name, None, None) if name else self.nobody

    def renewed(self, caller: Caller) -> Caller:
        """Return the caller that the same token or certificate stands for now."""
        if caller.token is not None:
            return self.of_token(caller.token)
        return self.of_certificate(caller.user)

    def _caller(self, user: str, revision: int | None, token: str | None) -> Caller:
        current = self._member.auth.revision
        if current != self._kept_revision or len(self._kept) >= KEPT_MAX:
            self._kept = {}
            self._kept_revision = current
        caller = self._kept.get((user, token))
        if caller is None:
            known = current if revision is None else revision
            caller = self.nobody.with_identity(user, known, token)
            self._kept[user, token] = caller
        return caller


def current(member: Member, caller: Caller) -> Caller:
    """Return a caller as of now, for what is decided here and now; others are as they were."""
    if caller.identifying is None or caller.revision == member.auth.revision:
        return caller
    return caller.identifying.renewed(caller)
