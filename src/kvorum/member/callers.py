"""The caller of a request: it goes with the request from the front to the code that decides.

A front says who calls: nobody, or a user as of a revision of users and roles, known by a token or a
certificate; or that what was shown is not valid. That identity goes into the header of every entry
that is proposed for the caller. Appliers are given what the entry says and nothing else, on the
proposer, too, so that all members decide alike.
"""

from enum import Enum
from typing import Final, Protocol

from kvorum.api.codec import caller_identity
from kvorum.api.errors import Status


class Front(Enum):
    """The way by which a request came in."""

    GRPC = "over gRPC"
    GATEWAY = "through a gateway"
    HTTP = "over plain HTTP"
    PEER = "from another member"
    MEMBER = "of the member itself"
    LOG = "out of the log"


class Origin(Protocol):
    """What a front knows of the connection that a call came over."""

    def remote(self, call: int) -> str:
        """Return the address of the client; empty if the connection is gone."""

    def certificate_name(self, call: int) -> str:
        """Return the common name in the client's verified certificate; empty without one."""


class Identifying(Protocol):
    """Says who a caller is by now: tokens end, and revisions rise."""

    def renewed(self, caller: "Caller") -> "Caller":
        """Return the caller that the same token or certificate stands for now."""


class Caller:
    """Who asks, and through which front. Never changed: one object serves many calls.

    What differs from call to call, the client's address and the name in its certificate, is looked
    up by the number of the call, and only when it is needed. Callers over gRPC have an `origin` for
    that; others have none.
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
        """The name of the user that authenticated, or that an entry of the log names."""
        self.revision = revision
        """The revision of users and roles as of which it authenticated."""
        self.is_nobody = not user and not revision
        self.identity = caller_identity(user, revision)
        """User and revision as they are written into the header of an entry."""
        self.refusal = refusal
        """Why the caller may do nothing that needs to know who it is."""
        self.token = token
        """What it showed; None for one who showed a certificate, or nothing."""
        self.identifying = identifying
        """Who tells what it is now. None for those that are not asked who they are: members, their
        own work, and entries, which are judged by what they say."""
        self._origin = origin

    def with_identity(
        self, user: str, revision: int, token: str | None, refusal: Status | None = None
    ) -> "Caller":
        """Return a caller by the same front."""
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
        """Return in words who makes a call; text from outside is escaped."""
        words = [ascii(self.user) if self.user else "nobody", self.front.value]
        remote, name = self.remote(call), self.certificate_name(call)
        if remote:
            words.append(f"from {remote}")
        if name:
            words.append(f"with a certificate of {name!a}")
        return " ".join(words)


MEMBER: Final = Caller(Front.MEMBER)
"""The caller of what a member does by itself."""

NOBODY: Final = Caller(Front.LOG)
"""The caller of an entry whose header names no user."""
