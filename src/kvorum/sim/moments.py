"""What a picture of a run shows, as data: who was what from when on, and what happened to them.

Recorded by the trace, so only where somebody wants to see a run. Nothing here asks the run for
anything, and nothing in a run depends on it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvorum.sim.history import Record
    from kvorum.sim.violation import Violation


class Kind(Enum):
    """What may happen at a moment."""

    # The life of a process.
    START = auto()
    UP = auto()
    TERMINATED = auto()
    ENDED = auto()
    STOPPED = auto()
    REFUSED = auto()
    KILLED = auto()
    POWER_CUT = auto()
    GIVEN_UP = auto()
    PAUSED = auto()
    CUT_OFF = auto()
    # Its disk.
    DISK_ERROR = auto()
    DISK_FULL = auto()
    DISK_STALLED = auto()
    DISK_LOST = auto()
    DISK_RESTORED = auto()
    BIT_FLIPPED = auto()
    # Between members.
    SNAPSHOT_SENT = auto()
    PARTITIONED = auto()
    HEALED = auto()
    # People, and the run.
    OPERATOR = auto()
    FAULTS_END = auto()
    WATCH_BEGUN = auto()
    WATCH_GOT = auto()
    WATCH_ENDED = auto()


class Moment(NamedTuple):
    """Something happened."""

    at: float
    who: str
    kind: Kind
    what: str
    """In words, as in the trace."""
    until: float
    """When it is over; the same moment if it does not last."""
    about: tuple[str, ...]
    """Others that it concerns: members that were cut off."""


class State(NamedTuple):
    """What a member was from a moment on."""

    at: float
    process: int
    """Which of the machine's processes, counted from 1."""
    role: int
    """A `kvorum.raft.states.Role`."""
    term: int
    is_learner: bool
    committed: int
    applied: int
    revision: int
    snapshot: int
    """The index of its last snapshot, made or installed."""
    is_installing: bool


class Moments:
    """Everything that a picture of a run shows."""

    __slots__ = ("asked", "end", "events", "states", "violation")

    def __init__(self) -> None:
        self.events: list[Moment] = []
        # The states of each member by its name, where they changed.
        self.states: dict[str, list[State]] = {}
        # Every request by the name of who made it.
        self.asked: dict[str, list[Record]] = {}
        self.end = 0.0
        self.violation: Violation | None = None

    def state(self, who: str, state: State) -> None:
        """Take what a member is; it is kept if anything but the moment has changed."""
        states = self.states.setdefault(who, [])
        if not states or states[-1][1:] != state[1:]:
            states.append(state)

    def ask(self, who: str, record: Record) -> None:
        """Take a request; its outcome will be in its record."""
        self.asked.setdefault(who, []).append(record)

    def of(self, who: str) -> list[Moment]:
        """Return what happened to one of them, in order."""
        return [each for each in self.events if each.who == who]
