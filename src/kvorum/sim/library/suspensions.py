"""Suspend client machines, as laptops are, for longer than their leases live.

During a suspension no code of the client runs and its monotonic clock stands still, while the
members go on. A suspended client still believes in its leases unless it reads a clock that went on.
"""

from dataclasses import dataclass
from random import Random

CHANCE = 0.4
"""Chance that a run with library clients has suspensions."""
LEAST_SECONDS = 10.0
"""Minimum duration of the faults in such a run."""
_GAPS = (1.5, 3.0, 6.0)
_SECONDS = (1.0, 6.0)


@dataclass(slots=True, frozen=True, kw_only=True)
class Suspensions:
    """How often library clients are suspended, and how many of them read by leases."""

    gap: float
    """Average time between two suspensions of a client."""
    leasers: int
    """How many clients own the keys that they read."""


def draw_suspensions(random: Random) -> Suspensions | None:
    """Draw a run's suspensions; None, as for most runs, if it has none."""
    if random.random() >= CHANCE:
        return None
    return Suspensions(gap=random.choice(_GAPS), leasers=random.randint(2, 3))


def draw_seconds(random: Random) -> float:
    """Return how long a suspension lasts; leases live for one to four seconds."""
    return random.uniform(*_SECONDS)
