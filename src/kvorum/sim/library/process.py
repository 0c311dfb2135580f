"""The process of a client: it stands still for a while, is deaf, cut off from members, or busy.

What arrives meanwhile waits, and is read late; where it stands still, timers run late, too. While
the loop of its user is busy, what keeps leases alive goes on, because the loop does not do that.
"""

from collections.abc import Callable
from random import Random

from kvorum.sim.world import World

_PAUSE_SECONDS = (0.05, 0.5, 2.0)
_CUT_SECONDS = (0.1, 0.5, 3.0)
_DEAF_SECONDS = (0.3, 1.0, 2.5)
"""How long these last, at most; by chance."""

_READS_SECONDS = 0.001
"""How long a client reads what it was deaf for before it is cut off."""
_COUNTED = ("clients paused", "clients deaf", "clients cut off", "loops of clients busy")


class Process:
    """Whether a client's process runs, and whether anything reaches it."""

    __slots__ = (
        "_random",
        "_world",
        "busy_until",
        "counts",
        "cut_until",
        "deaf_until",
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
        self.deaf_until = 0.0
        self.peace_at = 0.0
        self.counts = dict.fromkeys(_COUNTED, 0)

    # When what is due now can be done.

    def runs_at(self) -> float:
        """Return when its threads run."""
        return self.paused_until

    def user_runs_at(self) -> float:
        """Return when the loop of its user runs."""
        return max(self.paused_until, self.busy_until)

    def hears_at(self) -> float:
        """Return when something can reach it."""
        return max(self.cut_until, self.deaf_until)

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
        random, world = self._random, self._world
        choice = random.random()
        seconds = random.uniform(0.0, random.choice(_PAUSE_SECONDS))
        cut = random.uniform(0.0, random.choice(_CUT_SECONDS))
        if choice < 0.2:
            self._note("loops of clients busy", seconds)
            self.busy_until = world.now + seconds
        elif choice < 0.4:
            self._note("clients paused", seconds)
            self.paused_until = world.now + seconds
        elif choice < 0.6:
            seconds = cut
            self._cut(cut)
        else:
            deaf = random.uniform(0.0, random.choice(_DEAF_SECONDS))
            self.fall_silent(deaf, cut)
            seconds = deaf + cut
        world.after(seconds, self.disturb, until, gap)

    def fall_silent(self, deaf: float, cut: float) -> None:
        """Be deaf and then cut off: what it reads late is the last that it hears for a while."""
        if self._world.now + deaf < self.peace_at:
            self._note("clients deaf", deaf)
            self.deaf_until = self._world.now + deaf
            self._world.after(deaf + _READS_SECONDS, self._cut, cut)

    def _cut(self, seconds: float) -> None:
        self._note("clients cut off", seconds)
        self.cut_until = self._world.now + seconds

    def _note(self, what: str, seconds: float) -> None:
        self.counts[what] += 1
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, f"{what} for {seconds:.3f} s")
