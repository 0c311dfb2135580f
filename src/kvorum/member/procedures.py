"""The running procedures (calls of several steps), and the wait of each.

A procedure waits for keys with a watch of the hub, under a negative call number that no edge uses.
The watch's first response says that it was created; any later one means that a key changed or the
watch ended, and the procedure checks the state itself.

A procedure waits for one thing at a time. Every wait has a ticket; a wake-up with an old ticket
is late and ignored, so several sources may share one wait. Procedures run in the order in which
they were woken.
"""

from collections import deque
from enum import Enum
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from kvorum.member.waits import Answer, Signal, Steps
from kvorum.state.apply.callers import Caller

WakeUp = tuple["Procedure", object]


class WatchedStream(Protocol):
    """The part of a watch stream that procedures use."""

    def close(self) -> None:
        """Cancel the watch."""


class ProcedureWatch:
    """A watch that wakes a procedure."""

    __slots__ = ("call", "is_created", "procedure", "stream", "ticket")

    def __init__(self, call: int, stream: WatchedStream, procedure: "Procedure") -> None:
        self.call = call
        self.stream = stream
        self.procedure = procedure
        self.ticket = procedure.ticket
        self.is_created = False


class Exclusive(Enum):
    """Work that one procedure at a time does."""

    REVOKE_LEASES = "revoke expired leases"
    HASH = "hash the keys"
    TRANSFER = "transfer leadership"


class Procedure:
    """One call of several steps, which proposes and reads on behalf of its caller.

    Without a call number its result is discarded.
    """

    __slots__ = ("call", "caller", "is_held", "signal", "steps", "ticket", "watch")

    def __init__(self, call: int | None, caller: Caller, steps: Steps) -> None:
        self.call = call
        self.caller = caller
        self.steps: Steps | None = steps
        # The receiver is full: the procedure pauses after its next message.
        self.is_held = False
        self.ticket = 0
        self.watch = 0  # the call number of its watch
        self.signal: Signal | None = None  # the last signal that it waited for


Waiter = int | Procedure | None
"""The receiver of a result: a client's call by its number, a procedure, or none."""


