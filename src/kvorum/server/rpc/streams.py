"""Server streams: one request starts a procedure that sends the answers.

The member suspends the procedure while the client reads too slowly. The procedure's result ends
the stream; the member reports it like a reply. A stream that occupies a resource, as a snapshot
occupies disk space, ends if its client stays too slow: after `held_seconds_max`, or after
`AWAITED_SECONDS_MAX` while another call waits for the resource.
"""

from collections.abc import Callable
from math import inf

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.member.member import Member
from kvorum.member.waits import Steps
from kvorum.state.apply.callers import Caller

TAKING_SECONDS_MAX = 60.0
"""How long a client may leave answers unread while its stream occupies a shared resource."""

AWAITED_SECONDS_MAX = 5.0
"""The same limit while another call waits for that resource."""

Begin = Callable[[Caller, bytes], Steps | Status]
"""Checks a caller's payload and returns the procedure that serves it; may raise DecodeError."""


def _never() -> bool:
    return False


class ServerStreams:
    """All streams of one method whose client sends one request."""

    def __init__(
        self,
        member: Member,
        begin: Begin,
        held_seconds_max: float = inf,
        is_awaited: Callable[[], bool] = _never,
    ) -> None:
        """Limit how long a stream stays suspended; `is_awaited` shortens the limit."""
        self._member = member
        self._begin = begin
        self._begun: dict[int, bool] = {}
        self._held_seconds_max = held_seconds_max
        self._is_awaited = is_awaited
        self._held_since: dict[int, float] = {}

    def open_stream(self, call: int) -> None:
        """Wait for the request."""
        self._begun[call] = False

    def take_message(self, call: int, caller: Caller, payload: bytes) -> Status | None:
        """Start the procedure that answers; ignore messages after the request."""
        if self._begun[call]:
            return None
        self._begun[call] = True
        steps = self._begin(caller, payload)
        if isinstance(steps, Status):
            return steps
        self._member.start(call, caller, steps)
        return None

    def take_half_close(self, call: int) -> Status | None:
        """End a stream without a request with an error."""
        return None if self._begun[call] else errors.NO_REQUEST

    def end_stream(self, call: int) -> None:
        """Cancel the procedure."""
        self._held_since.pop(call, None)
        if self._begun.pop(call):
            self._member.cancel(call)

    def pause_stream(self, call: int) -> None:
        """Suspend the procedure."""
        self._held_since.setdefault(call, self._member.now)
        self._member.hold(call)

    def resume_stream(self, call: int) -> None:
        """Resume the procedure."""
        self._held_since.pop(call, None)
        self._member.release(call)

    def overdue(self, now: float) -> list[int]:
        """Return the streams whose clients have left answers unread for too long."""
        seconds = self._held_seconds_max
        if self._held_since and self._is_awaited():
            seconds = min(seconds, AWAITED_SECONDS_MAX)
        since = now - seconds
        return [call for call, held in self._held_since.items() if held <= since]
