"""Majorities and pairs of majorities: the committed index and the result of an election.

The functions are pure arithmetic over one value per voter. An empty majority agrees to everything,
so a pair with an empty half behaves like the other half alone.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from kvorum.raft.entries import NO_LIMIT


class VoteResult(Enum):
    """The state of an election."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def committed_index(acknowledged: Sequence[int]) -> int:
    """Return the greatest index that a majority has acknowledged. Unknown indexes count as 0."""
    count = len(acknowledged)
    if not count:
        return NO_LIMIT
    return sorted(acknowledged)[count - (count // 2 + 1)]


def vote_result(votes: Iterable[bool | None]) -> VoteResult:
    """Return the result of an election. A missing vote is None."""
    cast = list(votes)
    quorum = len(cast) // 2 + 1
    if not cast or cast.count(True) >= quorum:
        return VoteResult.WON
    return VoteResult.PENDING if len(cast) - cast.count(False) >= quorum else VoteResult.LOST


def joint_vote_result(incoming: VoteResult, outgoing: VoteResult) -> VoteResult:
    """Return the result of an election that both halves must win."""
    if incoming is outgoing:
        return incoming
    if VoteResult.LOST in (incoming, outgoing):
        return VoteResult.LOST
    return VoteResult.PENDING