class Procedures:
    """All running procedures."""

    __slots__ = (
        "_applied",
        "_calls",
        "_count",
        "_exclusive",
        "_flushed",
        "_for_leader",
        "_held",
        "_moments",
        "_questions",
        "_signalled",
        "_watches",
        "_watches_opened",
        "runnable",
    )

    def __init__(self) -> None:
        self._calls: dict[int, Procedure] = {}
        self.runnable: deque[WakeUp] = deque()
        self._exclusive: set[Exclusive] = set()
        self._count = 0
        # Heaps of (moment or index, count, procedure, ticket).
        self._moments: list[tuple[float, int, Procedure, int]] = []
        self._applied: list[tuple[int, int, Procedure, int]] = []
        self._flushed: list[tuple[int, int, Procedure, int]] = []
        # Tickets of the procedures that wait for each signal.
        self._signalled: dict[Signal, dict[Procedure, int]] = {each: {} for each in Signal}
        self._for_leader: list[tuple[Procedure, int]] = []
        self._questions: dict[int, tuple[Procedure, int]] = {}
        self._held: dict[int, Procedure] = {}
        self._watches: dict[int, ProcedureWatch] = {}
        self._watches_opened = 0

    def start(self, call: int | None, caller: Caller, steps: Steps) -> None:
        """Start a procedure; the turn runs its first step."""
        procedure = Procedure(call, caller, steps)
        if call is not None:
            assert call not in self._calls, f"call {call} has a procedure already"
            self._calls[call] = procedure
        self.runnable.append((procedure, None))

    def is_running(self, work: Exclusive) -> bool:
        """Return whether a procedure does some exclusive work."""
        return work in self._exclusive

    def begin_exclusive(self, work: Exclusive) -> None:
        """Note that a procedure begins exclusive work, which no other procedure does."""
        assert work not in self._exclusive, f"two procedures {work.value}"
        self._exclusive.add(work)

    def finish_exclusive(self, work: Exclusive) -> None:
        """Note that exclusive work has ended."""
        self._exclusive.remove(work)

    def cancel(self, call: int) -> None:
        """Close the procedure of a call whose client is gone; its `finally` blocks run."""
        procedure = self._calls.pop(call, None)
        if procedure is not None:
            self.end(procedure)

    def end(self, procedure: Procedure) -> None:
        """Close a procedure, with its watch and its waits."""
        steps, procedure.steps = procedure.steps, None
        if procedure.call is not None:
            self._calls.pop(procedure.call, None)
            self._held.pop(procedure.call, None)
        self._end_watch(procedure.watch)
        self._end_signal(procedure)
        if steps is not None:
            steps.close()

    def hold(self, call: int) -> None:
        """Pause the call's procedure after its next message."""
        if call in self._calls:
            self._calls[call].is_held = True

    def release(self, call: int) -> None:
        """Let the call's procedure send again."""
        if call in self._calls:
            self._calls[call].is_held = False
        held = self._held.pop(call, None)
        if held is not None:
            self.runnable.append((held, None))

    def resume(self, procedure: Procedure, answer: object) -> None:
        """Wake the procedure from any wait."""
        procedure.ticket += 1
        self.runnable.append((procedure, answer))

    def resume_at(self, procedure: Procedure, ticket: int, answer: object) -> None:
        """Wake the procedure if the ticket's wait is still its current one."""
        if procedure.ticket == ticket:
            procedure.ticket += 1
            self.runnable.append((procedure, answer))

    # Waits.

    def wait_until(self, procedure: Procedure, moment: float) -> None:
        """Wake the procedure at the moment."""
        if moment < inf:
            self._count += 1
            heappush(self._moments, (moment, self._count, procedure, procedure.ticket))

    def wait_applied(self, procedure: Procedure, index: int, moment: float) -> None:
        """Wake the procedure when the index is applied, or at the moment."""
        self._count += 1
        heappush(self._applied, (index, self._count, procedure, procedure.ticket))
        self.wait_until(procedure, moment)

    def wait_flushed(self, procedure: Procedure, index: int) -> None:
        """Wake the procedure when the index is durable."""
        self._count += 1
        heappush(self._flushed, (index, self._count, procedure, procedure.ticket))

    def wait_signalled(self, procedure: Procedure, signal: Signal, moment: float) -> None:
        """Wake the procedure at the signal, or at the moment."""
        self._end_signal(procedure)
        procedure.signal = signal
        self._signalled[signal][procedure] = procedure.ticket
        self.wait_until(procedure, moment)

    def _end_signal(self, procedure: Procedure) -> None:
        if procedure.signal is not None:
            self._signalled[procedure.signal].pop(procedure, None)

    def wait_for_leader(self, procedure: Procedure, moment: float) -> None:
        """Wake the procedure when a leader is known, or at the moment."""
        self._for_leader.append((procedure, procedure.ticket))
        self.wait_until(procedure, moment)

    def wait_answer(self, procedure: Procedure) -> int:
        """Return the number of a new question, whose answer wakes the procedure."""
        self._count += 1
        self._questions[self._count] = (procedure, procedure.ticket)
        return self._count

    def wait_writable(self, procedure: Procedure) -> None:
        """Wake the procedure when its call may send again."""
        assert procedure.call is not None
        self._held[procedure.call] = procedure

    def next_watch(self) -> int:
        """Return a call number for a watch."""
        self._watches_opened += 1
        return -self._watches_opened

    def wait_watched(self, procedure: Procedure, call: int, stream: WatchedStream) -> None:
        """Wake the procedure at its watch's first response after the creation."""
        procedure.watch = call
        self._watches[call] = ProcedureWatch(call, stream, procedure)

    def _end_watch(self, call: int) -> None:
        watch = self._watches.pop(call, None)
        if watch is not None:
            watch.procedure.watch = 0
            watch.stream.close()

    # Wake-ups.

    def take_watch_response(self, call: int) -> None:
        """Take a response of a watch."""
        watch = self._watches.get(call)
        if watch is None:
            return
        if not watch.is_created:
            watch.is_created = True
            return
        self._end_watch(call)
        self.resume_at(watch.procedure, watch.ticket, None)

    def wake_due(self, now: float) -> None:
        """Wake the procedures whose moment has come."""
        moments = self._moments
        while moments and moments[0][0] <= now:
            _, _, procedure, ticket = heappop(moments)
            self.resume_at(procedure, ticket, None)

    def wake_applied(self, index: int) -> None:
        """Wake the procedures that waited for this index or an earlier one."""
        applied = self._applied
        while applied and applied[0][0] <= index:
            _, _, procedure, ticket = heappop(applied)
            self.resume_at(procedure, ticket, None)

    def wake_flushed(self, index: int) -> None:
        """Wake the procedures that waited for this index, or an earlier one, to be durable."""
        flushed = self._flushed
        while flushed and flushed[0][0] <= index:
            _, _, procedure, ticket = heappop(flushed)
            self.resume_at(procedure, ticket, None)

    def is_flush_awaited(self, index: int) -> bool:
        """Return whether a flush up to this index would wake a procedure."""
        return bool(self._flushed) and self._flushed[0][0] <= index

    def signal(self, signal: Signal) -> None:
        """Wake the procedures that waited for a signal."""
        waiting = self._signalled[signal]
        if waiting:
            self._signalled[signal] = {}
            for procedure, ticket in waiting.items():
                self.resume_at(procedure, ticket, None)

    def signal_all(self) -> None:
        """Wake the procedures that waited for any signal."""
        for signal in Signal:
            self.signal(signal)

    def wake_for_leader(self, leader: int) -> None:
        """Wake the procedures that waited for a leader."""
        waiting, self._for_leader = self._for_leader, []
        for procedure, ticket in waiting:
            self.resume_at(procedure, ticket, leader)

    def take_answer(self, number: int, answer: Answer) -> None:
        """Wake the procedure that asked the question."""
        asked = self._questions.pop(number, None)
        if asked is not None:
            self.resume_at(*asked, answer)

    @property
    def next_moment(self) -> float | None:
        """When `wake_due` next wakes a procedure; None if no moment is set."""
        return self._moments[0][0] if self._moments else None
