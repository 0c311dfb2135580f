"""The shell around the library's core in a run, in the place of asyncio's loop.

It has the names of `kvorum.client.loop.LoopClient` that the client uses, so that the client and its
recipes run unchanged. The history records every call, including those that the library's parts
start. A write that ends with OutcomeUnknownError, ClosedError or NoSpaceError counts as one that
may have taken effect; a call with any other error counts as one that has not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, cast
from unittest.mock import patch

from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.client import aio, loop
from kvorum.client.aio.client import AsyncClient
from kvorum.client.core import ClientCall, Core, OnAnswer, TakeMessage
from kvorum.client.endpoints import Address
from kvorum.client.errors import (
    CallError,
    ClosedError,
    KvorumError,
    NoSpaceError,
    OutcomeUnknownError,
)
from kvorum.client.lease_keeper import KeptLease, LeaseKeeper
from kvorum.client.options import FOREVER, TIMEOUT_SECONDS
from kvorum.client.rpcs import Rpc
from kvorum.client.watch_set import WatchSet
from kvorum.sim.calls import METHODS, PlannedRequest
from kvorum.sim.cluster import Cluster
from kvorum.sim.describe import describe_request, describe_result
from kvorum.sim.history import History, Record
from kvorum.sim.library.connections import Connections
from kvorum.sim.library.process import Process
from kvorum.sim.library.tasks import Waiter
from kvorum.sim.violation import Violation
from kvorum.sim.world import World

WAKES_MAX = 1000
"""A client that is woken more often than this at one moment makes no progress."""
MESSAGES: dict[str, tuple[Any, Any]] = {
    path: (request, response) for request, (path, response) in METHODS.items()
}
"""The request and response types of each call that the trace can describe."""


class RecordedCore(Core):
    """A core that records all calls in the history, including those of the library's own parts.

    For example, a leasing client gives up keys and revokes its lease without a call by its user.
    Without a record of that revocation, the lease would seem to have ended too early.
    """

    shell: "Shell"
    """The shell of this core; it records the calls of the library's user."""

    def start(
        self,
        rpc: Rpc,
        message: bytes,
        seconds_max: float,
        on_answer: OnAnswer,
        at: int | None = None,
        on_message: TakeMessage | None = None,
    ) -> ClientCall:
        """Start and record a call of a part of the library."""
        if rpc.path in MESSAGES:
            on_answer = self.shell.recorded(rpc, message, on_answer)
        return super().start(rpc, message, seconds_max, on_answer, at, on_message)


class Engine:
    """A core with its simulated connections and its timer."""

    __slots__ = (
        "_is_settling",
        "_process",
        "_runs_at",
        "_wakes",
        "_wakes_at",
        "_woken_at",
        "_world",
        "connections",
        "core",
        "keeping",
        "watching",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        process: Process,
        core: Core,
        name: str,
        runs_at: Callable[[], float],
    ) -> None:
        self._world = world
        self._process = process
        self._runs_at = runs_at
        self.core = core
        self.watching = WatchSet(core)
        self.keeping = LeaseKeeper(core)
        self.connections = Connections(world, cluster, process, core, name, runs_at, self.settle)
        core.transport = self.connections
        self._is_settling = False
        self._wakes_at = FOREVER
        # Counts the wake-ups at one moment.
        self._wakes = 0
        self._woken_at = -1.0

    def __enter__(self) -> None:
        self.core.now = self._process.clock()

    def __exit__(self, *_: object) -> None:
        self.settle()

    def settle(self) -> None:
        """Set the timer after all other events of this moment."""
        if not self._is_settling:
            self._is_settling = True
            self._world.after(0.0, self._set_timer)

    def _set_timer(self) -> None:
        self._is_settling = False
        parts = (self.core, self.watching, self.keeping)
        moment = min(part.wake_at() for part in parts)
        # As production's loop does, set a timer again that a suspension made late.
        is_late = self._process.stood > 0 and self._wakes_at <= self.core.now
        if not self.connections.is_closed and (moment < self._wakes_at or is_late):
            self._wakes_at = moment
            if moment < FOREVER:
                moment_there = max(self._process.world_moment(moment), self._world.now)
                self._process.at(moment_there, self._wake, moment)

    def _wake(self, moment: float) -> None:
        if moment != self._wakes_at or self.connections.is_closed:
            return
        if self._process.later(self._runs_at, self._wake, moment):
            return
        now, self._wakes_at = self._process.clock(), FOREVER
        self._wakes = self._wakes + 1 if self._woken_at == now else 0
        self._woken_at = now
        if self._wakes > WAKES_MAX:
            raise Violation(
                "clients get somewhere", f"{self._process.name} is woken at {now} for ever"
            )
        self.core.now = now
        self.core.pass_time(now)
        self.watching.pass_time(now)
        self.keeping.pass_time(now)
        self.settle()

    def close(self) -> None:
        """Close the core and its connections."""
        self.core.now = self._process.clock()
        self.core.close()
        self.watching.close()
        self.keeping.close()
        self.connections.close()


