"""The arguments of a scenario: a simulated cluster, its members, and processes that use it.

Everything happens on virtual time. The seed's faults restart the processes that they kill. A
process that the scenario itself kills stays dead until it is restarted, or until the faults end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from random import Random
from typing import Any, TypeVar

from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import KvorumError
from kvorum.sim.cluster import Cluster
from kvorum.sim.library.process import Process
from kvorum.sim.machine import Machine
from kvorum.sim.moments import Kind
from kvorum.sim.programs.faults import draw_gap
from kvorum.sim.programs.loop import VirtualLoop
from kvorum.sim.programs.program import PROGRAM, Program
from kvorum.sim.programs.shell import CLIENT_PORT
from kvorum.sim.world import World

T = TypeVar("T")

_PAUSES = (0.2, 2.0, 15.0)
_CUTS = (0.2, 2.0, 15.0)
_DOWN_SECONDS = (0.1, 2.0, 10.0)
"""Upper limits of a fault's duration for a process; the seed chooses one of them."""
_CHECK_SECONDS = 0.05
_RESTART_SECONDS = 0.2

Main = Callable[[], Coroutine[Any, Any, object]]


class SimulatedProcess:
    """A process of the user's program, which can be killed amid its work, and restarted.

    A kill stops all its code, without running any `finally` or `except`. Its connections are reset,
    and its leases expire.
    """

    def __init__(self, cluster: "SimulatedCluster", main: Main, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._main = main
        self._process = Process(cluster._world, name)
        self._random: Random = cluster._world.stream(f"troubles {name}")
        self._program: Program | None = None
        self._lives = 0
        self._fault_gap_seconds = draw_gap(self._random, cluster._kinds)
        # Whether faults have killed the process, and will start it again.
        self._is_restart_expected = False

    @property
    def is_running(self) -> bool:
        """Whether the process was started, and neither killed nor done; a paused process counts."""
        return self._program is not None

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._program is not None:
            return
        cluster = self._cluster
        self._lives += 1
        self._is_restart_expected = False
        program = Program(cluster._world, cluster._cluster, self._process, self._lives)
        self._program = program
        cluster._programs.append(program)
        program.line(f"starts, life {self._lives}")
        context = copy_context()
        context.run(PROGRAM.set, program)
        task = cluster._loop.create_task(self._main(), name=self.name, context=context)
        task.add_done_callback(self._take_end, context=cluster._context)
        self._schedule_fault()

    restart = start

    def kill(self) -> None:
        """Kill the process: nothing is cleaned up, and its connections are reset."""
        if self._program is not None:
            program, self._program = self._program, None
            program.line("killed", Kind.KILLED)
            program.end()

    def pause(self, seconds: float) -> None:
        """Pause the process with all its threads, as one that is stopped or swapped out."""
        self._line(f"paused for {seconds:.3f}", Kind.PAUSED, seconds)
        until = self._cluster.now + seconds
        self._process.paused_until = max(self._process.paused_until, until)

    def suspend(self, seconds: float) -> None:
        """Suspend its machine, as a laptop sleeps: its monotonic clock stands still as well."""
        self._line(f"suspended for {seconds:.3f}", Kind.PAUSED, seconds)
        self._process.suspend(seconds)

    def cut_off(self, seconds: float) -> None:
        """Let no bytes pass between the process and the cluster for a while."""
        self._line(f"cut off for {seconds:.3f}", Kind.CUT_OFF, seconds)
        until = self._cluster.now + seconds
        self._process.cut_until = max(self._process.cut_until, until)

    def _line(self, what: str, kind: Kind | None = None, seconds: float = 0.0) -> None:
        if self._program is not None:
            self._program.line(what, kind, seconds)

    def _take_end(self, task: asyncio.Task[object]) -> None:
        """Handle the end of a life: an uncaught error would end a real process, too."""
        error = None if task.cancelled() else task.exception()
        if self._program is None:
            return
        self._line("ended" if error is None else f"ended with {error!r}")
        self._program.end()
        self._program = None
        if isinstance(error, KvorumError):
            self._is_restart_expected = True
            self._cluster._loop.call_later(_RESTART_SECONDS, self._restart_if_expected)
        elif error is not None:
            self._cluster._loop.fail(error)

    def _restart_if_expected(self) -> None:
        if self._is_restart_expected:
            self.start()

    # Faults by the seed.

    def _schedule_fault(self) -> None:
        if self._fault_gap_seconds and not self._cluster._is_calm:
            wait = self._random.expovariate(1 / self._fault_gap_seconds)
            self._cluster._world.after(wait, self._inject_fault, self._program)

    def _inject_fault(self, program: Program) -> None:
        random, cluster = self._random, self._cluster
        if program is not self._program or cluster._is_calm:
            return
        choice = random.random()
        if choice < 0.4:
            cluster._count("processes paused")
            self.pause(random.uniform(0.0, random.choice(_PAUSES)))
        elif choice < 0.7:
            cluster._count("processes cut off")
            self.cut_off(random.uniform(0.0, random.choice(_CUTS)))
        else:
            cluster._count("processes killed")
            self.kill()
            self._is_restart_expected = True
            seconds = random.uniform(0.0, random.choice(_DOWN_SECONDS))
            cluster._world.after(seconds, self._restart_if_expected)
            return
        self._schedule_fault()


class SimulatedCluster:
    """A cluster of real members on virtual time, the argument of a scenario."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        loop: VirtualLoop,
        program: Program,
        kinds: tuple[str, ...],
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._loop = loop
        self._kinds = kinds
        self._programs = [program]
        self._processes: list[SimulatedProcess] = []
        self._is_calm = False
        self._counts: dict[str, int] = {}
        self._context = copy_context()
        self._context.run(PROGRAM.set, program)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    def _machine(self, name: str) -> Machine:
        for machine in self._cluster.machines.values():
            if machine.name == name:
                return machine
        raise ValueError(f"{name!r} is no member; there are {', '.join(self.members)}")

    # Properties.

    @property
    def seed(self) -> int:
        """The seed of this run."""
        return self._world.seed

    @property
    def now(self) -> float:
        """The elapsed virtual seconds; `asyncio` and `time.monotonic` use the same clock."""
        return self._world.now

    @property
    def members(self) -> list[str]:
        """The names of the members, `m1` and so on."""
        return [machine.name for machine in self._cluster.machines.values()]

    @property
    def endpoints(self) -> list[str]:
        """The client endpoints of the members: `AsyncClient(cluster.endpoints)`."""
        return [f"{name}:{CLIENT_PORT}" for name in self.members]

    @property
    def leader(self) -> str | None:
        """The leader of the newest term, if there is one; other members may not know it yet."""
        leaders = [
            machine
            for machine in self._cluster.machines.values()
            if machine.member is not None and machine.member.is_leader
        ]
        if not leaders:
            return None
        return max(leaders, key=lambda each: each.member.term if each.member else 0).name

    def client(self, **options: Any) -> AsyncClient:
        """Return a client of all members, with the options of `AsyncClient`.

        The client belongs to the calling process, and vanishes when that is killed.
        """
        return AsyncClient(self.endpoints, **options)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        PROGRAM.get().line(text)

    # Processes and tasks of a scenario.

    def process(self, main: Main, name: str = "") -> SimulatedProcess:
        """Start a process that runs a coroutine function; faults may pause, cut off and kill it.

        Faults restart a process that they killed, and also one that ends with an error of the
        store, as supervisors do. Any other error that ends a process fails the run.
        """
        made = SimulatedProcess(self, main, name or f"p{len(self._processes) + 1}")
        if any(each.name == made.name for each in self._processes) or made.name in self.members:
            raise ValueError(f"there is a process or member {made.name!r} already")
        self._processes.append(made)
        made.start()
        return made

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Start a task beside the scenario; no fault stops it, and an error in it fails the run."""
        task = self._loop.create_task(coroutine, name=name or None, context=self._context.copy())

        def ended(task: asyncio.Task[T]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._loop.fail(error)

        task.add_done_callback(ended, context=self._context)
        return task

    # Faults and repairs by the scenario.

    def kill(self, member: str, *, power_cut: bool = False) -> None:
        """Kill a member; with a power cut, it loses the writes that it has not synced."""
        self._machine(member).crash(power_cut=power_cut)

    def restart(self, member: str) -> None:
        """Start a member that is down."""
        machine = self._machine(member)
        if machine.is_dead:
            machine.start()

    def pause(self, member: str, seconds: float) -> None:
        """Pause a member."""
        self._machine(member).pause(seconds)

    def partition(self, *members: str) -> None:
        """Let no bytes pass between these members and the others; clients reach all of them."""
        side = [self._machine(name).number for name in members]
        others = [number for number in self._cluster.machines if number not in side]
        self._cluster.network.divide(side, others)

    def reconnect(self) -> None:
        """End a partition."""
        self._cluster.network.heal()

    async def heal(self) -> None:
        """End all faults and restart their victims; return when every member and process works."""
        self._is_calm = True
        self._cluster.stop_faults()
        for process in self._processes:
            process._restart_if_expected()
        for process in self._processes:
            ends_at = max(process._process.paused_until, process._process.cut_until)
            await asyncio.sleep(max(0.0, ends_at - self.now))
        for endpoint in self.endpoints:
            async with AsyncClient(endpoint) as client:
                await _retry_until_success(lambda client=client: client.get(b"\0"))  # type: ignore[misc]

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Return when a condition holds; raise AssertionError after this many virtual seconds."""
        deadline = self.now + seconds
        while not condition():
            assert self.now < deadline, f"still not so after {seconds:g} virtual seconds"
            await asyncio.sleep(_CHECK_SECONDS)


async def _retry_until_success(ask: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await ask()
        except KvorumError:
            await asyncio.sleep(_CHECK_SECONDS)
        else:
            return
