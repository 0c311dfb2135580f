"""Threads of simulated programs: each has a stack of its own, and they run one at a time.

A thread that waits returns control to the run and continues in a later event of the world, so
blocking code runs unchanged. The clocks show the time of the running thread's program.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from kvorum.client.errors import KvorumError
from kvorum.sim.disk import ProcessEnd
from kvorum.sim.machine import UNIX_SECONDS
from kvorum.sim.steps import Stepped
from kvorum.sim.violation import Violation

if TYPE_CHECKING:
    from kvorum.sim.backups.program import Program
    from kvorum.sim.world import World

STEPS_MAX = 2000
"""A thread that runs more often than this at one moment makes no progress."""


class SimThread:
    """One thread of a program."""

    __slots__ = ("_epoch", "_stack", "_steps", "_steps_at", "_threads", "is_parked", "program")

    def __init__(self, threads: Threads, program: Program, call: Callable[[], object]) -> None:
        self._threads = threads
        self._stack = Stepped(call)
        # Counts the waits: a wake-up that arrives late belongs to an earlier wait.
        self._epoch = 0
        self._steps = 0
        self._steps_at = -1.0
        self.program = program
        self.is_parked = True
        threads.world.after(0.0, self._resume, self._epoch)

    @property
    def has_ended(self) -> bool:
        """Whether the thread's function has returned."""
        return self._stack.has_ended

    def park(self, until: float = inf) -> None:
        """Wait for `wake` or until a moment; only the thread itself may call this."""
        world = self._threads.world
        self._epoch += 1
        self.is_parked = True
        if until < inf:
            world.at(max(until, world.now), self._resume, self._epoch)
        self._stack.pause()

    def wake(self) -> None:
        """Continue the thread soon if it waits."""
        if self.is_parked:
            self._threads.world.after(0.0, self._resume, self._epoch)

    def end(self) -> None:
        """End the thread where it waits, because its process has ended."""
        if not self.has_ended:
            self._threads.run(self, lambda: self._stack.end(ProcessEnd()))

    def _resume(self, epoch: int) -> None:
        if epoch != self._epoch or not self.is_parked or self.program.is_dead or self.has_ended:
            return
        process, now = self.program.process, self._threads.world.now
        if process.later(process.runs_at, self._resume, epoch):
            return
        self._steps = self._steps + 1 if self._steps_at == now else 0
        self._steps_at = now
        if self._steps > STEPS_MAX:
            raise Violation("programs get somewhere", f"{process.name} is woken at {now} for ever")
        self.is_parked = False
        self._threads.run(self, self._stack.advance)
        if self.has_ended:
            try:
                self._stack.result()
            except ProcessEnd:
                return
            self.program.thread_ended(self)


class Threads:
    """The threads of all programs of a run; `current` is the running one."""

    __slots__ = ("_current", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self._current: SimThread | None = None

    @property
    def current(self) -> SimThread:
        """The running thread; code that waits always runs in one."""
        assert self._current is not None, "only a thread of a program can wait"
        return self._current

    def run(self, thread: SimThread, step: Callable[[], object]) -> None:
        """Run a thread until it waits again."""
        before, self._current = self._current, thread
        try:
            step()
        finally:
            self._current = before

    def sleep(self, seconds: float) -> None:
        """Make the running thread wait for this many seconds."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.current.park(until)

    def offset(self) -> float:
        """Return by how many seconds the running program's clock is off."""
        return 0.0 if self._current is None else self._current.program.clock.offset

    def stand_ins(self) -> dict[str, object]:
        """Return stand-ins for Python's clocks, events and threads, by their usual names."""
        threads = self

        class Clock:
            """The functions of module `time`."""

            @staticmethod
            def time() -> float:
                """Return the wall clock of the running program."""
                return UNIX_SECONDS + threads.world.now + threads.offset()

            @staticmethod
            def monotonic() -> float:
                """Return a clock that never jumps."""
                return threads.world.now

        class Event:
            """A stand-in for `threading.Event`."""

            def __init__(self) -> None:
                self._is_set = False
                self._waiting: list[SimThread] = []

            def is_set(self) -> bool:
                """Return whether the event is set."""
                return self._is_set

            def set(self) -> None:
                """Set the event and wake all waiting threads."""
                self._is_set = True
                for each in self._waiting:
                    each.wake()

            def clear(self) -> None:
                """Reset the event."""
                self._is_set = False

            def wait(self, timeout: float | None = None) -> bool:
                """Wait until the event is set, or until the timeout."""
                world, thread = threads.world, threads.current
                until = inf if timeout is None else world.now + timeout
                self._waiting.append(thread)
                try:
                    while not self._is_set and world.now < until:
                        thread.park(until)
                finally:
                    self._waiting.remove(thread)
                return self._is_set

        class Thread:
            """A stand-in for `threading.Thread`."""

            def __init__(
                self, *, target: Callable[[], object], name: str = "", daemon: bool = False
            ) -> None:
                self._target = target
                self._ended = Event()
                del name, daemon

            def start(self) -> None:
                """Start a thread in the running program."""

                def work() -> None:
                    self._target()
                    self._ended.set()

                threads.current.program.start_thread(work)

            def join(self) -> None:
                """Wait until the thread has ended."""
                self._ended.wait()

        return {"time": Clock, "Event": Event, "Thread": Thread}


class Waiter:
    """One wait of a thread, as `Waiter` in `kvorum.client.threads`."""

    __slots__ = ("answer", "is_done", "thread")

    def __init__(self) -> None:
        self.is_done = False
        self.answer: bytes | KvorumError = b""
        self.thread: SimThread | None = None

    def take_answer(self, answer: bytes | KvorumError) -> None:
        """Store an answer and end the wait."""
        self.answer = answer
        self.wake()

    def wake(self) -> None:
        """End the wait."""
        self.is_done = True
        if self.thread is not None:
            self.thread.wake()
