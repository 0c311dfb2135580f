"""Authenticate calls, and refuse some before a service sees them.

The services use this module only while authentication is enabled. A token identifies the caller,
or else the certificate of the connection; without both, the caller is anonymous (`nobody`). The
permissions that the table of RPCs marks `Checked.FIRST` are checked here.
"""

from collections.abc import Callable
from typing import Final

from kvorum.api.coverage import reach
from kvorum.api.errors import Status
from kvorum.member.identities import Identities
from kvorum.member.member import Member
from kvorum.network.edge.interface import Event, Metadata, Request
from kvorum.server.rpc.table import RPCS, Checked, RequiredPermission
from kvorum.server.rpc.undecided import AwaitingToken
from kvorum.state.apply.callers import Caller, Front, Origin
from kvorum.state.apply.permissions import admin_refusal, identity_refusal
from kvorum.state.apply.state import State

BEARER: Final = b"Bearer "
"""An optional prefix of a token, case-sensitive."""

VERIFIED_SECONDS = 0.1
"""How long a verified token is trusted; verifying it again also renews a simple token's TTL."""

_GUARDS: Final[dict[RequiredPermission, Callable[[State, Caller], Status | None]]] = {
    RequiredPermission.IDENTITY: identity_refusal,
    RequiredPermission.ADMIN: admin_refusal,
}


class Admission:
    """Authenticates the calls of one front."""

    def __init__(
        self,
        member: Member,
        front: Front,
        origin: Origin,
        undecided: AwaitingToken[Request | Event],
        *,
        client_cert_identifies_user: bool,
    ) -> None:
        """Authenticate calls to a member, by tokens and, if wanted, by client certificates."""
        self._member = member
        self._identities = Identities(member)
        self.nobody = Caller(front, origin=origin, identifying=self._identities)
        """The anonymous caller: the call has neither a token nor a certificate that counts."""
        self._identities.nobody = self.nobody
        self._client_cert_identifies_user = client_cert_identifies_user
        # By method number: the checks to make first, and the methods that need no identity.
        first = [number for number, rpc in enumerate(RPCS) if rpc.checked is Checked.FIRST]
        self._guards = {
            number: _GUARDS[RPCS[number].permission]
            for number in first
            if RPCS[number].permission is not RequiredPermission.NONE
        }
        self._open_to_all = frozenset(first).difference(self._guards)
        # Tokens verified within `VERIFIED_SECONDS` at one auth revision. Nearly all calls of a busy
        # client use one and need only this lookup.
        self._verified: dict[bytes, Caller] = {}
        self._verified_revision = 0
        self._verified_until = 0.0
        # Requests and stream events that wait until this member can verify their token.
        self._undecided = undecided

    def admit(
        self, call: int, method: int, metadata: Metadata | None, *, is_last: bool
    ) -> Caller | Status | None:
        """Return the caller of a call, or the status that refuses it.

        None if this member cannot verify the token yet: the call waits, and the caller of this
        method adds what arrives for it to `undecided`. With `is_last` the call has waited already.
        """
        if method in self._open_to_all:
            return self.nobody
        caller = self._identify(call, metadata)
        if caller.refusal is not None and caller.token is not None and not is_last:
            member = self._member
            index = member.state.tokens.index_to_await(caller.token)
            limit = member.now + member.config.request_seconds_max
            if index > member.state.applied and self._undecided.begin(call, index, limit):
                reach("token awaited")
                return None
        guard = self._guards.get(method)
        refusal = None if guard is None else guard(self._member.state, caller)
        return caller if refusal is None else refusal

    def _identify(self, call: int, metadata: Metadata | None) -> Caller:
        token: bytes | None = None
        if metadata is not None:
            token = metadata.get("token")
            if token is None:
                token = metadata.get("authorization")
        if token is not None:
            return self._verify_token(token)
        if not self._client_cert_identifies_user:
            return self.nobody
        return self._identities.identify_certificate(self.nobody.certificate_name(call))

    def _verify_token(self, token: bytes) -> Caller:
        """Return the caller that a token identifies.

        The cached result is safe: everything that invalidates a token raises the auth revision,
        except its expiry.
        """
        member = self._member
        revision = member.state.auth.revision
        if revision != self._verified_revision or member.now >= self._verified_until:
            self._verified = {}
            self._verified_revision = revision
            self._verified_until = member.now + VERIFIED_SECONDS
        caller = self._verified.get(token)
        if caller is None:
            text = token.removeprefix(BEARER).decode("utf-8", "replace")
            caller = self._identities.identify_token(text)
            if caller.refusal is None:
                self._verified[token] = caller
        return caller
