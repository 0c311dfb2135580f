"""Parts that procedures have in common: steps that lead to a value, `value = yield from part`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from kvorum.api.errors import Code, Status, StatusError
from kvorum.backend.errors import BackendError, CorruptionError
from kvorum.member.jobs import JobLostError, Place, Work
from kvorum.member.waits import RunJob, Wait

Value = TypeVar("Value")
Part = Generator[Wait | None, Any, Value]


def done(place: Place, work: Work, ended: Callable[[], None] | None = None) -> Part[Any]:
    """Have a job of a call done; raises StatusError if it fails.

    What befalls the job befalls its client, and not the member; but damage that it found stops
    the member, whoever asked.
    """
    try:
        return (yield RunJob(place, work, ended))
    except CorruptionError:
        raise
    except (OSError, BackendError, JobLostError) as error:
        raise StatusError(Status(Code.UNKNOWN, str(error))) from error
