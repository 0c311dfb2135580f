"""The caller of a request, which travels with it from the front to the code that decides.

A front identifies the caller: as anonymous, as a user at a revision of users and roles (by a token
or a certificate), or as one with invalid credentials. The header of every entry that is proposed
for the caller carries this identity. Appliers get the entry's identity and no other, on the
proposer too, so that all members decide alike.
"""

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from kvorum.api.codec import caller_identity
from kvorum.api.errors import Status

if TYPE_CHECKING:
    from kvorum.state.apply.state import State


class Front(Enum):
    """The way by which a request arrived."""

    GRPC = "over gRPC"
    GATEWAY = "through a gateway"
    HTTP = "over plain HTTP"
    PEER = "from another member"
    MEMBER = "of the member itself"
    LOG = "out of the log"


class Origin(Protocol):
    """A front's knowledge of the connection that carries a call."""

    def remote(self, call: int) -> str:
        """Return the address of the client; empty if the connection is gone."""

    def certificate_name(self, call: int) -> str:
        """Return the common name in the client's verified certificate; empty without one."""


class Identifying(Protocol):
    """Re-identifies a caller, because tokens expire and revisions rise."""

    def identify_again(self, caller: "Caller") -> "Caller":
        """Return the caller that the same token or certificate identifies now."""


class Caller:
    """The identity behind a request and its front. Immutable: one object serves many calls.

    The client's address and the name in its certificate differ from call to call, so methods look
    them up by the call's number when necessary. Only callers over gRPC have an `origin` for that.
    """

    __slots__ = (
        "_origin",
        "front",
        "identifying",
        "identity",
        "is_nobody",
        "refusal",
        "revision",
        "token",
        "user",
    )

    def __init__(
        self,
        front: Front,
        user: str = "",
        revision: int = 0,
        origin: Origin | None = None,
        *,
        identifying: Identifying | None = None,
        token: str | None = None,
        refusal: Status | None = None,
    ) -> None:
        self.front = front
        self.user = user
        """The name of the authenticated user, or of the user that a log entry names."""
        self.revision = revision
        """The revision of users and roles at which the user authenticated."""
        self.is_nobody = not user and not revision
        self.identity = caller_identity(user, revision)
        """User and revision as encoded in the header of an entry."""
        self.refusal = refusal
        """The error for every request that needs an identity; None for a valid caller."""
        self.token = token
        """The caller's token; None for a caller with a certificate or without credentials."""
        self.identifying = identifying
        """Re-identifies the caller; None for members, their own work, and log entries, whose
        identity is fixed."""
        self._origin = origin

    def with_identity(
        self, user: str, revision: int, token: str | None, refusal: Status | None = None
    ) -> "Caller":
        """Return a caller with another identity by the same front."""
        return Caller(
            self.front,
            user,
            revision,
            self._origin,
            identifying=self.identifying,
            token=token,
            refusal=refusal,
        )

    def remote(self, call: int) -> str:
        """Return the address of a call's client; empty if it is not known."""
        return "" if self._origin is None else self._origin.remote(call)

    def certificate_name(self, call: int) -> str:
        """Return the name in the certificate of a call's client; empty without one."""
        return "" if self._origin is None else self._origin.certificate_name(call)

    def describe(self, call: int) -> str:
        """Describe a call's client in words, escaping text from outside."""
        words = [ascii(self.user) if self.user else "nobody", self.front.value]
        remote, name = self.remote(call), self.certificate_name(call)
        if remote:
            words.append(f"from {remote}")
        if name:
            words.append(f"with a certificate of {name!a}")
        return " ".join(words)


MEMBER: Final = Caller(Front.MEMBER)
"""The caller behind a member's own requests."""

NOBODY: Final = Caller(Front.LOG)
"""The caller of an entry whose header names no user."""


def current(state: "State", caller: Caller) -> Caller:
    """Re-identify a client's caller if users or roles changed; return other callers unchanged."""
    if caller.identifying is None or caller.revision == state.auth.revision:
        return caller
    return caller.identifying.identify_again(caller)
