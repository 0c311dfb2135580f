"""A leader whose process has ended is succeeded at once, and not after an election timeout.

The sign is that a stream from it broke and nobody listens any more where it was. A connection that
merely broke is none: the next one is accepted. Members that saw the sign forget the leader, so that
they grant pre-votes, and stand for election themselves, each after a short time of its own.

It may be a mistake: one member's way to the leader may be barred, and the leader be well. Then the
others, who hear of it, grant nothing, no term changes, and the next heartbeat makes it known again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from kvorum.api.marks import mark
from kvorum.raft.messages import NONE

if TYPE_CHECKING:
    from kvorum.member.member import Member

STAND_SECONDS_MIN: Final = 0.01
"""Time for the others to see the sign."""
SPREAD_SECONDS: Final = 0.05
"""The time until a member stands varies by as much, so that two seldom stand at once."""
AGAIN_SECONDS: Final = 0.1
"""How long votes may take before a member stands anew: two that stood at once may split them."""
ATTEMPTS_MAX: Final = 5
"""After so many, elections come as they do without the sign."""


class Succession:
    """When this member stands for election because the leader's process has ended."""

    __slots__ = ("_attempts_left", "stands_at")

    def __init__(self) -> None:
        self._attempts_left = 0
        self.stands_at = inf

    def begin(self, member: Member) -> None:
        """Forget the leader, who is gone, and stand for election soon."""
        mark("leader forgotten")
        member.logger.info(f"{member.id:x} nobody listens where leader {member.leader:x} was")
        member.node.forget_leader()
        self._attempts_left = ATTEMPTS_MAX
        self.stands_at = member.now + STAND_SECONDS_MIN + _spread(member)

    def stand(self, member: Member, now: float) -> None:
        """Stand for election, unless somebody leads by now."""
        if member.node.raft.lead != NONE or not self._attempts_left:
            self.stands_at = inf
            return
        self._attempts_left -= 1
        self.stands_at = now + AGAIN_SECONDS + _spread(member)
        member.node.campaign()


def _spread(member: Member) -> float:
    return member.seams.random_below(1000) / 1000 * SPREAD_SECONDS
