"""An asyncio loop on virtual time: every callback is an event of the world.

Which program a callback belongs to is in its context, which tasks inherit. A program that stands
still runs its callbacks late, one that was killed runs none any more, not even to clean up.
"""

import asyncio
import sys
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple

from kvorum.sim.programs.program import PROGRAM, Program
from kvorum.sim.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ENDING_ROUNDS_MAX = 10
"""How often a task is cancelled when the run is over."""
_REFUSED = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "run_in_executor",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_sendall",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)
"""What leads out of the simulation."""


class ForbiddenError(RuntimeError):
    """A program used something that the simulation does not have, such as a socket or a thread."""


class VirtualLoop(BaseEventLoop):
    """The loop of all programs of a run; made anew for each."""

    def __init__(self, world: World, program: Program) -> None:
        """Let what is in no context belong to a program."""
        super().__init__()
        self._world = world
        self.program = program
        self._named = 0
        # What is still to be called when the run is over; None before.
        self._last: deque[asyncio.Handle] | None = None
        self._pending: dict[asyncio.Task[Any], None] = {}
        # What was to be called and was not: tasks of programs that were killed wait for it.
        self._due: dict[asyncio.Handle, None] = {}
        self.failure: BaseException | None = None
        """The first error that ends the run."""
        for name in _REFUSED:
            setattr(self, name, self._refusing(f"loop.{name}()"))

    def fail(self, error: BaseException) -> None:
        """Let the run end with an error, unless it does already."""
        if self.failure is None:
            self.failure = error

    def refuse(self, what: str) -> ForbiddenError:
        """Return the error of who uses what there is not; the run ends with it in any case."""
        error = ForbiddenError(
            f"{what} was called in a simulation, which has no sockets, threads or processes: use "
            "AsyncClient for the store, asyncio.sleep to wait, and a stand-in for anything else"
        )
        self.fail(error)
        return error

    def _refusing(self, what: str) -> Callable[..., Any]:
        def refused(*_: object, **__: object) -> Any:
            raise self.refuse(what)

        return refused

    # What asyncio calls.

    def time(self) -> float:
        """Return the virtual time, as the program that asks has it."""
        return PROGRAM.get(self.program).process.monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call something at this moment, after what is to be called already."""
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        if self._last is not None:
            self._last.append(handle)
        else:
            self._due[handle] = None
            self._world.after(0.0, self._call, handle, context.get(PROGRAM, self.program))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call something at this moment: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call something at a moment."""
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self._last is None:
            program: Program = context.get(PROGRAM, self.program)
            moment = max(when + program.process.stood, self._world.now)
            program.process.at(moment, self._call, handle, program)
        return handle

    def _call(self, handle: asyncio.Handle, program: Program) -> None:
        if handle.cancelled():
            self._due.pop(handle, None)
        elif not program.is_dead:
            process = program.process
            if not process.later(process.user_runs_at, self._call, handle, program):
                self._due.pop(handle, None)
                handle._run()

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        """Start a coroutine; without a name it is called by its number in this run."""
        self._named += 1
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self, name=str(name or f"task-{self._named}"), context=context
        )
        # Held here, so that none ends because it is collected.
        self._pending[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._pending.pop(task, None)
        # Whoever waits for it may never look; what was asserted must hold anyway.
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AssertionError):
            self.fail(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let the run fail if a callback failed."""
        if self._last is None and "handle" in context and "exception" in context:
            self.fail(context["exception"])

    # What the run does.

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let this be the loop that runs in the block; all its tasks end with the block."""
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook,  # type: ignore[attr-defined]
            finalizer=self._asyncgen_finalizer_hook,  # type: ignore[attr-defined]
        )
        asyncio._set_running_loop(self)
        try:
            yield
            self.end()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*before)
            self.close()

    def end(self) -> None:
        """Cancel what was not done when the run was over; whatever it still does has no effect."""
        last = self._last = deque(self._due)
        for _ in range(_ENDING_ROUNDS_MAX):
            for task in list(self._pending):
                task.cancel()
            while last:
                handle = last.popleft()
                if not handle.cancelled():
                    handle._run()
            if not self._pending:
                return
        for task in self._pending:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
