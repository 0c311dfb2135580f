"""The data of a run's picture: the states of members over time, and the events of the run.

The trace records the data, so only runs with a trace have it. Nothing here asks the run for
anything, and nothing in a run depends on it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvorum.sim.history import Record
    from kvorum.sim.violation import Violation


class Kind(Enum):
    """The kind of an event."""

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
    # The operator, the run and watches.
    OPERATOR = auto()
    FAULTS_END = auto()
    WATCH_BEGUN = auto()
    WATCH_GOT = auto()
    WATCH_ENDED = auto()


class Moment(NamedTuple):
    """An event of a run."""

    at: float
    who: str
    kind: Kind
    what: str
    """The event in words, as in the trace."""
    until: float
    """When the event is over; the same moment if it does not last."""
    about: tuple[str, ...]
    """Other members that the event concerns: those that were cut off."""


class State(NamedTuple):
    """The state of a member from a moment on."""

    at: float
    process: int
    """The number of the machine's process, counted from 1."""
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
    """Everything that the picture of a run shows."""

    __slots__ = ("asked", "end", "events", "states", "violation")

    def __init__(self) -> None:
        self.events: list[Moment] = []
        # The states of each member by its name, where they changed.
        self.states: dict[str, list[State]] = {}
        # Every request, by the name of its client.
        self.asked: dict[str, list[Record]] = {}
        self.end = 0.0
        self.violation: Violation | None = None

    def state(self, who: str, state: State) -> None:
        """Record a member's state, if anything but the moment has changed."""
        states = self.states.setdefault(who, [])
        if not states or states[-1][1:] != state[1:]:
            states.append(state)

    def ask(self, who: str, record: Record) -> None:
        """Record a request; its record will get the outcome."""
        self.asked.setdefault(who, []).append(record)

    def of(self, who: str) -> list[Moment]:
        """Return the events of one member or client, in order."""
        return [each for each in self.events if each.who == who]
