"""Calls whose token this member cannot verify yet, because it has not applied the token's entry.

The requests and events of such a call wait here in order until the member applies that entry, at
most for the request timeout: a client may have invented the index in its token.
"""

from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

CALLS_MAX: Final = 1000
BYTES_MAX: Final = 32 * 1024 * 1024
"""The most that may wait; the tokens of further calls are verified at once."""
ITEM_BYTES: Final = 256
"""The overhead counted for each item: a stream may send any number of empty messages."""


class _Waiting(Generic[Item]):
    __slots__ = ("deadline", "index", "items", "size")

    def __init__(self, index: int, deadline: float) -> None:
        self.index = index
        self.deadline = deadline
        self.items: list[Item] = []
        self.size = 0


class AwaitingToken(Generic[Item]):
    """The waiting calls, and the requests and events that arrived for each."""

    __slots__ = ("_bytes", "_calls")

    def __init__(self) -> None:
        self._calls: dict[int, _Waiting[Item]] = {}
        self._bytes = 0

    def __contains__(self, call: object) -> bool:
        """Return whether a call waits."""
        return call in self._calls

    def __bool__(self) -> bool:
        """Return whether any call waits."""
        return bool(self._calls)

    def begin(self, call: int, index: int, deadline: float) -> bool:
        """Let a call wait until an index is applied; return False if there is no room for it."""
        if len(self._calls) >= CALLS_MAX or self._bytes >= BYTES_MAX:
            return False
        self._calls[call] = _Waiting(index, deadline)
        return True

    def add(self, call: int, item: Item, size: int) -> bool:
        """Queue an item of a waiting call; return False if there is no room."""
        waiting = self._calls[call]
        if waiting.items and self._bytes >= BYTES_MAX:
            return False
        waiting.items.append(item)
        waiting.size += size + ITEM_BYTES
        self._bytes += size + ITEM_BYTES
        return True

    def drop(self, call: int) -> list[Item]:
        """Forget a call; return its items."""
        waiting = self._calls.pop(call)
        self._bytes -= waiting.size
        return waiting.items

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self._bytes = 0

    def due(self, applied: int, now: float) -> list[int]:
        """Return the calls whose index is applied or whose deadline has passed, oldest first."""
        return [
            call
            for call, waiting in self._calls.items()
            if waiting.index <= applied or waiting.deadline <= now
        ]
