"""What an attack is given, and what it returns."""

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
    """How long an attack that holds something does so, so that its cost shows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of an attack, as its attacker and its own victims saw it."""

    text: str
    """Shows whether the attack took place."""
    victim_seconds: float = 0.0
    """How long a victim that this attack is aimed at had to wait, apart from the bystander."""
    harm: str = ""
    """What else was done to the server, in a few words."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack, and how much of it there is."""

    name: str
    run: Callable[[Target, int, float], Seen]
    """Called with the target, the amount, and the time by which it has to return."""
    count: int
    """The amount, beside an etcd."""
    count_small: int
    """The amount in a test."""
    seconds_max: float = 30.0
    prepare: Callable[[Target, int, float], None] | None = None
    """Prepares what has to be there; not measured."""
    flags: tuple[str, ...] = ()
    members: int = 1
    """How many members the cluster has; the first is attacked."""
    descriptors: int = 0
    """How many descriptors the server may open; 0: the usual limit."""
    leaves_marks: bool = False
    """Whether the cluster is changed afterwards: it must be started anew, and no attack follows."""
