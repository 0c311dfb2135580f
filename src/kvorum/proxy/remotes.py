"""The gateway's choice of a member for each connection, and its retries of failed members.

The choice follows the meaning of SRV records: remotes with the lowest priority number come first,
and among them the gateway picks each in proportion to its weight. It picks remotes of weight 0 in
turn, and one time in a hundred where others have weights. A remote that could not be reached is
inactive until a trial succeeds; the gateway tries it every `retry_seconds`. While all remotes are
inactive, the gateway picks none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

WEIGHTLESS_ONE_IN: Final = 100
"""One pick in this many goes to a remote of weight 0 where others have weights."""


class ForwardTarget:
    """A member to which the gateway can forward connections."""

    __slots__ = ("host", "is_active", "port", "priority", "retry_at", "weight")

    def __init__(self, host: str, port: int, priority: int = 0, weight: int = 0) -> None:
        self.host = host
        self.port = port
        self.priority = priority
        self.weight = weight
        self.is_active = True
        self.retry_at = float("inf")
        """The time of the next trial; infinite while the remote is active, or being tried."""

    @property
    def address(self) -> str:
        """Host and port in their usual notation."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Remotes:
    """All remotes of a gateway; it tracks which are active."""

    __slots__ = ("_all", "_picked", "_random_below", "_retry_seconds")

    def __init__(
        self,
        remotes: Sequence[ForwardTarget],
        retry_seconds: float,
        random_below: Callable[[int], int],
    ) -> None:
        self._all = tuple(remotes)
        self._retry_seconds = retry_seconds
        self._random_below = random_below
        self._picked = 0
        """How often a remote of weight 0 was picked."""

    def pick(self) -> ForwardTarget | None:
        """Return the remote for a connection; None if all are inactive."""
        active = [each for each in self._all if each.is_active]
        if not active:
            return None
        first = min(each.priority for each in active)
        weighted = [each for each in active if each.priority == first and each.weight]
        weightless = [each for each in active if each.priority == first and not each.weight]
        if weighted and not (weightless and self._random_below(WEIGHTLESS_ONE_IN) == 0):
            place = self._random_below(sum(each.weight for each in weighted))
            for each in weighted:
                place -= each.weight
                if place < 0:
                    return each
        self._picked += 1
        return weightless[self._picked % len(weightless)]

    def fail(self, remote: ForwardTarget, now: float) -> bool:
        """Mark an unreachable remote inactive; return whether it was active until now."""
        was_active, remote.is_active = remote.is_active, False
        remote.retry_at = now + self._retry_seconds
        return was_active

    def succeed(self, remote: ForwardTarget) -> bool:
        """Mark a reached remote active; return whether it was inactive until now."""
        was_active, remote.is_active = remote.is_active, True
        remote.retry_at = float("inf")
        return not was_active

    def due(self, now: float) -> list[ForwardTarget]:
        """Return the remotes to try now; the caller reports each with `fail` or `succeed`."""
        found = [each for each in self._all if each.retry_at <= now]
        for each in found:
            each.retry_at = float("inf")
        return found

    def wake_at(self) -> float:
        """Return the time of the next trial."""
        return min((each.retry_at for each in self._all), default=float("inf"))
