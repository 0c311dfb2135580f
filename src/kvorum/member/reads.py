"""Linearizable reads: one question to the leader for all reads that wait.

A round asks raft which index a read now must see. Reads that come while a round runs wait for
the next one, because the answer may be older than they are. A round asks again after a while
with a new context, since questions and answers may be lost, and at once when there is another
leader; any answer to any of its contexts counts, and none to another's.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from kvorum.api.marks import mark
from kvorum.raft.states import ReadState, Role

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.procedures import Procedure
    from kvorum.member.slices import Sliced
    from kvorum.mvcc.ranges import RangeResult
    from kvorum.mvcc.slices import Slices
    from kvorum.raft.rawnode import RawNode

RETRY_SECONDS: Final = 0.5

Execute = Callable[["Member", Any], "Sliced | Slices[RangeResult]"]
Read = tuple["int | Procedure | None", "Execute | None", Any]
"""Who waits, what is run for it once it may read, and its request."""


class _Round:
    __slots__ = ("contexts", "reads", "retry_at", "started")

    def __init__(self, reads: list[Read], now: float) -> None:
        self.reads = reads
        self.started = now
        self.contexts: list[bytes] = []
        self.retry_at = now


class Reads:
    """Reads that wait for a round, for its answer, or for what the answer tells to be applied."""

    __slots__ = ("_next_id", "_round", "confirmed", "failed_rounds", "waiting")

    def __init__(self, next_id: Callable[[], int]) -> None:
        self._next_id = next_id
        self.waiting: list[Read] = []
        self.failed_rounds = 0
        self._round: _Round | None = None
        # (index to be applied, reads), in order of their rounds.
        self.confirmed: deque[tuple[int, list[Read]]] = deque()

    def ask(self, node: "RawNode", now: float) -> None:
        """Begin a round if reads wait and none runs; ask again if the last question is old."""
        current = self._round
        if current is None:
            if not self.waiting:
                return
            current = self._round = _Round(self.waiting, now)
            self.waiting = []
        elif now < current.retry_at:
            return
        else:
            mark("read index retried")
        raft = node.raft
        if raft.role == Role.LEADER and raft.log.term_or_zero(raft.log.committed) != raft.term:
            # A leader does not know what is committed before it has committed something itself;
            # the first entry of its term is on its way.
            current.retry_at = inf
            return
        current.retry_at = now + RETRY_SECONDS
        context = self._next_id().to_bytes(8, "big")
        current.contexts.append(context)
        node.read_index(context)

    def ask_again(self) -> None:
        """Let the next `ask` repeat the question at once."""
        if self._round is not None:
            self._round.retry_at = 0.0

    def answered(self, states: Sequence[ReadState]) -> float:
        """Take raft's answers; return when the round that they end began, -inf if none ends."""
        started = -inf
        for state in states:
            current = self._round
            if current is not None and state.context in current.contexts:
                self.confirmed.append((state.index, current.reads))
                started = current.started
                self._round = None
            else:
                mark("late read index answer")
        return started

    def expire(self, started_before: float) -> list[Read]:
        """Give up the round if it began before a moment; return its reads."""
        current = self._round
        if current is None or current.started > started_before:
            return []
        mark("read round given up")
        self._round = None
        self.failed_rounds += 1
        return current.reads

    def take_ready(self, applied: int) -> list[Read]:
        """Return the reads that may run now."""
        ready: list[Read] = []
        while self.confirmed and self.confirmed[0][0] <= applied:
            ready += self.confirmed.popleft()[1]
        return ready

    @property
    def wake_at(self) -> float | None:
        """When to ask again, if nothing else happens."""
        current = self._round
        return None if current is None else current.retry_at

    @property
    def is_waiting(self) -> bool:
        """Whether a round has to begin."""
        return self._round is None and bool(self.waiting)
