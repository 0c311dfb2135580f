"""A call that runs step by step, so that other events happen amid it.

The call has a stack of its own in the thread of its caller, and works only while `advance` waits
for it, so a run depends on nothing but its seed.
"""

from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Stepped:
    """One call: not started, at a pause, or ended."""

    __slots__ = ("_call", "_caller", "_error", "_interruption", "_result", "_stack", "has_ended")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._stack: greenlet | None = None
        self._caller: greenlet | None = None
        self._result: object = None
        self._error: BaseException | None = None
        self._interruption: BaseException | None = None
        self.has_ended = False

    def advance(self) -> None:
        """Continue to the next pause, or to the end."""
        assert not self.has_ended
        self._caller = getcurrent()
        if self._stack is None:
            self._stack = greenlet(self._run, self._caller)
        self._stack.switch()

    def result(self) -> object:
        """Return what the call returned, or raise what it raised."""
        assert self.has_ended
        if self._error is not None:
            raise self._error
        return self._result

    def end(self, interruption: BaseException) -> None:
        """Raise an error at the call's present pause, and at all pauses on its way out."""
        self._interruption = interruption
        if self._stack is not None and not self.has_ended:
            self.advance()
        assert self._stack is None or self.has_ended, "it went on after its end"

    def pause(self, *, is_wanted: bool = True) -> None:
        """Pause the call, if wanted, so that other events happen; only the call may do this."""
        if self._interruption is None and is_wanted:
            assert self._caller is not None
            self._caller.switch()
        if self._interruption is not None:
            raise self._interruption

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # `result` raises it
            self._error = error
        self.has_ended = True
