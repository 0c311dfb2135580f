"""A leader that is gone is succeeded at once, and not after an election timeout.

There are two signs. Its process has ended: a stream from it broke, and nobody listens any more
where it was; a connection that merely broke is none, since the next one is accepted. Or its host is
silent: nothing was heard of the leader for half of an election timeout, and its host, which answers
knocks whatever its processes do, answered none in the last part of that time. A leader that is
merely slow, or stands still, is deposed by neither.

Members that saw a sign forget the leader, so that they grant pre-votes, and stand for election
themselves, each after a short time of its own. It may be a mistake: one member's way to the leader
may be barred, and the leader be well. Then the others, who hear of it, grant nothing, no term
changes, and the next heartbeat makes it known again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from kvorum.api.marks import mark
from kvorum.raft.messages import NONE
from kvorum.raft.states import Role

if TYPE_CHECKING:
    from kvorum.member.member import Member

STAND_SECONDS_MIN: Final = 0.01
"""Time for the others to see the sign."""
SPREAD_SECONDS: Final = 0.05
"""The time until a member stands varies by as much, so that two seldom stand at once."""
AGAIN_SECONDS: Final = 0.1
"""How long votes may take before a member stands anew: two that stood at once may split them."""
ATTEMPTS_MAX: Final = 5
"""After so many, elections come as they do without a sign."""
KNOCKS_MIN: Final = 2
"""One knock may be lost on its way. They are a tick apart, so that the answer to the first is
seen before the second is counted even where this member itself stood still."""


class Succession:
    """When this member stands for election because the leader is gone."""

    __slots__ = ("_attempts_left", "_is_answered", "_knocks", "stands_at")

    def __init__(self) -> None:
        self._attempts_left = 0
        # Of the leader's present silence: how often its host was asked, and whether it answered.
        self._knocks = 0
        self._is_answered = False
        self.stands_at = inf

    def doubt(self, member: Member) -> int:
        """Return the leader if its host is to be asked whether it is there, or 0; once a tick."""
        raft, ticks = member.node.raft, member.config.election_ticks
        if raft.role != Role.FOLLOWER or raft.lead == NONE or not member.config.pre_vote:
            self._knocks, self._is_answered = 0, False
            return NONE
        silent_ticks = raft.election_elapsed
        asks_from = max(2, ticks * 3 // 10)
        if silent_ticks < asks_from:
            self._knocks, self._is_answered = 0, False
            return NONE
        if self._is_answered or member.is_closing:
            return NONE
        if self._knocks >= KNOCKS_MIN and silent_ticks >= max(asks_from + KNOCKS_MIN, ticks // 2):
            mark("leader's host silent")
            self.begin(member, "hears nothing of the host of")
            return NONE
        return raft.lead

    def knocked(self) -> None:
        """Note that the leader's host was asked whether it is there."""
        self._knocks += 1

    def answered(self, member: Member, peer: int) -> None:
        """Note that a peer's host is there."""
        if peer == member.leader:
            self._is_answered = True

    def begin(self, member: Member, sign: str) -> None:
        """Forget the leader, who is gone, and stand for election soon."""
        mark("leader forgotten")
        member.logger.info(f"{member.id:x} {sign} leader {member.leader:x}")
        member.node.forget_leader()
        self._knocks, self._is_answered = 0, False
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
