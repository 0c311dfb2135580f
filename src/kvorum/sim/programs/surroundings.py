"""Replace Python's clocks, randomness, threads and sockets for programs in a simulation.

Clocks are virtual and random numbers come from the seed; threads, sockets, processes and real
sleeps are refused. Only the simulating thread is affected: other threads of the process, such as a
test runner's, keep the real functions.
"""

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.client.aio import client
from kvorum.sim.library.process import Process
from kvorum.sim.library.shell import client_names, clocks
from kvorum.sim.machine import UNIX_SECONDS
from kvorum.sim.programs.loop import VirtualLoop
from kvorum.sim.programs.program import PROGRAM
from kvorum.sim.programs.shell import ProgramShell
from kvorum.sim.world import World


@contextmanager
def surrounded(world: World, loop: VirtualLoop) -> Iterator[None]:
    """Give programs only the run's clocks, randomness and clients within the block."""
    thread = threading.get_ident()

    def process() -> Process:
        return PROGRAM.get(loop.program).process

    chance = world.stream("programs")
    before = random.getstate()

    def here(owner: Any, name: str, stand_in: Callable[..., Any]) -> Any:
        real = getattr(owner, name)

        def either(*arguments: Any, **named: Any) -> Any:
            is_here = threading.get_ident() == thread
            return (stand_in if is_here else real)(*arguments, **named)

        return patch.object(owner, name, either)

    def refused(owner: Any, name: str, what: str) -> Any:
        def refuse(*_: object, **__: object) -> Any:
            raise loop.refuse(what)

        return here(owner, name, refuse)

    unix_seconds = int(UNIX_SECONDS)
    with ExitStack() as patches:
        for each in (
            here(time, "time", lambda: UNIX_SECONDS + world.now),
            here(time, "time_ns", lambda: unix_seconds * 10**9 + int(world.now * 1e9)),
            here(time, "monotonic", lambda: process().monotonic()),
            here(time, "monotonic_ns", lambda: int(process().monotonic() * 1e9)),
            here(time, "perf_counter", lambda: process().monotonic()),
            here(time, "perf_counter_ns", lambda: int(process().monotonic() * 1e9)),
            here(os, "urandom", chance.randbytes),
            here(random, "_urandom", chance.randbytes),
            refused(time, "sleep", "time.sleep()"),
            refused(threading.Thread, "start", "threading.Thread.start()"),
            refused(socket.socket, "__init__", "socket.socket()"),
            refused(socket, "getaddrinfo", "socket.getaddrinfo()"),
            refused(subprocess.Popen, "__init__", "subprocess.Popen()"),
            patch.object(client, "Shell", ProgramShell),
            client_names(clocks(world, process)),
        ):
            patches.enter_context(each)
        random.seed(f"{world.seed}/random")
        try:
            yield
        finally:
            random.setstate(before)
