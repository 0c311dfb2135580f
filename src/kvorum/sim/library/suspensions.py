"""Machines of clients that are suspended, as laptops are: for longer than their leases live.

Nothing of a client runs meanwhile, its monotonic clock stands still, and the members go on. Who is
suspended believes to hold what it held, unless it asks a clock that went on.
"""

from dataclasses import dataclass
from random import Random

CHANCE = 0.4
"""Of runs with clients of the library."""
LEAST_SECONDS = 10.0
"""How long faults last, at least."""
_GAPS = (1.5, 3.0, 6.0)
_SECONDS = (1.0, 6.0)


@dataclass(slots=True, frozen=True, kw_only=True)
class Suspensions:
    """How often clients of the library are suspended, and who reads by leases there."""

    gap: float
    """Average time between two suspensions of a client."""
    leasers: int
    """Clients that own the keys that they read."""


def draw_suspensions(random: Random) -> Suspensions | None:
    """Return what the suspensions of a run are like; None, as mostly, if there are none."""
    if random.random() >= CHANCE:
        return None
    return Suspensions(gap=random.choice(_GAPS), leasers=random.randint(2, 3))


def draw_seconds(random: Random) -> float:
    """Return how long a suspension lasts; leases live for one to four seconds."""
    return random.uniform(*_SECONDS)
