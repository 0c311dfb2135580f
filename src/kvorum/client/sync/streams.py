# Written by `make client` from kvorum/client/aio; change that.
"""The messages of a call that the server answers with several, with back-pressure by the user."""

from collections import deque
from typing import Generic, Self, TypeVar

from kvorum.client.errors import KvorumError
from kvorum.client.operations import Operation
from kvorum.client.threads import ThreadedClient as Shell
from kvorum.client.threads import Waiter

KEPT_BYTES_MAX = 1 << 20
"""How much to buffer before the server must wait; it may still send up to a window more."""

T = TypeVar("T")


class Messages(Generic[T]):
    """An iterator over the answer; as a context manager, it cancels the call at the end."""

    def __init__(
        self, shell: Shell, operation: Operation[T], seconds_max: float, at: int | None
    ) -> None:
        self._shell = shell
        self._decode = operation.decode
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._is_held = False
        self._end: bytes | KvorumError | None = None
        self._waiter: Waiter | None = None
        with shell.turn():
            self._call = shell.core.start(
                operation.rpc, operation.message, seconds_max, self._take_end, at, self._take
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._shell.turn():
            self._shell.core.cancel(self._call)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next message; raises the error that the call ended with, if any."""
        while True:
            with self._shell.turn():
                if self._kept:
                    message = self._kept.popleft()
                    self._kept_bytes -= len(message)
                    if self._is_held and not self._kept:
                        self._hold(is_held=False)
                    return self._decode(message)
                if isinstance(self._end, KvorumError):
                    raise self._end
                if self._end is not None:
                    raise StopIteration
                waiter = self._waiter = Waiter()
            self._shell.wait(waiter)

    def _take(self, message: bytes) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message)
        if self._kept_bytes >= KEPT_BYTES_MAX and not self._is_held:
            self._hold(is_held=True)
        if self._waiter is not None:
            self._waiter.wake()

    def _take_end(self, answer: bytes | KvorumError) -> None:
        self._end = answer
        if self._waiter is not None:
            self._waiter.wake()

    def _hold(self, *, is_held: bool) -> None:
        self._is_held = is_held
        self._shell.hold(self._call.number, is_held=is_held)
