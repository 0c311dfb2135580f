"""The shell of a program's threaded client on virtual time: `ThreadedClient`'s stand-in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pkgutil import walk_packages
from secrets import token_hex
from threading import Event, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from unittest.mock import patch

from kvorum.client.core import Core
from kvorum.client.endpoints import Address
from kvorum.client.options import FOREVER
from kvorum.client.rpcs import Rpc
from kvorum.client.sync import client, streams
from kvorum.client.sync.client import Client
from kvorum.sim.backups.threads import Threads, Waiter
from kvorum.sim.library.shell import Engine
from kvorum.tools import backup

if TYPE_CHECKING:
    from kvorum.sim.backups.program import Program
    from kvorum.sim.cluster import Cluster

T = TypeVar("T")
_LEFT_OUT = ("kvorum.tools.backup.s3", "kvorum.tools.backup.child")
"""Modules that need a network or a process of their own."""


class ThreadedShell:
    """The shell of one client of a program."""

    __slots__ = ("_engine", "_threads", "core", "watching")

    def __init__(self, threads: Threads, cluster: Cluster, program: Program, core: Core) -> None:
        process = program.process
        name = f"{process.name} {program.life}"
        self._threads = threads
        self._engine = Engine(threads.world, cluster, process, core, name, process.runs_at)
        self.core = core
        self.watching = self._engine.watching

    def turn(self) -> Engine:
        """Return a context in which the caller may use the core."""
        return self._engine

    def call(self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None) -> bytes:
        """Make a call and return its answer; raises the call's error."""
        waiter = Waiter()
        with self.turn():
            call = self.core.start(rpc, message, seconds_max, waiter.take_answer, at)
        try:
            self.wait(waiter)
        except BaseException:
            with self.turn():
                self.core.cancel(call)
            raise
        if isinstance(waiter.answer, bytes):
            return waiter.answer
        raise waiter.answer

    def wait(self, waiter: Waiter, until: float = FOREVER) -> None:
        """Return when a waiter is woken, or at moment `until`."""
        thread, world = self._threads.current, self._threads.world
        waiter.thread = thread
        while not waiter.is_done and world.now < until:
            thread.park(until)

    def start_reading(self) -> None:
        """Do nothing: this shell reads even if no call waits."""

    def hold(self, call: int, *, is_held: bool) -> None:
        """Do nothing: simulated snapshots are too short for back-pressure."""

    def work(self, function: Callable[[], T]) -> T:
        """Run a function that may take a while."""
        return function()

    def set_endpoints(self, addresses: Sequence[Address]) -> None:
        """Replace the client's endpoints."""
        with self.turn():
            self.core.set_endpoints(addresses)

    def close(self) -> None:
        """Close the core and its connections."""
        self._engine.close()

    @property
    def connections(self) -> tuple[int, int]:
        """The numbers of connections made and lost."""
        return self._engine.connections.connected, self._engine.connections.lost


class ThreadedSimClient(Client):
    """The library's client for threads on a `ThreadedShell`."""

    def __init__(self, shell: ThreadedShell, timeout: float) -> None:
        self.shell = cast("Any", shell)
        self._carrier = self._closes = self.shell
        self._timeout = timeout
        self._prefix = b""


def modules() -> list[ModuleType]:
    """Return the modules of `kvorum.tools.backup` that run in the simulation."""
    found = walk_packages(backup.__path__, "kvorum.tools.backup.")
    return [import_module(each.name) for each in found if each.name not in _LEFT_OUT]


@contextmanager
def threads_installed(threads: Threads, constants: dict[str, object]) -> Iterator[None]:
    """Within the block, run backups on these threads and with these values for constants."""
    chance = threads.world.stream("backups")
    names = {"time": time, "Event": Event, "Thread": Thread, "token_hex": token_hex}
    stand_ins = threads.stand_ins() | {"token_hex": lambda size: chance.randbytes(size).hex()}
    with ExitStack() as patches:
        for module in (client, streams):
            patches.enter_context(patch.object(module, "Waiter", Waiter))
        for name in ("clock", "monotonic"):
            patches.enter_context(patch.object(client, name, lambda: threads.world.now))
        for module in modules():
            for name, original in names.items():
                if getattr(module, name, None) is original:
                    patches.enter_context(patch.object(module, name, stand_ins[name]))
            for name, value in constants.items():
                if hasattr(module, name):
                    patches.enter_context(patch.object(module, name, value))
        yield
