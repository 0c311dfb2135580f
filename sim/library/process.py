"""The process of a client: it stands still for a while, is cut off from all members, or is busy.

What arrives meanwhile waits, and is read late; timers run late. While the loop of its user is busy,
what keeps leases alive goes on, because that is not done by the loop.
"""

from collections.abc import Callable
from random import Random

from sim.world import World

_PAUSE_SECONDS = (0.05, 0.5, 2.0)
_CUT_SECONDS = (0.1, 0.5, 3.0)
"""How long these last, at most; by chance."""


class Process:
    """Whether a client's process runs, and whether anything reaches it."""

    __slots__ = (
        "_random",
        "_world",
        "busy_until",
        "counts",
        "cut_until",
        "name",
        "paused_until",
        "peace_at",
    )

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._random: Random = world.stream(f"process {name}")
        self.name = name
        self.paused_until = 0.0
        self.busy_until = 0.0
        self.cut_until = 0.0
        self.peace_at = 0.0
        self.counts = {"clients paused": 0, "clients cut off": 0, "loops of clients busy": 0}

    # When what is due now can be done.

    def runs_at(self) -> float:
        """Return when its threads run."""
        return self.paused_until

    def user_runs_at(self) -> float:
        """Return when the loop of its user runs."""
        return max(self.paused_until, self.busy_until)

    def later(
        self, moment: Callable[[], float], call: Callable[..., None], *arguments: object
    ) -> bool:
        """Put something off to a moment that is not now; return whether it was put off."""
        until = moment()
        if until <= self._world.now:
            return False
        self._world.at(until, call, *arguments)
        return True

    # What goes wrong.

    def disturb(self, until: float, gap: float) -> None:
        """Let something go wrong now and then, up to a moment, with that time in between."""
        self.peace_at = until
        wait = self._random.expovariate(1 / gap)
        if self._world.now + wait < until:
            self._world.after(wait, self._go_wrong, until, gap)

    def _go_wrong(self, until: float, gap: float) -> None:
        random, now = self._random, self._world.now
        choice = random.random()
        pause = random.uniform(0.0, random.choice(_PAUSE_SECONDS))
        cut = random.uniform(0.0, random.choice(_CUT_SECONDS))
        if choice < 0.2:
            self._line(f"loop is busy for {pause:.3f} s")
            self.busy_until = now + pause
            self.counts["loops of clients busy"] += 1
            cut = 0.0
        elif choice < 0.4:
            self._pause(pause)
            cut = 0.0
        elif choice < 0.7:
            pause = 0.0
            self._cut(cut)
        else:
            # What it reads late is the last that it hears for a while.
            self._pause(pause)
            self._world.at(self.paused_until, self._world.after, 0.001, self._cut, cut)
        self._world.after(pause + cut, self.disturb, until, gap)

    def _pause(self, seconds: float) -> None:
        self._line(f"stands still for {seconds:.3f} s")
        self.paused_until = self._world.now + seconds
        self.counts["clients paused"] += 1

    def _cut(self, seconds: float) -> None:
        self._line(f"is cut off for {seconds:.3f} s")
        self.cut_until = self._world.now + seconds
        self.counts["clients cut off"] += 1

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what)