class Shell:
    """The shell of one client: a core for its user, and another that keeps leases alive."""

    __slots__ = (
        "_cluster",
        "_engine",
        "_history",
        "_keeper",
        "_number",
        "_world",
        "core",
        "last",
        "process",
        "watching",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        process: Process,
        core: Core,
        number: int,
        name: str = "",
    ) -> None:
        """Make the shell of a client; each client of a process needs a `name` of its own."""
        self._world = world
        self._cluster = cluster
        self._history: History = cluster.history
        self._number = number
        self.process = process
        name = name or process.name
        self._engine = Engine(world, cluster, process, core, name, process.user_runs_at)
        self._keeper = Engine(
            world, cluster, process, core.copy(), f"{name} keeper", process.runs_at
        )
        self.core = core
        if isinstance(core, RecordedCore):
            core.shell = self
        self.watching = self._engine.watching
        # The record of the last answered call.
        self.last: Record | None = None

    # Methods that the client calls, as on production's shells.

    def turn(self) -> Engine:
        """Return a context in which the caller may use the core."""
        return self._engine

    async def call(
        self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None
    ) -> bytes:
        """Make a call and return its answer; raises the call's error."""
        assert at is None, "nobody here calls one endpoint"
        record, answer = await self._make(_asked(rpc, message), rpc, seconds_max)
        if isinstance(answer, KvorumError):
            raise answer
        self.last = record
        return answer

    async def wait(self, waiter: Waiter, until: float = FOREVER) -> None:
        """Return when a waiter is woken, or at moment `until`."""
        if until < FOREVER:
            moment = max(self.process.world_moment(until), self._world.now)
            self.process.at(moment, waiter.wake)
        await waiter

    def start_reading(self) -> None:
        """Do nothing: this shell reads even if no call waits."""

    def keep(
        self, lease: int, ttl: int, asked_at: float, on_change: Callable[[], None]
    ) -> KeptLease:
        """Keep a lease alive that was requested at moment `asked_at`."""

        def changed() -> None:
            if not self._process_later(changed):
                on_change()

        with self._keeper:
            return self._keeper.keeping.keep(
                lease, ttl, asked_at, lambda: self._world.after(0.0, changed)
            )

    def _process_later(self, call: Callable[[], None]) -> bool:
        return self.process.later(self.process.user_runs_at, call)

    def release(self, kept: KeptLease) -> None:
        """Stop keeping a lease alive."""
        with self._keeper:
            self._keeper.keeping.release(kept)

    def set_endpoints(self, addresses: Sequence[Address]) -> None:
        """Replace the client's endpoints, including those that its leases use."""
        for engine in (self._engine, self._keeper):
            with engine:
                engine.core.set_endpoints(addresses)

    async def close(self) -> None:
        """Close the client."""
        self.end()

    # Methods that the run calls.

    def end(self) -> None:
        """Kill the process: both cores and their connections close without a message."""
        self._engine.close()
        self._keeper.close()

    @property
    def connections(self) -> tuple[int, int]:
        """The numbers of connections made and lost."""
        engines = (self._engine.connections, self._keeper.connections)
        return sum(each.connected for each in engines), sum(each.lost for each in engines)

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds of the client's clock."""
        await self.wait(Waiter(), self.process.clock() + seconds)

    async def ask(self, asked: PlannedRequest, rpc: Rpc, seconds_max: float) -> Record:
        """Make a call and return its record, also if it failed."""
        record, _ = await self._make(asked, rpc, seconds_max)
        return record

    async def _make(
        self, asked: PlannedRequest, rpc: Rpc, seconds_max: float
    ) -> tuple[Record, bytes | KvorumError]:
        record = self._record(asked)
        answers: list[bytes | KvorumError] = []
        waiter = Waiter()

        def take_answer(answer: bytes | KvorumError) -> None:
            answers.append(answer)
            self._note(record, MESSAGES[rpc.path][1], answer)
            waiter.wake()

        with self._engine:
            # `RecordedCore.start` would record the call again, and without its expectation.
            message = asked.request.SerializeToString()
            call = Core.start(self.core, rpc, message, seconds_max, take_answer)
        try:
            await waiter
        finally:
            if not answers:
                with self._engine:
                    self.core.cancel(call)
        return record, answers[0]

    def recorded(self, rpc: Rpc, message: bytes, then: OnAnswer) -> OnAnswer:
        """Record a call of a part of the library; return the callback for its answer."""
        record = self._record(_asked(rpc, message))

        def take_answer(answer: bytes | KvorumError) -> None:
            self._note(record, MESSAGES[rpc.path][1], answer)
            then(answer)

        return take_answer

    def _record(self, asked: PlannedRequest) -> Record:
        """Add a request to the history before it is sent."""
        world, history = self._world, self._history
        record = Record(self._number, asked.kind, 0, asked.request, history.moment(), world.now)
        record.expected = asked.expected
        record.linearizable = asked.linearizable
        history.records.append(record)
        if world.trace is not None:
            text = f"{asked.kind} #{record.invoked} {describe_request(asked.request)}"
            world.trace.line(world.now, self.process.name, text)
            world.trace.moments.ask(self.process.name, record)
        return record

    def _note(self, record: Record, kind: Any, answer: bytes | KvorumError) -> None:
        """Record how a call ended, as far as the library reports whether it took effect."""
        world = self._world
        record.finished = world.now
        if isinstance(answer, bytes):
            record.response = kind.FromString(answer)
        elif isinstance(answer, CallError) and not isinstance(answer, NoSpaceError):
            record.response = Status(answer.code, answer.text)
        elif not isinstance(answer, OutcomeUnknownError | ClosedError | NoSpaceError):
            record.response = Status(Code.UNAVAILABLE, str(answer))
        if record.response is not None:
            record.returned = self._history.moment()
        if world.trace is not None:
            told = answer if isinstance(answer, bytes) else Status(Code.UNKNOWN, str(answer))
            text = describe_result(told, record.response)
            world.trace.line(world.now, self.process.name, f"= #{record.invoked} {text}")


