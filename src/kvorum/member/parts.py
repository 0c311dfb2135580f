"""Parts that procedures share: generators used as `value = yield from part`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from kvorum.api.errors import Code, Status, StatusError
from kvorum.member.jobs import ExecutorKind, JobLostError, Work
from kvorum.member.waits import RunJob, Wait
from kvorum.storage.backend.errors import BackendError, CorruptionError

Value = TypeVar("Value")
Part = Generator[Wait | None, Any, Value]


def run_job(
    executor: ExecutorKind, work: Work, on_end: Callable[[], None] | None = None
) -> Part[Any]:
    """Run a job for a call; raises StatusError if it fails.

    A failure ends only the call, except that corruption found by the job stops the member.
    """
    try:
        return (yield RunJob(executor, work, on_end))
    except CorruptionError:
        raise
    except (OSError, BackendError, JobLostError) as error:
        raise StatusError(Status(Code.UNKNOWN, str(error))) from error
