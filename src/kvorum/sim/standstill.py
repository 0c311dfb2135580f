"""The pause of a process: calls to it wait meanwhile, and keep their order."""

from collections import deque
from collections.abc import Callable

from kvorum.sim.world import World


class Standstill:
    """Until when a process is paused, and the calls that wait for the end of its pause."""

    __slots__ = ("_waiting", "_world", "until")

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.until = 0.0
        """The end of the pause; if it is not in the future, the process runs."""

    def pause_for(self, seconds: float) -> None:
        """Pause the process for `seconds` from now on, or until the end of a longer pause."""
        self.until = max(self.until, self._world.now + seconds)

    def later(self, call: Callable[..., None], *arguments: object) -> bool:
        """Defer a call while the process is paused; return whether it was deferred."""
        if self.until <= self._world.now:
            return False
        self._waiting.append((call, arguments))
        if len(self._waiting) == 1:
            self._world.at(self.until, self._resume_all)
        return True

    def _resume_all(self) -> None:
        """Run all deferred calls, unless the process is to be paused for longer."""
        waiting = self._waiting
        while waiting and self.until <= self._world.now:
            call, arguments = waiting.popleft()
            call(*arguments)
        if waiting:
            self._world.at(self.until, self._resume_all)