def _asked(rpc: Rpc, message: bytes) -> PlannedRequest:
    request = MESSAGES[rpc.path][0].FromString(message)
    is_current = not (isinstance(request, RangeRequest) and request.serializable)
    return PlannedRequest(rpc.path.rpartition("/")[2].lower(), request, (), is_current)


class SimulatedClient(AsyncClient):
    """The library's client on a simulated shell."""

    def __init__(self, shell: Shell) -> None:
        self.shell = cast("loop.LoopClient", shell)
        self._carrier = self._closes = self.shell
        self._timeout = TIMEOUT_SECONDS
        self._prefix = b""


def clocks(world: World, running: Callable[[], Process]) -> dict[str, object]:
    """Return the running process's clocks and random numbers, by the client's names for them."""
    random = world.stream("library")
    return {
        "clock": lambda: running().clock(),
        "monotonic": lambda: running().monotonic(),
        "random_id": lambda: random.getrandbits(62) + 1,
        "unix_nanoseconds": lambda: int(world.now * 1e9) + random.getrandbits(10),
    }


@contextmanager
def client_names(names: Mapping[str, object]) -> Iterator[None]:
    """Within the block, replace these names that the client imports from the asyncio shell."""
    with ExitStack() as patches:
        for found in walk_packages(aio.__path__, "kvorum.client.aio."):
            module = import_module(found.name)
            for name, value in names.items():
                if getattr(module, name, None) is getattr(loop, name):
                    patches.enter_context(patch.object(module, name, value))
        yield
