"""Which member a gateway forwards a connection to, and when one that failed is tried again.

As SRV records are meant: those of the lowest priority come first, and among them each is picked as
often as its weight says; those of weight 0 are picked in turn, and one time in a hundred where
others have weights. One that could not be reached is inactive until a trial of it succeeds, which
is made every `retry_seconds`; while all are inactive, none is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

WEIGHTLESS_ONE_IN: Final = 100
"""How rarely a remote of weight 0 is picked where others have weights."""


class Remote:
    """A member that connections can be forwarded to."""

    __slots__ = ("host", "is_active", "port", "priority", "retry_at", "weight")

    def __init__(self, host: str, port: int, priority: int = 0, weight: int = 0) -> None:
        self.host = host
        self.port = port
        self.priority = priority
        self.weight = weight
        self.is_active = True
        self.retry_at = float("inf")
        """When it is tried again; infinite while it is active, or being tried."""

    @property
    def address(self) -> str:
        """Host and port, as they are written."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Remotes:
    """All members of a gateway, and which of them can be reached."""

    __slots__ = ("_all", "_picked", "_random_below", "_retry_seconds")

    def __init__(
        self,
        remotes: Sequence[Remote],
        retry_seconds: float,
        random_below: Callable[[int], int],
    ) -> None:
        self._all = tuple(remotes)
        self._retry_seconds = retry_seconds
        self._random_below = random_below
        self._picked = 0
        """How often one without a weight was picked."""

    def pick(self) -> Remote | None:
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

    def fail(self, remote: Remote, now: float) -> bool:
        """Take that a remote could not be reached; return whether it was active until now."""
        was_active, remote.is_active = remote.is_active, False
        remote.retry_at = now + self._retry_seconds
        return was_active

    def succeed(self, remote: Remote) -> bool:
        """Take that a remote was reached; return whether it was inactive until now."""
        was_active, remote.is_active = remote.is_active, True
        remote.retry_at = float("inf")
        return not was_active

    def due(self, now: float) -> list[Remote]:
        """Return the inactive ones to be tried now; `fail` or `succeed` tells how that went."""
        found = [each for each in self._all if each.retry_at <= now]
        for each in found:
            each.retry_at = float("inf")
        return found

    def wake_at(self) -> float:
        """Return when the next one is due."""
        return min((each.retry_at for each in self._all), default=float("inf"))
