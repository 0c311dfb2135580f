"""The calls of several steps that are in progress, and what each of them waits for.

Keys are waited for with a watch of the hub's, under a call number below 0 that no edge has. Its
first response says that it was created; any other means that something happened, or that the watch
cannot tell any more, and the procedure checks for itself.

A procedure waits for one thing at a time. Every wait has a ticket; a wake-up with an old ticket
comes too late and is ignored, so a wait may be given to several sources at once. Procedures
run in the order in which they were woken.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from kvorum.member.callers import Caller
from kvorum.member.waits import Answer, Signal, Steps

Woken = tuple["Procedure", object]


class Stream(Protocol):
    """A watch stream, as far as it is used here."""

    def close(self) -> None:
        """End it."""


class Watch:
    """A watch that wakes a procedure."""

    __slots__ = ("call", "is_created", "procedure", "stream", "ticket")

    def __init__(self, call: int, stream: Stream, procedure: "Procedure") -> None:
        self.call = call
        self.stream = stream
        self.procedure = procedure
        self.ticket = procedure.ticket
        self.is_created = False


class Procedure:
    """One call of several steps. Without the number of a call, its result goes nowhere.

    It proposes and reads on behalf of its caller.
    """

    __slots__ = ("call", "caller", "is_held", "signal", "steps", "ticket", "watch")

    def __init__(self, call: int | None, caller: Caller, steps: Steps) -> None:
        self.call = call
        self.caller = caller
        self.steps: Steps | None = steps
        # Its receiver is full: it waits after what it sends.
        self.is_held = False
        self.ticket = 0
        self.watch = 0  # the call of its watch
        self.signal: Signal | None = None  # the last one that it waited for


Waiter = int | Procedure | None
"""Who gets a result: the client of a call, by its number, a procedure, or nobody."""


class Procedures:
    """All procedures that are in progress."""

    __slots__ = (
        "_applied",
        "_asked",
        "_calls",
        "_count",
        "_flushed",
        "_for_leader",
        "_held",
        "_moments",
        "_signalled",
        "_watches",
        "_watches_opened",
        "runnable",
    )

    def __init__(self) -> None:
        self._calls: dict[int, Procedure] = {}
        self.runnable: deque[Woken] = deque()
        self._count = 0
        # Heaps of (what is waited for, count, procedure, ticket).
        self._moments: list[tuple[float, int, Procedure, int]] = []
        self._applied: list[tuple[int, int, Procedure, int]] = []
        self._flushed: list[tuple[int, int, Procedure, int]] = []
        # Tickets of those that wait for a signal.
        self._signalled: dict[Signal, dict[Procedure, int]] = {each: {} for each in Signal}
        self._for_leader: list[tuple[Procedure, int]] = []
        self._asked: dict[int, tuple[Procedure, int]] = {}
        self._held: dict[int, Procedure] = {}
        self._watches: dict[int, Watch] = {}
        self._watches_opened = 0

    def start(self, call: int | None, caller: Caller, steps: Steps) -> None:
        """Begin a procedure; its first step is run in the turn."""
        procedure = Procedure(call, caller, steps)
        if call is not None:
            assert call not in self._calls, f"call {call} has a procedure already"
            self._calls[call] = procedure
        self.runnable.append((procedure, None))

    def cancel(self, call: int) -> None:
        """Close the procedure of a call whose client is gone; its own clean-up runs."""
        procedure = self._calls.pop(call, None)
        if procedure is not None:
            self.end(procedure)

    def end(self, procedure: Procedure) -> None:
        """Forget a procedure."""
        steps, procedure.steps = procedure.steps, None
        if procedure.call is not None:
            self._calls.pop(procedure.call, None)
            self._held.pop(procedure.call, None)
        self._end_watch(procedure.watch)
        self._end_signal(procedure)
        if steps is not None:
            steps.close()

    def hold(self, call: int) -> None:
        """Let the call's procedure wait after what it sends."""
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
        """Wake the procedure, whatever it waits for."""
        procedure.ticket += 1
        self.runnable.append((procedure, answer))

    def resume_at(self, procedure: Procedure, ticket: int, answer: object) -> None:
        """Wake the procedure if it still waits for what it got the ticket for."""
        if procedure.ticket == ticket:
            procedure.ticket += 1
            self.runnable.append((procedure, answer))

    # Waits.

    def wait_until(self, procedure: Procedure, moment: float) -> None:
        """Wake it when the moment has come."""
        if moment < inf:
            self._count += 1
            heappush(self._moments, (moment, self._count, procedure, procedure.ticket))

    def wait_applied(self, procedure: Procedure, index: int, moment: float) -> None:
        """Wake it when the index is applied, or at the moment."""
        self._count += 1
        heappush(self._applied, (index, self._count, procedure, procedure.ticket))
        self.wait_until(procedure, moment)

    def wait_flushed(self, procedure: Procedure, index: int) -> None:
        """Wake it when the index is durable."""
        self._count += 1
        heappush(self._flushed, (index, self._count, procedure, procedure.ticket))

    def wait_signalled(self, procedure: Procedure, signal: Signal, moment: float) -> None:
        """Wake it at the signal, or at the moment."""
        self._end_signal(procedure)
        procedure.signal = signal
        self._signalled[signal][procedure] = procedure.ticket
        self.wait_until(procedure, moment)

    def _end_signal(self, procedure: Procedure) -> None:
        if procedure.signal is not None:
            self._signalled[procedure.signal].pop(procedure, None)

    def wait_for_leader(self, procedure: Procedure, moment: float) -> None:
        """Wake it when a leader is known, or at the moment."""
        self._for_leader.append((procedure, procedure.ticket))
        self.wait_until(procedure, moment)

    def wait_answer(self, procedure: Procedure) -> int:
        """Return the number of a question whose answer wakes it."""
        self._count += 1
        self._asked[self._count] = (procedure, procedure.ticket)
        return self._count

    def wait_writable(self, procedure: Procedure) -> None:
        """Wake it when its call may send again."""
        assert procedure.call is not None
        self._held[procedure.call] = procedure

    def next_watch(self) -> int:
        """Return a call number for a watch."""
        self._watches_opened += 1
        return -self._watches_opened

    def wait_watched(self, procedure: Procedure, call: int, stream: Stream) -> None:
        """Wake it when its watch reports anything."""
        procedure.watch = call
        self._watches[call] = Watch(call, stream, procedure)

    def _end_watch(self, call: int) -> None:
        watch = self._watches.pop(call, None)
        if watch is not None:
            watch.procedure.watch = 0
            watch.stream.close()

    # Wake-ups.

    def watched(self, call: int) -> None:
        """Take a response to a watch."""
        watch = self._watches.get(call)
        if watch is None:
            return
        if not watch.is_created:
            watch.is_created = True
            return
        self._end_watch(call)
        self.resume_at(watch.procedure, watch.ticket, None)

    def passed(self, now: float) -> None:
        """Wake those whose moment has come."""
        moments = self._moments
        while moments and moments[0][0] <= now:
            _, _, procedure, ticket = heappop(moments)
            self.resume_at(procedure, ticket, None)

    def applied(self, index: int) -> None:
        """Wake those that waited for this index or an earlier one."""
        applied = self._applied
        while applied and applied[0][0] <= index:
            _, _, procedure, ticket = heappop(applied)
            self.resume_at(procedure, ticket, None)

    def flushed(self, index: int) -> None:
        """Wake those that waited for this index, or an earlier one, to be durable."""
        flushed = self._flushed
        while flushed and flushed[0][0] <= index:
            _, _, procedure, ticket = heappop(flushed)
            self.resume_at(procedure, ticket, None)

    def awaits_flush(self, index: int) -> bool:
        """Return whether a flush up to this index would wake any."""
        return bool(self._flushed) and self._flushed[0][0] <= index

    def signal(self, signal: Signal) -> None:
        """Wake those that waited for a signal."""
        waiting = self._signalled[signal]
        if waiting:
            self._signalled[signal] = {}
            for procedure, ticket in waiting.items():
                self.resume_at(procedure, ticket, None)

    def signal_all(self) -> None:
        """Wake those that waited for any signal."""
        for signal in Signal:
            self.signal(signal)

    def leader_known(self, leader: int) -> None:
        """Wake those that waited for a leader."""
        waiting, self._for_leader = self._for_leader, []
        for procedure, ticket in waiting:
            self.resume_at(procedure, ticket, leader)

    def take_answer(self, number: int, answer: Answer) -> None:
        """Wake the procedure that asked the question."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            self.resume_at(*asked, answer)

    @property
    def next_moment(self) -> float | None:
        """When `passed` has something to do."""
        return self._moments[0][0] if self._moments else None
