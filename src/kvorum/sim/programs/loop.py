"""An asyncio loop on virtual time: every callback is an event of the world.

Each callback belongs to the program in its context, which tasks inherit. A paused program runs its
callbacks late; a killed program runs none, not even to clean up.
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
"""How often a task is cancelled at the end of the run before it is abandoned."""
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
"""Methods that would reach outside the simulation."""


class ForbiddenError(RuntimeError):
    """A program used something that the simulation does not have, such as a socket or a thread."""


class VirtualLoop(BaseEventLoop):
    """The loop of all programs of one run."""

    def __init__(self, world: World, program: Program) -> None:
        """Make a loop whose callbacks belong to `program` unless their context names another."""
        super().__init__()
        self._world = world
        self.program = program
        self._named = 0
        # Callbacks to run after the end of the run; None before.
        self._last: deque[asyncio.Handle] | None = None
        self._pending: dict[asyncio.Task[Any], None] = {}
        # Callbacks that have not run: tasks of killed programs wait for theirs until the end.
        self._due: dict[asyncio.Handle, None] = {}
        self.failure: BaseException | None = None
        """The first error that ends the run."""
        for name in _REFUSED:
            setattr(self, name, self._refusing(f"loop.{name}()"))

    def fail(self, error: BaseException) -> None:
        """End the run with an error, unless an earlier one already ends it."""
        if self.failure is None:
            self.failure = error

    def refuse(self, what: str) -> ForbiddenError:
        """Fail the run because a program used `what`, and return the error to raise."""
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
        """Return the virtual time as seen by the running program."""
        return PROGRAM.get(self.program).process.monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call something at this moment, after everything already due."""
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
        """Call something at this moment; the simulation has only one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call something at a moment of the program's clock."""
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
        """Start a coroutine; an unnamed task is named by its number in this run."""
        self._named += 1
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self, name=str(name or f"task-{self._named}"), context=context
        )
        # This reference keeps the garbage collector from ending the task.
        self._pending[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._pending.pop(task, None)
        # An awaiting task may ignore the result, but a failed assertion must still fail the run.
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AssertionError):
            self.fail(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run if a callback failed."""
        if self._last is None and "handle" in context and "exception" in context:
            self.fail(context["exception"])

    # What the run calls.

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop within the block; all its tasks end with the block."""
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
        """Cancel the tasks left at the end of the run; their further work has no effect."""
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
