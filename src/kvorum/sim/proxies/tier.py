"""The options that the seed draws for the proxies of a run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from random import Random
from unittest.mock import patch

from kvorum.sim.faults import Faults

CHANCE = 0.18
"""Gives a sixth of all runs, because runs in which both users and members change have none."""
SMALL_CHANCE = 0.5
DISTURBED_CHANCE = 0.6
_SMALL: dict[str, tuple[float, ...]] = {
    "broadcasts.FRAGMENT_BYTES_MAX": (300, 1000),
    "cache.ENTRIES_MAX": (1, 3),
    "cache.ASKED_MAX": (1, 3),
    "downstream.STREAM_PENDING_BYTES_MAX": (64 * 1024,),
    "watch.STREAM_PENDING_BYTES_MAX": (64 * 1024,),
    "watch.PENDING_BYTES_MAX": (96 * 1024,),
    "watch.UNSENT_BYTES_MAX": (1, 200),
    "watch.RESUMED_PER_TURN_MAX": (1,),
    "watch_sessions.PROGRESS_SECONDS": (0.3, 2.0),
}
"""Production limits that a run may lower, by module and name, with the possible values."""
_IDLE_SECONDS = (1.0, 3.0)


@dataclass(slots=True, frozen=True, kw_only=True)
class Tier:
    """The proxies between clients and the cluster, and the clients that use them."""

    proxies: int
    share: float
    """Share of the clients that go through a proxy."""
    switching: float
    """Share of the proxied clients that also call members directly."""
    readers: int
    """Clients that repeat the same reads, which a proxy may answer from its cache."""
    sharers: int
    """Pairs of clients that renew one lease."""
    watchers: int
    """How many watchers there are in addition to those of a run without proxies."""
    sync_seconds: float
    """How often proxies refresh the members' addresses."""
    is_advertised: bool
    """Whether proxies name themselves in the member list."""
    cache_bytes_max: int
    is_ordering: bool
    polled_events_max: int
    """How many upstream events a turn takes."""
    queued_bytes_max: int
    """How many bytes of a stream members may send ahead of the proxy's turns."""
    limits: tuple[tuple[str, float], ...]
    """The lowered production limits."""


def draw_tier(random: Random) -> Tier | None:
    """Draw the proxies of a run; None, as for most runs, if it has none."""
    if random.random() >= CHANCE:
        return None
    return Tier(
        proxies=random.choice([1, 1, 2]),
        share=random.choice([0.5, 0.8, 1.0]),
        switching=random.choice([0.0, 0.3]),
        readers=random.choice([1, 2, 3]),
        sharers=random.choice([0, 1, 3]),
        watchers=random.choice([0, 2, 5]),
        sync_seconds=random.choice([0.3, 1.0, 2.0]),
        is_advertised=random.random() < 0.5,
        cache_bytes_max=random.choice([0, 16_000, 64 << 20]),
        is_ordering=random.random() < 0.3,
        polled_events_max=random.choice([1, 5, 1000]),
        queued_bytes_max=random.choice([100, 2000, 1 << 20]),
        limits=(
            ("freshness.IDLE_SECONDS", random.choice(_IDLE_SECONDS)),
            *(
                (name, random.choice(values))
                for name, values in _SMALL.items()
                if random.random() < SMALL_CHANCE
            ),
        ),
    )


def draw_proxy_faults(random: Random, faults: Faults) -> Faults:
    """Add the faults of proxies."""

    def gap(*seconds: float) -> float:
        return random.choice(seconds) if random.random() < DISTURBED_CHANCE else 0.0

    return replace(
        faults,
        proxy_crash_gap=gap(2.0, 5.0),
        proxy_terminate_gap=gap(3.0, 6.0),
        proxy_pause_gap=gap(1.0, 3.0),
        proxy_cut_gap=gap(1.0, 3.0),
        proxy_reset_gap=gap(0.3, 1.0, 3.0),
    )


@contextmanager
def tier_installed(tier: Tier | None) -> Iterator[None]:
    """Apply the run's lowered limits to proxies within the block."""
    with ExitStack() as patches:
        for name, value in () if tier is None else tier.limits:
            module, _, variable = name.partition(".")
            found = import_module(f"kvorum.proxy.{module}")
            patches.enter_context(patch.object(found, variable, value))
        yield
