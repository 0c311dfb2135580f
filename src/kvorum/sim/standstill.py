"""A process that stands still: what happens to it meanwhile waits, and keeps its order."""

from collections import deque
from collections.abc import Callable

from kvorum.sim.world import World


class Standstill:
    """Until when a process stands still, and what waits for it to go on."""

    __slots__ = ("_waiting", "_world", "until")

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.until = 0.0
        """Not in the future: it goes on."""

    def last(self, seconds: float) -> None:
        """Let it stand still for so long from now on, or for as long as it does already."""
        self.until = max(self.until, self._world.now + seconds)

    def later(self, call: Callable[..., None], *arguments: object) -> bool:
        """Put something off if the process stands still; return whether it was put off."""
        if self.until <= self._world.now:
            return False
        self._waiting.append((call, arguments))
        if len(self._waiting) == 1:
            self._world.at(self.until, self._go_on)
        return True

    def _go_on(self) -> None:
        """Let everything happen that waits, unless it is to stand still for longer."""
        waiting = self._waiting
        while waiting and self.until <= self._world.now:
            call, arguments = waiting.popleft()
            call(*arguments)
        if waiting:
            self._world.at(self.until, self._go_on)
