"""A call that runs step by step, so that other things happen in the middle of it.

It has a thread of its own, which works only while `advance` waits for it: there is never more than
one thread at work, and a run stays what its seed makes of it.
"""

from collections.abc import Callable
from threading import Lock, Thread


class Stepped:
    """One call: not begun, at a pause, or ended."""

    __slots__ = (
        "_call",
        "_error",
        "_go",
        "_interruption",
        "_paused",
        "_result",
        "_thread",
        "has_ended",
    )

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._thread: Thread | None = None
        # Held, but for the moment in which one thread hands over to the other: a semaphore does
        # the same with twice the work.
        self._go = Lock()
        self._go.acquire()
        self._paused = Lock()
        self._paused.acquire()
        self._result: object = None
        self._error: BaseException | None = None
        self._interruption: BaseException | None = None
        self.has_ended = False

    def advance(self) -> None:
        """Go on to the next pause, or to the end."""
        assert not self.has_ended
        if self._thread is None:
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._paused.acquire()
        if self.has_ended:
            self._thread.join()

    def result(self) -> object:
        """Return what the call returned, or raise what it raised."""
        assert self.has_ended
        if self._error is not None:
            raise self._error
        return self._result

    def end(self, interruption: BaseException) -> None:
        """Raise an error at the pause where the call is, and at those on its way out."""
        self._interruption = interruption
        if self._thread is not None and not self.has_ended:
            self.advance()
        assert self._thread is None or self.has_ended, "it went on after its end"

    def pause(self, *, is_wanted: bool = True) -> None:
        """Let other things happen, if that is wanted; for the thread of the call alone."""
        if self._interruption is None and is_wanted:
            self._paused.release()
            self._go.acquire()
        if self._interruption is not None:
            raise self._interruption

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # `result` raises it
            self._error = error
        self.has_ended = True
        self._paused.release()
