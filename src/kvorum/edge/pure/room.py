"""What clients leave unread: whether there is room for another answer, and which clients to end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvorum.edge.interface import Limits

if TYPE_CHECKING:
    from kvorum.edge.pure.connection import Connection


class Account:
    """What one connection's client has not taken.

    Messages of streams are counted apart: each stream is held back by itself, and no call waits
    for them unless the server as a whole has too much.
    """

    __slots__ = ("answers", "streams", "taken", "taken_before", "was_behind")

    def __init__(self) -> None:
        self.answers = 0
        self.streams = 0
        self.taken = 0
        """How much it ever took, and how much that was at the last check."""
        self.taken_before = 0
        self.was_behind = False

    @property
    def unread(self) -> int:
        """Return all that is not taken."""
        return self.answers + self.streams


class Room:
    """All accounts together."""

    __slots__ = ("_limits", "_looked_at", "_was_over", "total")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = 0
        self._looked_at = 0.0
        """When the last check for clients that are behind was; 0 if there was nothing to check."""
        self._was_over = False

    @property
    def is_scarce(self) -> bool:
        """Return whether any connection may be without room."""
        return self.total > self._limits.connection_unread_bytes_max

    def has_room(self, account: Account, is_long: bool = False) -> bool:
        """Return whether an answer may be made."""
        limits = self._limits
        if self.total <= limits.unread_bytes_max:
            return account.answers <= limits.connection_unread_bytes_max
        if is_long or self.total > 2 * limits.unread_bytes_max:
            return False
        small = min(limits.stream_writable_bytes, limits.connection_unread_bytes_max)
        return account.unread <= small

    def give(self, account: Account, answers: int, streams: int) -> None:
        """Count what a client has to take."""
        account.answers += answers
        account.streams += streams
        self.total += answers + streams

    def take(self, account: Account, answers: int, streams: int) -> None:
        """Count what it has taken."""
        account.answers -= answers
        account.streams -= streams
        account.taken += answers + streams
        self.total -= answers + streams

    def offenders(self, connections: "Iterable[Connection]", now: float) -> "list[Connection]":
        """Return the clients to end for what they leave unread.

        These are clients that are behind and take nothing, and while all together leave too much,
        those that take least of what they have. A client is ended only if the same was true at the
        last check, at least `unread_seconds_max` ago.
        """
        limits = self._limits
        if not self.is_scarce:
            self._looked_at = 0.0
            return []
        if now < self._looked_at + limits.unread_seconds_max:
            return []
        is_first, self._looked_at = not self._looked_at, now
        is_over = self.total > limits.unread_bytes_max
        was_over, self._was_over = self._was_over and not is_first, is_over
        excess = self.total - limits.unread_bytes_max // 2 if is_over and was_over else 0
        ended: list[Connection] = []
        slow: list[Connection] = []
        progress: dict[Connection, int] = {}
        for connection in connections:
            account = connection.account
            taken = account.taken - account.taken_before
            account.taken_before = account.taken
            was_behind, account.was_behind = (
                account.was_behind and not is_first,
                account.answers > limits.connection_unread_bytes_max,
            )
            if was_behind and account.was_behind and not taken:
                excess -= account.unread
                ended.append(connection)
            elif account.unread > taken:
                progress[connection] = taken
                slow.append(connection)
        # First those that would need longest for the rest.
        slow.sort(key=lambda one: -one.account.unread // (progress[one] + 1))
        for connection in slow:
            if excess <= 0:
                break
            excess -= connection.account.unread
            ended.append(connection)
        return ended
