"""The window of append messages sent to one follower and not yet acknowledged.

The window is bounded by a number of messages and, if a limit is set, by payload bytes. One message
may overshoot the byte limit. Indexes only grow, so an acknowledgement frees a prefix.
"""

from collections import deque

from kvorum.raft.errors import FatalError


class Inflights:
    """A FIFO queue with the last index and the payload size of each message in flight."""

    __slots__ = ("_window", "bytes", "bytes_max", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int = 0) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max  # 0 means no limit
        self.bytes = 0  # the sum over the window
        self._window: deque[tuple[int, int]] = deque()

    def copy(self) -> "Inflights":
        """Return an independent copy of this window."""
        other = Inflights(self.messages_max, self.bytes_max)
        other.bytes = self.bytes
        other._window = self._window.copy()
        return other

    def __len__(self) -> int:
        return len(self._window)

    def full(self) -> bool:
        """Return whether the leader must not send more now."""
        return len(self._window) >= self.messages_max or 0 < self.bytes_max <= self.bytes

    def add(self, index: int, payload: int) -> None:
        """Record a sent message by the index of its last entry."""
        if self.full():
            raise FatalError("cannot add into a Full inflights")
        self._window.append((index, payload))
        self.bytes += payload

    def free_up_to(self, index: int) -> None:
        """Remove the messages that an acknowledgement of this index covers."""
        window = self._window
        while window and window[0][0] <= index:
            self.bytes -= window.popleft()[1]

    def reset(self) -> None:
        """Empty the window."""
        self._window.clear()
        self.bytes = 0
