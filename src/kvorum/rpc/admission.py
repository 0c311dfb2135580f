"""Who calls, and what they are refused before a service sees their call.

Used only while authentication is enabled. A call says who makes it by a token, or else by the
certificate of its connection; one that says nothing is nobody's. What the table of calls wants to
be checked first is checked here.
"""

from collections.abc import Callable
from typing import Final

from kvorum.api.errors import Status
from kvorum.api.marks import mark
from kvorum.edge.interface import Event, Metadata, Request
from kvorum.member.callers import Caller, Front, Origin
from kvorum.member.identities import Identities
from kvorum.member.member import Member
from kvorum.member.permissions import admin_refusal, identity_refusal
from kvorum.rpc.table import RPCS, Checked, Permission
from kvorum.rpc.undecided import Undecided

BEARER: Final = b"Bearer "
"""May stand before a token, written exactly so."""

JUDGED_SECONDS = 0.1
"""How long a token is taken for valid without being judged anew, which also lets it last anew."""

_GUARDS: Final[dict[Permission, Callable[[Member, Caller], Status | None]]] = {
    Permission.IDENTITY: identity_refusal,
    Permission.ADMIN: admin_refusal,
}


class Admission:
    """Judges the calls that come by one front."""

    def __init__(
        self,
        member: Member,
        front: Front,
        origin: Origin,
        undecided: Undecided[Request | Event],
        *,
        certificates_count: bool,
    ) -> None:
        """Judge calls to a member; with `certificates_count`, certificates say who calls."""
        self._member = member
        self._identities = Identities(member)
        self.nobody = Caller(front, origin=origin, identifying=self._identities)
        """The caller of calls that do not say who calls."""
        self._identities.nobody = self.nobody
        self._certificates_count = certificates_count
        # By the number of the method: what is checked first, and whom nobody asks who they are.
        first = [number for number, rpc in enumerate(RPCS) if rpc.checked is Checked.FIRST]
        self._guards = {
            number: _GUARDS[RPCS[number].permission]
            for number in first
            if RPCS[number].permission is not Permission.NONE
        }
        self._open_to_all = frozenset(first).difference(self._guards)
        # Valid tokens that were judged a moment ago, as of one revision: nearly all calls of a busy
        # client are made with one, and need no more than this look-up.
        self._judged: dict[bytes, Caller] = {}
        self._judged_revision = 0
        self._judged_until = 0.0
        # Requests, and events of streams, that wait until their token can be judged.
        self._undecided = undecided

    def admitted(
        self, call: int, method: int, metadata: Metadata | None, *, is_last: bool
    ) -> Caller | Status | None:
        """Return who calls, or why the call is refused.

        None if its token cannot be judged yet: the call waits, and what arrives for it is to be
        added to what is undecided. With `is_last` it has waited.
        """
        if method in self._open_to_all:
            return self.nobody
        caller = self._identified(call, metadata)
        if caller.refusal is not None and caller.token is not None and not is_last:
            member = self._member
            index = member.tokens.index_awaited(caller.token)
            limit = member.now + member.config.request_seconds_max
            if index > member.applied and self._undecided.begin(call, index, limit):
                mark("token awaited")
                return None
        guard = self._guards.get(method)
        refusal = None if guard is None else guard(self._member, caller)
        return caller if refusal is None else refusal

    def _identified(self, call: int, metadata: Metadata | None) -> Caller:
        token: bytes | None = None
        if metadata is not None:
            token = metadata.get("token")
            if token is None:
                token = metadata.get("authorization")
        if token is not None:
            return self._judged_now(token)
        if not self._certificates_count:
            return self.nobody
        return self._identities.of_certificate(self.nobody.certificate_name(call))

    def _judged_now(self, token: bytes) -> Caller:
        """Return whose token it is; whatever ends one raises the revision, but for its time."""
        member = self._member
        revision = member.auth.revision
        if revision != self._judged_revision or member.now >= self._judged_until:
            self._judged = {}
            self._judged_revision = revision
            self._judged_until = member.now + JUDGED_SECONDS
        caller = self._judged.get(token)
        if caller is None:
            text = token.removeprefix(BEARER).decode("utf-8", "replace")
            caller = self._identities.of_token(text)
            if caller.refusal is None:
                self._judged[token] = caller
        return caller
