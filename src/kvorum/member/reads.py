"""Linearizable reads: one ReadIndex round for all reads that wait.

A round asks raft which index a read must see now. Reads that arrive during a round wait for the
next one, because the round's answer may be older than they are. A round retries with a new context
after a while, since requests and answers may be lost, and at once under a new leader; an answer to
any of its contexts counts, and no other.

On the leader an answer also proves that a quorum followed it at the time of the request.
Procedures that need only this confirmation do not wait for any entry to be applied.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from kvorum.api.coverage import reach
from kvorum.raft.states import ReadState, Role

if TYPE_CHECKING:
    from kvorum.member.procedures import Procedure, Waiter
    from kvorum.raft.rawnode import RawNode
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Sliced
    from kvorum.state.apply.state import State
    from kvorum.state.mvcc.ranges import RangeResult
    from kvorum.state.mvcc.slices import Slices

RETRY_SECONDS: Final = 0.5

Execute = Callable[["State", "Caller", Any], "Sliced | Slices[RangeResult]"]
Read = tuple["Waiter", "Caller", "Execute | None", Any, object]
"""The waiter, the caller, the function to run once the read may run (None: nothing), its request,
and the turn's start by the stopwatch: a float."""


class _Round:
    __slots__ = ("confirming", "reads", "retry_at", "sent_at", "started")

    def __init__(self, reads: list[Read], confirming: "list[Procedure | None]", now: float) -> None:
        self.reads = reads
        self.confirming = confirming
        self.started = now
        # When each request was sent, by the boot clock; keyed by its context.
        self.sent_at: dict[bytes, float] = {}
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
        "rounds_ended",
        "rounds_started",
        "slow_rounds",
        "waiting",
    )

    def __init__(self, next_id: Callable[[], int], boot_clock: Callable[[], float]) -> None:
        self._next_id = next_id
        self._boot_clock = boot_clock
        self.waiting: list[Read] = []
        # Procedures that only need a confirmation that this member still leads.
        self.confirming: list[Procedure | None] = []
        # When the newest answered request was sent, by the boot clock. While this member leads, no
        # other was elected before that moment.
        self.confirmed_at = -inf
        self.failed_rounds = 0
        # Late answers and abandoned rounds; for metrics.
        self.slow_rounds = 0
        # A read that arrives now belongs to the next round to start.
        self.rounds_started = 0
        self.rounds_ended = 0
        self._round: _Round | None = None
        # (index to be applied, reads, start of their round), in the order of the rounds.
        self.confirmed: deque[tuple[int, list[Read], float]] = deque()

    def request_round(self, node: "RawNode", now: float) -> None:
        """Start a round if reads wait and none runs; retry the running one if it is due."""
        current = self._round
        if current is None:
            if not (self.waiting or self.confirming):
                return
            current = self._round = _Round(self.waiting, self.confirming, now)
            self.rounds_started += 1
            self.waiting, self.confirming = [], []
        elif now < current.retry_at:
            return
        else:
            reach("read index retried")
        raft = node.raft
        if raft.role == Role.LEADER and raft.log.term_or_zero(raft.log.committed) != raft.term:
            # A leader learns the commit index only by committing an entry of its own term; the
            # first one is on its way, and applying it triggers a retry.
            current.retry_at = inf
            return
        current.retry_at = now + RETRY_SECONDS
        context = self._next_id().to_bytes(8, "big")
        current.sent_at[context] = self._boot_clock()
        node.read_index(context)

    def retry_soon(self) -> None:
        """Let the next `request_round` retry the running round at once."""
        if self._round is not None:
            self._round.retry_at = 0.0

    def confirm_soon(self) -> None:
        """Request a confirmation that this member leads, unless a round is under way."""
        if self._round is None and not self.confirming:
            self.confirming.append(None)

    def confirmation_age(self) -> float:
        """Return how many seconds ago raft got the newest request that it has answered."""
        return self._boot_clock() - self.confirmed_at

    def forget_confirmation(self) -> None:
        """Discard the last confirmation, because another member may lead."""
        self.confirmed_at = -inf

    def take_answers(self, states: Sequence[ReadState]) -> "list[Procedure | None]":
        """Take raft's answers; return the procedures that only needed a confirmation."""
        confirmed: list[Procedure | None] = []
        for state in states:
            current = self._round
            sent_at = None if current is None else current.sent_at.get(state.context)
            if current is not None and sent_at is not None:
                self.confirmed.append((state.index, current.reads, current.started))
                self.confirmed_at = sent_at
                confirmed += current.confirming
                self._round = None
                self.rounds_ended += 1
            else:
                reach("late read index answer")
                self.slow_rounds += 1
        return confirmed

    def expire(self, started_before: float) -> "tuple[list[Read], list[Procedure | None]]":
        """Abandon the round if it started before a moment; return the waiters.

        These are its reads, and the procedures that only needed a confirmation.
        """
        current = self._round
        if current is None or current.started > started_before:
            return [], []
        reach("read round abandoned")
        self._round = None
        self.failed_rounds += 1
        self.slow_rounds += 1
        self.rounds_ended += 1
        return current.reads, current.confirming

    def expire_confirmed(self, started_before: float) -> list[Read]:
        """Abandon reads of rounds that started before a moment and whose index is not applied.

        A removed or disconnected member may never receive the entries up to that index.
        """
        reads: list[Read] = []
        while self.confirmed and self.confirmed[0][2] <= started_before:
            reads += self.confirmed.popleft()[1]
        return reads

    def take_ready(self, applied: int) -> list[Read]:
        """Return the reads whose index is applied, which may run now."""
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
        """When the running round retries; None without one."""
        current = self._round
        return None if current is None else current.retry_at

    @property
    def is_waiting(self) -> bool:
        """Whether a round has to start."""
        return self._round is None and bool(self.waiting or self.confirming)
