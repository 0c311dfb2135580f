"""The life of a member: its phases, and what leads from one to the next.

The phases follow two rules. A member never returns to an earlier phase. And only the transitions of
the table happen; anything else is a bug, and stops the member. `make diagrams` draws the table in
docs/member.md.

An installation of a snapshot is no phase: it may run in each of them until the files are closed.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class MemberPhase(Enum):
    """The phase of a member's life."""

    STARTING = "catches up with the log; clients wait"
    PUBLISHED = "the cluster knows it; clients may call"
    CLOSING = "flushes what is applied, then closes the log and the database"
    CLOSED = "has closed its files"
    STOPPED = "has failed; every call raises the reason"


class MemberEvent(Enum):
    """What ends a phase of a member's life."""

    ATTRIBUTES_APPLIED = "the entry with its name and client URLs is applied"
    CLOSE_REQUESTED = "the server shuts down"
    FILES_CLOSED = "the last job of the log has ended"
    ERROR_RAISED = "an input that it does not understand, or a failed job"


_FAILS: Final = {MemberEvent.ERROR_RAISED: MemberPhase.STOPPED}

TRANSITIONS: Final[Mapping[MemberPhase, Mapping[MemberEvent, MemberPhase]]] = {
    MemberPhase.STARTING: {
        MemberEvent.ATTRIBUTES_APPLIED: MemberPhase.PUBLISHED,
        MemberEvent.CLOSE_REQUESTED: MemberPhase.CLOSING,
        **_FAILS,
    },
    MemberPhase.PUBLISHED: {MemberEvent.CLOSE_REQUESTED: MemberPhase.CLOSING, **_FAILS},
    MemberPhase.CLOSING: {MemberEvent.FILES_CLOSED: MemberPhase.CLOSED, **_FAILS},
    MemberPhase.CLOSED: _FAILS,
    MemberPhase.STOPPED: {},
}
"""The next phase, by the current one and what ends it."""


class Lifecycle:
    """The current phase of one member."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = MemberPhase.STARTING

    def take(self, event: MemberEvent) -> None:
        """Enter the phase that follows; only transitions of the table may happen."""
        following = TRANSITIONS[self.phase].get(event)
        assert following is not None, f"the phase {self.phase.name} does not end with {event.name}"
        self.phase = following
