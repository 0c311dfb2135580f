"""Limits on bytes that clients leave unread: when answers wait, and which connections to end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvorum.network.edge.interface import Limits

if TYPE_CHECKING:
    from kvorum.network.edge.pure.connection import EdgeConnection


class UnreadBytes:
    """Unread bytes of one connection's client.

    Messages of streams count apart from answers: each stream has its own back-pressure, and other
    calls wait for stream messages only if the whole server has too many unread bytes.
    """

    __slots__ = ("answers", "streams", "taken", "taken_before", "was_behind")

    def __init__(self) -> None:
        self.answers = 0
        self.streams = 0
        self.taken = 0
        """Bytes that the client has ever read."""
        self.taken_before = 0
        """The value of `taken` at the last check."""
        self.was_behind = False
        """Whether `answers` was above its limit at the last check."""

    @property
    def unread(self) -> int:
        """Return the total of unread bytes."""
        return self.answers + self.streams


class UnreadLimiter:
    """Decides on new answers and on connections to end, from the accounts of one edge."""

    __slots__ = ("_checked_at", "_limits", "_was_over", "total")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = 0
        self._checked_at = 0.0
        """Time of the last check for slow clients; 0 if no check was needed since."""
        self._was_over = False

    @property
    def is_scarce(self) -> bool:
        """Return whether the total is large enough for any limit to apply."""
        return self.total > self._limits.connection_unread_bytes_max

    def has_room(self, account: UnreadBytes, is_long: bool = False) -> bool:
        """Return whether the loop may make another answer for this client."""
        limits = self._limits
        if self.total <= limits.unread_bytes_max:
            return account.answers <= limits.connection_unread_bytes_max
        if is_long or self.total > 2 * limits.unread_bytes_max:
            return False
        small = min(limits.stream_writable_bytes, limits.connection_unread_bytes_max)
        return account.unread <= small

    def give(self, account: UnreadBytes, answers: int, streams: int) -> None:
        """Count bytes queued for a client."""
        account.answers += answers
        account.streams += streams
        self.total += answers + streams

    def take(self, account: UnreadBytes, answers: int, streams: int) -> None:
        """Count bytes that a client has read."""
        account.answers -= answers
        account.streams -= streams
        account.taken += answers + streams
        self.total -= answers + streams

    def offenders(
        self, connections: "Iterable[EdgeConnection]", now: float
    ) -> "list[EdgeConnection]":
        """Return the connections to end because their clients leave too much unread.

        These are connections above their own limit whose clients read nothing since the last
        check, and while the total is above its limit, those whose clients would take longest to
        read the rest. In both cases the limit must have been exceeded at the last check, too, at
        least `unread_seconds_max` ago.
        """
        limits = self._limits
        if not self.is_scarce:
            self._checked_at = 0.0
            return []
        if now < self._checked_at + limits.unread_seconds_max:
            return []
        is_first, self._checked_at = not self._checked_at, now
        is_over = self.total > limits.unread_bytes_max
        was_over, self._was_over = self._was_over and not is_first, is_over
        excess = self.total - limits.unread_bytes_max // 2 if is_over and was_over else 0
        ended: list[EdgeConnection] = []
        slow: list[EdgeConnection] = []
        progress: dict[EdgeConnection, int] = {}
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
        # Slowest first: those that would take longest to read the rest.
        slow.sort(key=lambda one: -one.account.unread // (progress[one] + 1))
        for connection in slow:
            if excess <= 0:
                break
            excess -= connection.account.unread
            ended.append(connection)
        return ended
