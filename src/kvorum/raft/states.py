"""The roles of a node, and the volatile state that it reports to the application."""

from dataclasses import dataclass
from typing import Final, NamedTuple


class Role:
    """The role of a node in its term."""

    FOLLOWER: Final = 0
    CANDIDATE: Final = 1
    LEADER: Final = 2
    PRE_CANDIDATE: Final = 3


ROLE_NAMES = ("StateFollower", "StateCandidate", "StateLeader", "StatePreCandidate")


class SoftState(NamedTuple):
    """State that need not be written: the known leader and this node's role."""

    lead: int
    role: int


@dataclass(slots=True, frozen=True)
class ReadState:
    """An answered ReadIndex: serve the read once the application has applied up to `index`."""

    index: int
    context: bytes
