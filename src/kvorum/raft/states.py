"""The roles of a node, and what it tells the application about itself."""

from dataclasses import dataclass
from typing import Final, NamedTuple


class Role:
    """What a node is in its term."""

    FOLLOWER: Final = 0
    CANDIDATE: Final = 1
    LEADER: Final = 2
    PRE_CANDIDATE: Final = 3


ROLE_NAMES = ("StateFollower", "StateCandidate", "StateLeader", "StatePreCandidate")


class SoftState(NamedTuple):
    """What changes without having to be written: the leader known, and this node's role."""

    lead: int
    role: int


@dataclass(slots=True, frozen=True)
class ReadState:
    """A read may be served once the application has applied up to the index."""

    index: int
    context: bytes
