"""The roles of a node, and what it tells the application about itself."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Role(IntEnum):
    """What a node is in its term."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2
    PRE_CANDIDATE = 3


ROLE_NAMES = ("StateFollower", "StateCandidate", "StateLeader", "StatePreCandidate")


class SoftState(NamedTuple):
    """What changes without having to be written: the leader known, and the own role."""

    lead: int
    role: Role


@dataclass(slots=True, frozen=True)
class ReadState:
    """A read may be served once the application has applied up to the index."""

    index: int
    context: bytes
