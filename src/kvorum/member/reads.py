"""Linearizable reads: one question to the leader for all reads that wait.

A round asks raft which index a read now must see. Reads that come while a round runs wait for
the next one, because the answer may be older than they are. A round asks again after a while
with a new context, since questions and answers may be lost, and at once when there is another
leader; an answer to any of its contexts counts, and no other.

An answer on the leader also says that a quorum followed it when the question was asked. Those that
want to know only this do not wait for anything to be applied.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from kvorum.api.marks import mark
from kvorum.raft.states import ReadState, Role

if TYPE_CHECKING:
    from kvorum.member.callers import Caller
    from kvorum.member.member import Member
    from kvorum.member.procedures import Procedure, Waiter
    from kvorum.member.results import Sliced
    from kvorum.mvcc.ranges import RangeResult
    from kvorum.mvcc.slices import Slices
    from kvorum.raft.rawnode import RawNode

RETRY_SECONDS: Final = 0.5

Execute = Callable[["Member", "Caller", Any], "Sliced | Slices[RangeResult]"]
Read = tuple["Waiter", "Caller", "Execute | None", Any, object]
"""The waiter, the caller, what is run once it may read, its request, and the turn's start by the
stopwatch: a float."""


class _Round:
    __slots__ = ("asked_at", "confirming", "reads", "retry_at", "started")

    def __init__(self, reads: list[Read], confirming: "list[Procedure | None]", now: float) -> None:
        self.reads = reads
        self.confirming = confirming
        self.started = now
        # When each question was asked, on the clock that never stands still; by its context.
        self.asked_at: dict[bytes, float] = {}
        self.retry_at = now


class Reads:
    """Reads that wait for a round, for its answer, or until the answer's index is applied."""

    __slots__ = (
        "_boot_clock",
        "_next_id",
        "_round",
        "confirmed",
        "confirmed_at",
        "confirming",
        "failed_rounds",
        "rounds_begun",
        "rounds_ended",
        "slow_rounds",
        "waiting",
    )

    def __init__(self, next_id: Callable[[], int], boot_clock: Callable[[], float]) -> None:
        self._next_id = next_id
        self._boot_clock = boot_clock
        self.waiting: list[Read] = []
        # Those that only want to know whether this member still leads.
        self.confirming: list[Procedure | None] = []
        # When the newest answered question was asked, on the clock that never stands still. As long
        # as this member leads, no other was elected before that moment.
        self.confirmed_at = -inf
        self.failed_rounds = 0
        # Answers that came too late, and rounds that were given up; for metrics.
        self.slow_rounds = 0
        # A read that comes now belongs to the round that begins next.
        self.rounds_begun = 0
        self.rounds_ended = 0
        self._round: _Round | None = None
        # (index to be applied, reads, when their round began), in order of the rounds.
        self.confirmed: deque[tuple[int, list[Read], float]] = deque()

    def ask(self, node: "RawNode", now: float) -> None:
        """Begin a round if reads wait and none runs; ask again if the last question is old."""
        current = self._round
        if current is None:
            if not (self.waiting or self.confirming):
                return
            current = self._round = _Round(self.waiting, self.confirming, now)
            self.rounds_begun += 1
            self.waiting, self.confirming = [], []
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
        current.asked_at[context] = self._boot_clock()
        node.read_index(context)

    def ask_again(self) -> None:
        """Let the next `ask` repeat the question at once."""
        if self._round is not None:
            self._round.retry_at = 0.0

    def confirm_soon(self) -> None:
        """Ask soon whether this member leads, unless that is being asked already."""
        if self._round is None and not self.confirming:
            self.confirming.append(None)

    def confirmed_since(self) -> float:
        """Return how many seconds ago the newest answered question was asked."""
        return self._boot_clock() - self.confirmed_at

    def forget_confirmation(self) -> None:
        """Note that another may lead: the last confirmation no longer counts."""
        self.confirmed_at = -inf

    def answered(self, states: Sequence[ReadState]) -> "list[Procedure | None]":
        """Take raft's answers; return those that only wanted a confirmation."""
        confirmed: list[Procedure | None] = []
        for state in states:
            current = self._round
            asked_at = None if current is None else current.asked_at.get(state.context)
            if current is not None and asked_at is not None:
                self.confirmed.append((state.index, current.reads, current.started))
                self.confirmed_at = asked_at
                confirmed += current.confirming
                self._round = None
                self.rounds_ended += 1
            else:
                mark("late read index answer")
                self.slow_rounds += 1
        return confirmed

    def expire(self, started_before: float) -> "tuple[list[Read], list[Procedure | None]]":
        """Give up the round if it began before a moment; return what waited for it.

        First the reads, then those that only wanted a confirmation.
        """
        current = self._round
        if current is None or current.started > started_before:
            return [], []
        mark("read round given up")
        self._round = None
        self.failed_rounds += 1
        self.slow_rounds += 1
        self.rounds_ended += 1
        return current.reads, current.confirming

    def expire_confirmed(self, started_before: float) -> list[Read]:
        """Give up the reads of rounds that began before a moment, and whose index is not applied.

        A member that was removed, or is cut off, may never get the entries up to there.
        """
        reads: list[Read] = []
        while self.confirmed and self.confirmed[0][2] <= started_before:
            reads += self.confirmed.popleft()[1]
        return reads

    def take_ready(self, applied: int) -> list[Read]:
        """Return the reads that may run now."""
        ready: list[Read] = []
        while self.confirmed and self.confirmed[0][0] <= applied:
            ready += self.confirmed.popleft()[1]
        return ready

    def in_flight(self) -> Iterator[Read]:
        """Return the reads that wait here."""
        yield from self.waiting
        if self._round is not None:
            yield from self._round.reads
        for _, reads, _ in self.confirmed:
            yield from reads

    @property
    def wake_at(self) -> float | None:
        """When to ask again, if nothing else happens."""
        current = self._round
        return None if current is None else current.retry_at

    @property
    def is_waiting(self) -> bool:
        """Whether a round has to begin."""
        return self._round is None and bool(self.waiting or self.confirming)
