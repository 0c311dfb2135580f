"""How far a member has come, turn by turn: the way of any request can be told from it afterwards.

Nothing is noted per request. Each turn that moved something leaves one row; a request is then found
in the rows by the time it was served, because its entry gets one of the next indexes, and its read
the next round. Rows tell turns apart, and no more: requests of one turn have the same way.

The steps of a write are `queue` (until it is served), `propose` (until its entry is in the log, at
a follower by way of the leader), `durable` (until this member has written it), `commit`, `apply`
and `reply`. Where a quorum of others is faster than the own disk, there is no `durable`. A
linearizable read has `queue`, `wait` (for an earlier question to the leader), `confirm` (for its
own), `read` and `reply`; any other call `queue`, `serve` and `reply`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.member.member import Member

ROWS_MAX: Final = 8192
MERGED_SECONDS: Final = 0.001
"""Rows that are closer to each other are merged unless exact ones are wanted: so all rows together
cover some seconds at least."""

Row = tuple[float, int, int, int, int, int, int, int]
"""When, last index, durable index, committed index, applied index, rounds of reads that began,
rounds that ended, requests that arrived and are not served."""
TIME: Final = 0
PROPOSED: Final = 1
DURABLE: Final = 2
COMMITTED: Final = 3
APPLIED: Final = 4
ASKED: Final = 5
CONFIRMED: Final = 6
UNSERVED: Final = 7

Step = tuple[str, float, float]
"""A step of a request, when it began and when it ended. Names are joined by `+` where the rows do
not go back far enough to tell steps apart."""


class Way(Enum):
    """Which steps a request takes."""

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
        # All rows but the last one, which is below: it is kept once there is one after it that is
        # far enough from those before.
        self._rows: deque[Row] = deque(maxlen=ROWS_MAX)
        self._kept_at = -inf
        self._time = -inf
        self._proposed = self._durable = self._committed = self._applied = -1
        self._asked = self._confirmed = self._unserved = -1
        self._noted = -inf
        """When the last turn was noted, whether or not anything had moved."""

    def note(self, member: Member, unserved: int, now: float) -> None:
        """Leave a row if anything moved; called in each turn before its answers are sent."""
        self._noted = now
        log, reads = member.node.raft.log, member.reads
        proposed, durable = log.last_index(), log.unstable.offset - 1
        committed, applied = log.committed, member.applied
        asked, confirmed = reads.rounds_begun, reads.rounds_ended
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
        """Return what there is, oldest first."""
        return [*self._rows, self._last()] if self._applied >= 0 else []

    def steps(self, way: Way, arrived: float, ended: float, *, is_done: bool = True) -> list[Step]:
        """Return the steps of a request that has just ended, in their order and without gaps.

        Unless it `is_done`, it failed, and the last step is the one in which it did. Must be called
        before another turn is noted.
        """
        rows = self.rows()
        first = next((at for at, row in enumerate(rows) if row[TIME] >= arrived), len(rows))
        is_queued = False
        while first < len(rows) and rows[first][UNSERVED]:
            first, is_queued = first + 1, True
        # In the turn in which it arrived, it waited for nothing.
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
                    # It went on without: a quorum of others had the entry first.
                    continue
                names = f"{names}+{name}" if names else name
                if moment == inf:
                    return [*steps, (names, began, ended)]
                if way is Way.READ and moment == rows[first][TIME]:
                    # Nothing was waited for, either: the turn took its time to read.
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
    """Return what a request that was served by the row `first` waited for: an index, or a round."""
    before = rows[first - 1] if first else None
    if way is Way.READ:
        return 0 if before is None else before[ASKED] + 1
    # Its entry is one of those that came since then.
    index = 0 if before is None else before[PROPOSED] + 1
    if not is_done:
        # It was not applied, so the last of them tells how far it came.
        return max(index, rows[first][PROPOSED])
    if len(rows) > 1 and rows[-1][APPLIED] > rows[-2][APPLIED]:
        # And it was applied in the last turn.
        index = max(index, rows[-2][APPLIED] + 1)
    return index


def _reached(rows: Sequence[Row], column: int, value: int, first: int) -> float:
    """Return when a column reached a value: `-inf` if before all rows, `inf` if it has not."""
    if not first and rows[0][column] >= value:
        return -inf
    for row in rows[first:]:
        if row[column] >= value:
            return row[TIME]
    return inf
