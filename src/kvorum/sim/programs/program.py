"""A user's process: its name, when it runs, and its open clients."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from kvorum.sim.library.process import Process

if TYPE_CHECKING:
    from kvorum.sim.cluster import Cluster
    from kvorum.sim.moments import Kind
    from kvorum.sim.programs.shell import ProgramShell
    from kvorum.sim.world import World


class Program:
    """One life of a process; a restart makes another object."""

    __slots__ = ("cluster", "is_dead", "life", "process", "shells", "world")

    def __init__(self, world: World, cluster: Cluster, process: Process, life: int) -> None:
        self.world = world
        self.cluster = cluster
        self.process = process
        self.life = life
        """Counted from 1."""
        self.shells: list[ProgramShell] = []
        self.is_dead = False

    @property
    def name(self) -> str:
        """The process's name, the same in all of its lives."""
        return self.process.name

    def line(self, what: str, kind: Kind | None = None, seconds: float = 0.0) -> None:
        """Add a line to the trace; lines with a kind also appear in a picture."""
        if self.world.trace is not None:
            self.world.trace.line(self.world.now, self.name, what, kind, seconds)

    def end(self) -> None:
        """Kill the program: its connections break, and none of its code runs again."""
        self.is_dead = True
        for shell in self.shells:
            shell.end()
        self.shells.clear()


PROGRAM: ContextVar[Program] = ContextVar("program")
"""The running program."""
