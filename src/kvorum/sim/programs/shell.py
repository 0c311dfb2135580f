"""The shell of a program's client, with simulated connections for its calls.

`AsyncClient` gets this shell in place of `kvorum.client.loop.LoopClient`, so programs make clients
as they do outside a simulation.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from kvorum.client.core import Core
from kvorum.client.endpoints import Address
from kvorum.client.errors import KvorumError
from kvorum.client.lease_keeper import KeptLease
from kvorum.client.loop import Waiter
from kvorum.client.options import FOREVER
from kvorum.client.rpcs import Rpc
from kvorum.sim.describe import describe_request
from kvorum.sim.history import Record
from kvorum.sim.library.shell import MESSAGES, Shell
from kvorum.sim.programs.program import PROGRAM

T = TypeVar("T")

CLIENT_PORT = 2379


class ProgramShell(Shell):
    """The shell of one client of the running program."""

    __slots__ = ("_program",)

    def __init__(self, core: Core, _context: object, _connect_seconds_max: float) -> None:
        self._program = program = PROGRAM.get()
        self._check([each.address for each in core.endpoints.all.values()])
        name = f"{program.name} {program.life}.{len(program.shells) + 1}"
        super().__init__(program.world, program.cluster, program.process, core, 0, name)
        program.shells.append(self)

    def _check(self, addresses: Sequence[Address]) -> None:
        machines = self._program.cluster.machines
        there = [f"m{number}:{CLIENT_PORT}" for number in machines]
        for address in addresses:
            if f"{address.host}:{address.port}" not in there:
                raise ValueError(
                    f"nobody listens at {address.text} in this simulation; give clients "
                    f"cluster.endpoints, which are {', '.join(there)}"
                )

    async def call(
        self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None
    ) -> bytes:
        """Make a call and return its answer; raises the call's error."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        record = self._told_of(rpc, message)

        def answered(answer: bytes | KvorumError) -> None:
            if record is not None and not self._program.is_dead:
                self._note(record, MESSAGES[rpc.path][1], answer)
            if future.done():
                return
            if isinstance(answer, bytes):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        with self._engine:
            call = self.core.start(rpc, message, seconds_max, answered, at)
        try:
            return await future
        finally:
            if future.cancelled():
                with self._engine:
                    self.core.cancel(call)

    def _told_of(self, rpc: Rpc, message: bytes) -> Record | None:
        """Add a call to the trace; return the record that its picture shows."""
        world, name = self._world, self.process.name
        if world.trace is None:
            return None
        kind = rpc.path.rpartition("/")[2].lower()
        if rpc.path not in MESSAGES:
            world.trace.line(world.now, name, kind)
            return None
        request = MESSAGES[rpc.path][0].FromString(message)
        record = Record(0, kind, 0, request, self._history.moment(), world.now)
        world.trace.line(world.now, name, f"{kind} #{record.invoked} {describe_request(request)}")
        world.trace.moments.ask(name, record)
        return record

    async def wait(self, waiter: Waiter, until: float = FOREVER) -> None:  # type: ignore[override]
        """Return when a waiter is woken, or at moment `until`."""
        with suppress(TimeoutError):
            stops = self.process.clock() - self.process.monotonic()
            async with asyncio.timeout_at(None if until == FOREVER else until - stops):
                await waiter.future

    def keep(
        self, lease: int, ttl: int, asked_at: float, on_change: Callable[[], None]
    ) -> KeptLease:
        """Keep a lease alive that was requested at moment `asked_at`."""
        loop, context = asyncio.get_running_loop(), copy_context()

        def changed() -> None:
            loop.call_soon(on_change, context=context)

        with self._keeper:
            return self._keeper.keeping.keep(lease, ttl, asked_at, changed)

    def hold(self, call: int, *, is_held: bool) -> None:
        """Do nothing: simulated servers send too little for back-pressure."""

    async def work(self, function: Callable[[], T]) -> T:
        """Run work that production runs in another thread."""
        return function()

    def set_endpoints(self, addresses: Sequence[Address]) -> None:
        """Replace the client's endpoints, including those that its leases use."""
        self._check(addresses)
        super().set_endpoints(addresses)
