"""Jobs: blocking work as data, which the loop creates and an executor runs.

Jobs of one executor run one after the other, in the order of their creation. The runner calls
`Member.complete_job` with the result or `Member.fail_job` with the error, on the loop and in the
same order. A job owns its inputs and touches only the files passed to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvorum.storage.backend.environment import Environments
from kvorum.storage.files import Files


class ExecutorKind(Enum):
    """Where a job runs."""

    LOG = "log"
    """The one writer of the log; the edge's native writer may run an `AppendLog` instead."""
    FLUSHER = "flusher"
    """The one writer of the backend."""
    HELPER = "helper"
    """The helper process, for long Python work; jobs for it can be pickled."""
    POOL = "pool"
    """Any thread of the pool, for calls that block or compute outside the interpreter."""
    PASSWORDS = "passwords"
    """A separate process for password hashes, which any client may request and which take long.
    A thread would not do: the loop would wait whenever the thread takes the interpreter's lock."""
    PASSWORDS_IDLE = "idle passwords"
    """Another process for password hashes, which gives way to all other work."""


class JobLostError(Exception):
    """A job has no result: its process ended, or could report the error only as text."""


Work = Any
"""The work of a job: `run(files)` for the log and the pool, else `run(files, environments)`."""

_WITH_ENVIRONMENTS = (
    ExecutorKind.FLUSHER,
    ExecutorKind.HELPER,
    ExecutorKind.PASSWORDS,
    ExecutorKind.PASSWORDS_IDLE,
)

Done = Callable[[Any], None]
Failed = Callable[[Exception], None]


def ignore(_outcome: object) -> None:
    """Drop the result of a job that has no waiter, or a failure that does no harm."""


@dataclass(slots=True, frozen=True)
class Nothing:
    """Work that does nothing: its completion means that all earlier jobs of its executor ended."""

    def run(self, files: Files, environments: Environments | None = None) -> None:
        """Do nothing."""


class Barrier(Nothing):
    """Work that ends after all earlier jobs of its executor, without starting a helper for it."""

    __slots__ = ()


class Job:
    """A piece of work, the executor where it runs, and the callbacks for its result.

    With `is_awaited` the loop blocks until the job is done: for a short job, which would be slower
    beside a busy interpreter. A job that `is_short` does not wait for a helper process to start:
    until then the flusher runs it.
    """

    __slots__ = ("done", "executor", "is_awaited", "is_short", "on_failure", "work")

    def __init__(
        self,
        executor: ExecutorKind,
        work: Work,
        done: Done = ignore,
        on_failure: Failed | None = None,
        *,
        is_awaited: bool = False,
        is_short: bool = False,
    ) -> None:
        self.executor = executor
        self.work = work
        self.done = done
        # None: a failure stops the member.
        self.on_failure = on_failure
        self.is_awaited = is_awaited
        self.is_short = is_short

    def run(self, files: Files, environments: Environments) -> object:
        """Do the work in the calling thread; return the result for `Member.complete_job`."""
        if self.executor in _WITH_ENVIRONMENTS:
            return self.work.run(files, environments)
        return self.work.run(files)
