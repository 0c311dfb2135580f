"""A member's progress by turn, from which the steps of any request can be computed afterwards.

Milestones cost nothing per request. Each turn that changed an index or a count leaves one row. A
request is located in the rows by the time it was served: its entry gets one of the next indexes,
and its read the next ReadIndex round. All requests of one turn have the same steps.

The steps of a write are `queue` (until it is served), `propose` (until its entry is in the log; a
follower's proposal goes through the leader), `durable` (until this member has synced the entry),
`commit`, `apply` and `reply`. If a quorum of other members is faster than this member's disk, there
is no `durable`. The steps of a linearizable read are `queue`, `wait` (for an earlier ReadIndex
round), `confirm` (for its own round), `read` and `reply`; those of any other call are `queue`,
`serve` and `reply`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.member.replica import Replica

ROWS_MAX: Final = 8192
MERGED_SECONDS: Final = 0.001
"""Rows closer than this are merged, unless the milestones are exact, so that all rows together
cover at least some seconds."""

Row = tuple[float, int, int, int, int, int, int, int]
"""Time, last index, durable index, commit index, applied index, ReadIndex rounds started, rounds
ended, requests that have arrived and are not served."""
TIME: Final = 0
PROPOSED: Final = 1
DURABLE: Final = 2
COMMITTED: Final = 3
APPLIED: Final = 4
ASKED: Final = 5
CONFIRMED: Final = 6
UNSERVED: Final = 7

Step = tuple[str, float, float]
"""The name of a request's step, its start and its end. `+` joins the names of steps that cannot be
told apart because the rows do not go back far enough."""


class Way(Enum):
    """The kinds of requests, by their steps."""

    WRITE = "a proposal"
    READ = "a linearizable read"
    OTHER = "anything else"


_STEPS: Final[dict[Way, tuple[tuple[str, int], ...]]] = {
    Way.WRITE: (("propose", PROPOSED), ("durable", DURABLE), ("commit", COMMITTED)),
    Way.READ: (("wait", ASKED), ("confirm", CONFIRMED)),
    Way.OTHER: (),
}
_LAST: Final = {Way.WRITE: "apply", Way.READ: "read", Way.OTHER: "serve"}


class Milestones:
    """The rows of the last turns."""

    def __init__(self, *, are_exact: bool = False) -> None:
        self.merged_seconds = 0.0 if are_exact else MERGED_SECONDS
        # All rows but the newest, whose columns are the attributes below. The newest is appended
        # here once a later one exists, if it is not too close to the row before.
        self._rows: deque[Row] = deque(maxlen=ROWS_MAX)
        self._kept_at = -inf
        self._time = -inf
        self._proposed = self._durable = self._committed = self._applied = -1
        self._asked = self._confirmed = self._unserved = -1
        self._noted = -inf
        """When the last turn was noted, with or without a change."""

    def note(self, replica: Replica, unserved: int, now: float) -> None:
        """Record a row if anything changed; called in each turn before its answers are sent."""
        self._noted = now
        log, reads = replica.node.raft.log, replica.reads
        proposed, durable = log.last_index(), log.unstable.offset - 1
        committed, applied = log.committed, replica.state.applied
        asked, confirmed = reads.rounds_started, reads.rounds_ended
        if (
            applied == self._applied
            and proposed == self._proposed
            and durable == self._durable
            and committed == self._committed
            and asked == self._asked
            and confirmed == self._confirmed
            and unserved == self._unserved
        ):
            return
        if now - self._kept_at >= self.merged_seconds and self._applied >= 0:
            self._rows.append(self._last())
            self._kept_at = self._time
        self._time, self._proposed, self._durable = now, proposed, durable
        self._committed, self._applied = committed, applied
        self._asked, self._confirmed, self._unserved = asked, confirmed, unserved

    def _last(self) -> Row:
        return (
            self._time,
            self._proposed,
            self._durable,
            self._committed,
            self._applied,
            self._asked,
            self._confirmed,
            self._unserved,
        )

    def rows(self) -> list[Row]:
        """Return all rows, oldest first."""
        return [*self._rows, self._last()] if self._applied >= 0 else []

    def steps(self, way: Way, arrived: float, ended: float, *, is_done: bool = True) -> list[Step]:
        """Return the steps of a request that has just ended, in order and without gaps.

        Without `is_done` the request failed, and the last step is the one in which it failed. The
        caller must call this before another turn is noted.
        """
        rows = self.rows()
        first = next((at for at, row in enumerate(rows) if row[TIME] >= arrived), len(rows))
        is_queued = False
        while first < len(rows) and rows[first][UNSERVED]:
            first, is_queued = first + 1, True
        # A request that was served in the turn in which it arrived did not wait.
        is_served = first < len(rows)
        began = min(rows[first][TIME], ended) if is_queued and is_served else arrived
        steps: list[Step] = [("queue", arrived, began)]
        names = ""
        if is_served:
            wanted = _wanted(way, rows, first, is_done)
            committed = _reached(rows, COMMITTED, wanted, first)
            for name, column in _STEPS[way]:
                moment = _reached(rows, column, wanted, first)
                if column == DURABLE and committed < moment:
                    # A quorum of other members had the entry before this member's sync.
                    continue
                names = f"{names}+{name}" if names else name
                if moment == inf:
                    return [*steps, (names, began, ended)]
                if way is Way.READ and moment == rows[first][TIME]:
                    # The read did not wait for a round; its turn spent the time on reading.
                    moment = began
                if moment >= arrived:
                    moment = min(max(moment, began), ended)
                    steps.append((names, began, moment))
                    began, names = moment, ""
        last = f"{names}+{_LAST[way]}" if names else _LAST[way]
        if not is_done:
            if not is_served and _STEPS[way]:
                last = _STEPS[way][0][0]
            return [*steps, (last, began, ended)]
        answered = min(max(self._noted, began), ended)
        return [*steps, (last, began, answered), ("reply", answered, ended)]


def _wanted(way: Way, rows: Sequence[Row], first: int, is_done: bool) -> int:
    """Return the log index, or the ReadIndex round, of a request that row `first` served."""
    before = rows[first - 1] if first else None
    if way is Way.READ:
        return 0 if before is None else before[ASKED] + 1
    # The request's entry is one of those appended since the row before.
    index = 0 if before is None else before[PROPOSED] + 1
    if not is_done:
        # The entry was not applied, so take the last of them to find how far it came.
        return max(index, rows[first][PROPOSED])
    if len(rows) > 1 and rows[-1][APPLIED] > rows[-2][APPLIED]:
        # The entry was applied in the last turn.
        index = max(index, rows[-2][APPLIED] + 1)
    return index


def _reached(rows: Sequence[Row], column: int, value: int, first: int) -> float:
    """Return when a column reached a value: `-inf` if before all rows, `inf` if not yet."""
    if not first and rows[0][column] >= value:
        return -inf
    for row in rows[first:]:
        if row[column] >= value:
            return row[TIME]
    return inf
