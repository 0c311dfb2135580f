"""The process of a client, which can be paused, deaf, partitioned, busy or suspended.

Input that arrives meanwhile waits and is read late. A paused process also runs its timers late; a
suspended machine also stops the clock that sets them. While only the user's loop is busy, leases
are still kept alive, because another thread does that.
"""

from collections.abc import Callable
from contextvars import ContextVar
from random import Random

from kvorum.client.clocks import choose_boot_clock
from kvorum.sim.library.suspensions import draw_seconds
from kvorum.sim.world import World

_PAUSE_SECONDS = (0.05, 0.5, 2.0)
_CUT_SECONDS = (0.1, 0.5, 3.0)
_DEAF_SECONDS = (0.3, 1.0, 2.5)
"""Maximum durations; each fault draws one of them and then a duration up to it."""

_READS_SECONDS = 0.001
"""How long a client that was deaf reads the waiting input before it is partitioned."""
_COUNTED = ("clients paused", "clients deaf", "clients cut off", "loops of clients busy")
_ROUNDING_SECONDS = 1e-9
_SUSPENDED = "clients suspended"


class Process:
    """Whether a client's process runs, and whether input reaches it."""

    __slots__ = (
        "_random",
        "_world",
        "busy_until",
        "clock",
        "counts",
        "cut_until",
        "deaf_until",
        "name",
        "on_resume",
        "paused_until",
        "peace_at",
        "stood",
        "suspended_until",
    )

    CLOCK_BOOTTIME = 7

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._random: Random = world.stream(f"process {name}")
        self.name = name
        self.paused_until = 0.0
        self.busy_until = 0.0
        self.cut_until = 0.0
        self.deaf_until = 0.0
        self.peace_at = 0.0
        self.suspended_until = 0.0
        self.stood = 0.0
        """For how long the monotonic clock has stood still so far."""
        self.on_resume: Callable[[], object] | None = None
        """Called after a suspension, before anything else runs."""
        self.clock: Callable[[], float] = choose_boot_clock(self)
        """The clock that the library chooses from the simulated ones."""
        self.counts = dict.fromkeys(_COUNTED, 0)

    # Clocks as module `time` has them, and timers as a loop sets them.

    def monotonic(self) -> float:
        """Return the time without suspensions."""
        return self._world.now - self.stood

    def clock_gettime(self, _: int) -> float:
        """Return the time including suspensions."""
        return self._world.now

    def world_moment(self, moment: float) -> float:
        """Return the world's time at which the library's chosen clock shows `moment`."""
        behind = self._world.now - self.clock()
        # Rounded up, as a loop does, so that a timer is not early by the chosen clock.
        return moment + behind + _ROUNDING_SECONDS if behind else moment

    def at(self, moment: float, call: Callable[..., None], *arguments: object) -> None:
        """Call something at a moment of the world; a suspension before then delays the call."""
        self._world.at(moment, self._due, self.stood, call, arguments)

    def _due(self, stood: float, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self.stood > stood:
            self._world.after(self.stood - stood, self._due, self.stood, call, arguments)
        else:
            call(*arguments)

    # When work that is due can run.

    def runs_at(self) -> float:
        """Return when the process's threads run again."""
        return self.paused_until

    def user_runs_at(self) -> float:
        """Return when the user's loop runs again."""
        return max(self.paused_until, self.busy_until)

    def hears_at(self) -> float:
        """Return when input can reach the process again."""
        return max(self.cut_until, self.deaf_until)

    def later(
        self, moment: Callable[[], float], call: Callable[..., None], *arguments: object
    ) -> bool:
        """Defer a call to `moment()` if that is in the future; return whether it was deferred."""
        until = moment()
        if until <= self._world.now:
            return False
        self._world.at(until, call, *arguments)
        return True

    # Faults.

    def disturb(self, until: float, gap: float) -> None:
        """Inject faults until a moment, on average `gap` seconds apart."""
        self.peace_at = until
        wait = self._random.expovariate(1 / gap)
        if self._world.now + wait < until:
            self._world.after(wait, self._inject_fault, until, gap)

    def _inject_fault(self, until: float, gap: float) -> None:
        random, world = self._random, self._world
        choice = random.random()
        seconds = random.uniform(0.0, random.choice(_PAUSE_SECONDS))
        cut = random.uniform(0.0, random.choice(_CUT_SECONDS))
        if choice < 0.2:
            self._note("loops of clients busy", seconds)
            self.busy_until = world.now + seconds
        elif choice < 0.4:
            self._note("clients paused", seconds)
            self.paused_until = max(world.now + seconds, self.suspended_until)
        elif choice < 0.6:
            seconds = cut
            self._cut(cut)
        else:
            deaf = random.uniform(0.0, random.choice(_DEAF_SECONDS))
            self.fall_silent(deaf, cut)
            seconds = deaf + cut
        world.after(seconds, self.disturb, until, gap)

    def suspend(self, seconds: float) -> None:
        """Suspend the machine: no code of the process runs, and nothing leaves or arrives."""
        until = self._world.now + seconds
        self.stood += max(0.0, until - max(self.suspended_until, self._world.now))
        for name in ("suspended_until", "paused_until", "cut_until"):
            setattr(self, name, max(until, getattr(self, name)))
        self._world.at(until, self._resume)

    def _resume(self) -> None:
        if not self.later(self.user_runs_at, self._resume) and self.on_resume is not None:
            before = RUNNING.set(self)
            self.on_resume()
            RUNNING.reset(before)

    def suspend_often(self, random: Random, until: float, gap: float) -> None:
        """Suspend the machine until a moment, on average every `gap` seconds."""
        wait = random.expovariate(1 / gap)
        if self._world.now + wait < until:
            self._world.after(wait, self._fall_asleep, random, until, gap)

    def _fall_asleep(self, random: Random, until: float, gap: float) -> None:
        seconds = min(draw_seconds(random), until - self._world.now)
        self.counts.setdefault(_SUSPENDED, 0)
        self._note(_SUSPENDED, seconds)
        self.suspend(seconds)
        self._world.after(seconds, self.suspend_often, random, until, gap)

    def fall_silent(self, deaf: float, cut: float) -> None:
        """Make the process deaf and then partition it, so that it reads late input and no more."""
        if self._world.now + deaf < self.peace_at:
            self._note("clients deaf", deaf)
            self.deaf_until = self._world.now + deaf
            self._world.after(deaf + _READS_SECONDS, self._cut, cut)

    def _cut(self, seconds: float) -> None:
        self._note("clients cut off", seconds)
        self.cut_until = max(self._world.now + seconds, self.suspended_until)

    def _note(self, what: str, seconds: float) -> None:
        self.counts[what] += 1
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, f"{what} for {seconds:.3f} s")


RUNNING: ContextVar[Process] = ContextVar("process")
"""The process whose coroutine is running."""
