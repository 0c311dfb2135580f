"""Streams with one request: a procedure that sends its answers.

The request is the stream's only message. The procedure is held while the client does not take
what was sent; when it ends, which the member reports like a reply, the stream ends. A stream that
holds what others need, as a snapshot holds room on the disk, may be held only so long, and for
seconds only while one of the others waits.
"""

from collections.abc import Callable
from math import inf

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.member.callers import Caller
from kvorum.member.member import Member
from kvorum.member.waits import Steps

TAKING_SECONDS_MAX = 60.0
"""Time for a client to take what it was sent, where its stream holds what others need."""

AWAITED_SECONDS_MAX = 5.0
"""The same while another call waits for what such a stream holds."""

Begin = Callable[[Caller, bytes], Steps | Status]
"""Checks a caller's payload and returns the procedure that serves it; may raise DecodeError."""


def _never() -> bool:
    return False


class Answers:
    """All streams of one method whose client sends one request."""

    def __init__(
        self,
        member: Member,
        begin: Begin,
        held_seconds_max: float = inf,
        is_awaited: Callable[[], bool] = _never,
    ) -> None:
        """Let no stream be held for longer than a time, or a shorter one if others wait for it."""
        self._member = member
        self._begin = begin
        self._begun: dict[int, bool] = {}
        self._held_seconds_max = held_seconds_max
        self._is_awaited = is_awaited
        self._held_since: dict[int, float] = {}

    def opened(self, call: int) -> None:
        """Wait for the request."""
        self._begun[call] = False

    def received(self, call: int, caller: Caller, payload: bytes) -> Status | None:
        """Begin to answer; messages after the request are ignored."""
        if self._begun[call]:
            return None
        self._begun[call] = True
        steps = self._begin(caller, payload)
        if isinstance(steps, Status):
            return steps
        self._member.start(call, caller, steps)
        return None

    def half_closed(self, call: int) -> Status | None:
        """Refuse a stream without a request."""
        return None if self._begun[call] else errors.NO_REQUEST

    def ended(self, call: int) -> None:
        """Give up the answer."""
        self._held_since.pop(call, None)
        if self._begun.pop(call):
            self._member.cancel(call)

    def full(self, call: int) -> None:
        """Let the answer wait."""
        self._held_since.setdefault(call, self._member.now)
        self._member.hold(call)

    def writable(self, call: int) -> None:
        """Go on with the answer."""
        self._held_since.pop(call, None)
        self._member.release(call)

    def overdue(self, now: float) -> list[int]:
        """Return the streams whose clients have not taken what they were sent in time."""
        seconds = self._held_seconds_max
        if self._held_since and self._is_awaited():
            seconds = min(seconds, AWAITED_SECONDS_MAX)
        since = now - seconds
        return [call for call, held in self._held_since.items() if held <= since]
