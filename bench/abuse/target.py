"""What an attack is given, and what it tells."""

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
    """How long an attack that holds something does so, for what it costs to show."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of an attack, as its attacker and its own victims saw it."""

    text: str
    """For whoever wants to know whether the attack took place."""
    victim_seconds: float = 0.0
    """How long somebody had to wait whom this attack is aimed at, beside the bystander."""
    harm: str = ""
    """What else was done to the server, in a few words."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack, and how much of it there is."""

    name: str
    run: Callable[[Target, int, float], Seen]
    """Called with the target, how much, and the moment by which it has to return."""
    count: int
    """How much of it, beside an etcd."""
    count_small: int
    """How much of it in a test."""
    seconds_max: float = 30.0
    prepare: Callable[[Target, int, float], None] | None = None
    """What has to be there before; not measured."""
    flags: tuple[str, ...] = ()
    members: int = 1
    """How many members the cluster has; the first is attacked."""
    descriptors: int = 0
    """How many descriptors the server may open; 0: as many as anybody."""
    leaves_marks: bool = False
    """Whether the cluster is another one afterwards: it must start again, and none follows."""
