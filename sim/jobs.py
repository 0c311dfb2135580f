"""Where a machine's jobs run: the production functions, at a moment of the seed's choice.

Jobs of one place run one after the other, as production's runner runs them: after a job of the log
has failed without an `on_failure`, no other of them is begun. Ended jobs are handed to the next
turn.
"""

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from kvorum.backend.errors import BackendError
from kvorum.member.jobs import Job, Place
from kvorum.mvcc.hashes import HashRows
from kvorum.server.server import Ended
from kvorum.wal import AppendLog
from sim.disk import ProcessEnd
from sim.world import World

if TYPE_CHECKING:
    from sim.machine import Machine

_INLINE_CHANCE = 0.5
"""The chance that the log is written within the turn, if production might do so."""
_BEGUN_CHANCE = 0.67
"""The chance that the first job of a place has at least begun when its process ends."""


class SimulatedJobs:
    """The jobs of one process, by the place where they run."""

    __slots__ = ("_ended", "_has_log_failed", "_machine", "_queues", "_random", "_world")

    def __init__(self, world: World, machine: "Machine", random: Random) -> None:
        self._world = world
        self._machine = machine
        self._random = random
        self._queues: dict[Place, deque[Job]] = {place: deque() for place in Place}
        self._ended: list[Ended] = []
        self._has_log_failed = False

    def submit(self, jobs: list[Job], inline_bytes_max: int) -> None:
        """Take jobs; some end at once, as the runner of a process lets them."""
        for job in jobs:
            self._machine.output()
            if job.is_awaited or self._is_inline(job, inline_bytes_max):
                self._run(job)
                continue
            queue = self._queues[job.place]
            queue.append(job)
            if len(queue) == 1:
                self._begin(job.place)

    def _is_inline(self, job: Job, inline_bytes_max: int) -> bool:
        return (
            isinstance(job.work, AppendLog)
            and len(job.work.data) <= inline_bytes_max
            and not self._queues[Place.LOG]
            and not self._has_log_failed
            and self._random.random() < _INLINE_CHANCE
        )

    def take_ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last time."""
        ended, self._ended = self._ended, []
        return ended

    def break_off(self) -> None:
        """End with the process: jobs in progress are done, not done, or half done."""
        random, disk = self._random, self._machine.disk
        for place, jobs in self._queues.items():
            if not jobs or (place is Place.LOG and self._has_log_failed):
                continue
            if random.random() < _BEGUN_CHANCE:
                # Half of these end somewhere on the way, at a call of the seed's choice.
                disk.cut_off_after(random.randint(0, 3) if random.random() < 0.5 else None)
                try:
                    jobs[0].run(disk.files, disk.environments)
                except ProcessEnd:
                    break
                except (OSError, BackendError):
                    # The disk fails as well; nobody is left to handle it.
                    continue

    def _begin(self, place: Place) -> None:
        faults = self._machine.faults
        span = {Place.LOG: faults.log_time, Place.FLUSHER: faults.flush_time}.get(
            place, faults.helper_time
        )
        seconds = self._random.uniform(*span) + self._machine.stalled_seconds
        self._world.after(seconds, self._end, self._machine.incarnation, place)

    def _end(self, incarnation: int, place: Place) -> None:
        machine = self._machine
        if incarnation == machine.incarnation and not machine.later(self._end, incarnation, place):
            machine.guarded(self._end_first, place)

    def _end_first(self, place: Place) -> None:
        jobs = self._queues[place]
        if not (place is Place.LOG and self._has_log_failed):
            self._run(jobs.popleft())
        if jobs:
            self._begin(place)
        self._machine.request_turn()

    def _run(self, job: Job) -> None:
        machine, disk = self._machine, self._machine.disk
        try:
            result = job.run(disk.files, disk.environments)
        except Exception as error:
            machine.line(f"{type(job.work).__name__} failed: {error}")
            if job.place is Place.LOG and job.on_failure is None:
                self._has_log_failed = True
            self._ended.append((job, None, error))
            return
        if isinstance(job.work, HashRows):
            machine.hashed(job.work, result)
        if self._world.trace is not None:
            machine.line(f"did {type(job.work).__name__}")
        self._ended.append((job, result, None))
