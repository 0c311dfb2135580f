"""The input and the result of an attack."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """A server under attack. Addresses are `host:port`."""

    client: str
    peer: str
    metrics: str
    log: Path
    is_running: Callable[[], bool]
    hold_seconds: float = 3.0
    """How long an attack holds its connections or calls, so that their cost shows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of an attack, as measured by its attacker and its own victims."""

    text: str
    """A summary that shows whether the attack took place."""
    victim_seconds: float = 0.0
    """How long a victim other than the bystander had to wait."""
    harm: str = ""
    """Other damage to the server, in a few words."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack and its amount."""

    name: str
    run: Callable[[Target, int, float], Seen]
    """Called with the target, the amount, and the deadline for its return."""
    count: int
    """The amount in a comparison with etcd."""
    count_small: int
    """The amount in a test."""
    seconds_max: float = 30.0
    prepare: Callable[[Target, int, float], None] | None = None
    """Creates the state that the attack needs; not measured."""
    flags: tuple[str, ...] = ()
    members: int = 1
    """How many members the cluster has; the first is attacked."""
    descriptors: int = 0
    """How many descriptors the server may open; 0 means the usual limit."""
    leaves_marks: bool = False
    """Whether the attack changes the cluster, which must then restart successfully afterwards."""
