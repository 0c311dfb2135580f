"""Work that may block, as data: made on the loop, run elsewhere, its result given back.

Jobs of one place run one after the other, in the order they were made. The runner calls
`Member.completed` with the result or `Member.failed` with the error, on the loop and in the
same order. A job owns its inputs and touches only the files it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvorum.backend.environment import Environments
from kvorum.files import Files


class Place(Enum):
    """Where a job runs."""

    LOG = "log"
    """The one writer of the log; an `AppendLog` may go to the edge's native one."""
    FLUSHER = "flusher"
    """The one writer of the backend."""
    HELPER = "helper"
    """A separate process, for long Python work; what goes there can be pickled."""
    POOL = "pool"
    """Any thread, for calls that block or compute outside the interpreter."""
    PASSWORDS = "passwords"
    """A separate process for hashes of passwords, which anybody may ask for and which take long.
    A thread would not do: when it needs the interpreter's lock, the loop waits for it."""
    PASSWORDS_IDLE = "idle passwords"
    """Another one, which gives way to everything else."""


class JobLostError(Exception):
    """A job has no result: its process ended, or could pass its error on only as text."""


Work = Any
"""What a job does: `run(files)` for the log and the pool, else `run(files, environments)`."""

_WITH_ENVIRONMENTS = (Place.FLUSHER, Place.HELPER, Place.PASSWORDS, Place.PASSWORDS_IDLE)

Done = Callable[[Any], None]
Failed = Callable[[Exception], None]


def ignore(_outcome: object) -> None:
    """Take the result of a job that nobody waits for, or a failure that does no harm."""


@dataclass(slots=True, frozen=True)
class Nothing:
    """Work that does nothing: when it is done, all earlier jobs of its place have ended."""

    def run(self, files: Files, environments: Environments | None = None) -> None:
        """Do nothing."""


class Barrier(Nothing):
    """Work that ends after all earlier jobs of its place, and starts no helper for that."""

    __slots__ = ()


class Job:
    """A piece of work, where it runs, and what takes its result.

    With `is_awaited` the loop does nothing before the job is done: a short job, which would be
    slower beside a busy interpreter. One that `is_short` does not wait for a helper to start: until
    it has, the flusher does it.
    """

    __slots__ = ("done", "is_awaited", "is_short", "on_failure", "place", "work")

    def __init__(
        self,
        place: Place,
        work: Work,
        done: Done = ignore,
        on_failure: Failed | None = None,
        *,
        is_awaited: bool = False,
        is_short: bool = False,
    ) -> None:
        self.place = place
        self.work = work
        self.done = done
        # Without one, a failure stops the member.
        self.on_failure = on_failure
        self.is_awaited = is_awaited
        self.is_short = is_short

    def run(self, files: Files, environments: Environments) -> object:
        """Do the work, here and now; what it returns goes to `Member.completed`."""
        if self.place in _WITH_ENVIRONMENTS:
            return self.work.run(files, environments)
        return self.work.run(files)
