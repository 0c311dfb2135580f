"""Streams with one request: a procedure that sends its answers.

The request is the stream's only message. The procedure is held while the client does not take
what was sent; its end, told by the member like a reply, ends the stream.
"""

from collections.abc import Callable

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.member.member import Member
from kvorum.member.waits import Steps

Begin = Callable[[bytes], Steps | Status]
"""Checks a payload and returns the procedure that serves it; may raise DecodeError."""


class Answers:
    """All streams of one method whose client sends one request."""

    def __init__(self, member: Member, begin: Begin) -> None:
        self._member = member
        self._begin = begin
        self._begun: dict[int, bool] = {}

    def opened(self, call: int) -> None:
        """Wait for the request."""
        self._begun[call] = False

    def received(self, call: int, payload: bytes) -> Status | None:
        """Begin to answer; what comes behind the request is ignored."""
        if self._begun[call]:
            return None
        self._begun[call] = True
        steps = self._begin(payload)
        if isinstance(steps, Status):
            return steps
        self._member.start(call, steps)
        return None

    def half_closed(self, call: int) -> Status | None:
        """Refuse a stream without a request."""
        return None if self._begun[call] else errors.NO_REQUEST

    def ended(self, call: int) -> None:
        """Give up the answer."""
        if self._begun.pop(call):
            self._member.cancel(call)

    def full(self, call: int) -> None:
        """Let the answer wait."""
        self._member.hold(call)

    def writable(self, call: int) -> None:
        """Go on with the answer."""
        self._member.release(call)
