"""Limits of production that a run makes small, as entries per clock check and keys per slice.

A run is short and its store small, so with production's limits no work would be done in pieces:
apply would never lag behind commit, no read would take several slices, and no run would try what
happens between two pieces.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from random import Random
from types import ModuleType
from typing import NamedTuple

USUAL_CHANCE = 0.25
"""The share of runs that keep production's limits."""
_SMALL_CHANCES = (0.3, 0.6, 0.85)
"""The share of limits that are small in the other runs; each run draws one of these."""

Limits = Mapping[str, float]
"""Limits that differ from production's, by name."""


class Limit(NamedTuple):
    """A module's variable, its small values, and the other modules that have imported it."""

    module: str
    variable: str
    choices: tuple[float, ...]
    importers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name, without `kvorum`."""
        return f"{self.module}.{self.variable}"

    def places(self) -> list[ModuleType]:
        """Return the modules in which the variable has to be set."""
        return [import_module(f"kvorum.{each}") for each in (self.module, *self.importers)]


_FEW = (1, 2, 3, 10)
_BYTES = (1, 100, 1000)
_NONE_OR_FEW = (0, 1, 3, 10)

LIMITS = (
    # The member.
    Limit("member.apply", "ENTRIES_PER_CLOCK_CHECK", _FEW),
    Limit("member.serving", "BYTES_PER_CLOCK_CHECK", _BYTES),
    Limit("member.longreads", "RUNNING_MAX", (1, 2)),
    Limit("member.logwriter", "BATCHES_IN_FLIGHT_MAX", (1, 3)),
    Limit("member.logwriter", "BATCH_BYTES_MAX", _BYTES),
    Limit("member.flushing", "UNNOTED_ENTRIES_MAX", _NONE_OR_FEW),
    Limit("member.flushing", "AWAITED_WRITES_MAX", _NONE_OR_FEW),
    Limit("member.snapshots", "COMPACTED_ENTRIES_MIN", _FEW),
    Limit("member.snapshots", "HELD_AFTER_SENDING_SECONDS", (0.0, 0.3, 2.0)),
    Limit("member.duties", "ROWS_PER_STEP", _FEW),
    Limit("member.duties", "PURGE_SECONDS", (0.1, 0.5, 2.0)),
    Limit("member.leases", "PROMOTED_AT_ONCE_MAX", _NONE_OR_FEW),
    # Not fewer: a run waits until all leases have ended, some dozens.
    Limit("member.leases", "REVOKES_PER_CHECK_MAX", (10, 30)),
    # Keys.
    Limit(
        "state.mvcc.slices",
        "KEYS_PER_SLICE",
        _FEW,
        (
            "server.rpc.checks",
            "server.rpc.keepalives",
            "server.rpc.lease",
            "state.apply.transactions",
            "state.mvcc.compaction",
            "state.mvcc.index",
            "state.mvcc.key_changes",
            "state.mvcc.ranges",
            "state.mvcc.store",
            "state.mvcc.transaction",
        ),
    ),
    Limit(
        "state.mvcc.slices",
        "BYTES_PER_SLICE",
        (1, 100, 5000),
        ("state.apply.compares", "state.apply.transactions", "state.mvcc.ranges"),
    ),
    Limit(
        "state.mvcc.slices", "FREED_PER_SLICE", _FEW, ("state.mvcc.index", "state.mvcc.sortedkeys")
    ),
    Limit("state.mvcc.ranges", "FIRST_READ_ROWS", (1, 2, 3)),
    Limit("state.mvcc.ranges", "RUNS_PER_MERGE", (2, 3)),
    # Not fewer: several compactions must end within seconds, and pause between steps.
    Limit("state.mvcc.compaction", "KEYS_PER_STEP", (30, 60)),
    Limit("state.mvcc.compaction", "ROWS_PER_STEP", (30, 60)),
    Limit("state.mvcc.sortedkeys", "CHUNK_MAX", (2, 5, 20)),
    Limit("state.mvcc.sortedkeys", "FEW", (0, 1, 3)),
    Limit("state.mvcc.hashes", "_ROWS_PER_SCAN", (1, 3, 20)),
    Limit("state.mvcc.restore", "ROWS_PER_SCAN", (1, 3, 20)),
    Limit("state.mvcc.restore", "ROWS_PER_SLICE", (1, 3, 20)),
    # Watchers.
    Limit("state.mvcc.watch.hub", "CATCH_UP_WATCHERS_MAX", (1, 2)),
    Limit("state.mvcc.watch.hub", "DELIVERIES_PER_STEP", _FEW),
    Limit("state.mvcc.watch.hub", "CATCH_UP_BYTES_PER_STEP", _BYTES),
    Limit("state.mvcc.watch.hub", "STREAM_UNSENT_BYTES_MAX", _BYTES),
    Limit("state.mvcc.watch.hub", "SPREAD_BYTES_MAX", _BYTES),
    Limit("state.mvcc.watch.hub", "UNSENT_BYTES_MAX", _BYTES),
    Limit("state.mvcc.watch.stream", "WATCHERS_PER_STEP", (1, 2)),
    Limit("state.mvcc.watch.publication", "CHANGES_PER_STEP", _FEW),
    Limit("state.mvcc.watch.catchup", "ROWS_MAX", _FEW),
    Limit("state.mvcc.watch.catchup", "BYTES_MAX", _BYTES),
    Limit("state.mvcc.watch.catchup", "_FIRST_READ_ROWS", (1, 3)),
    # Leases.
    Limit("state.lease.lessor", "CHECKPOINT_SECONDS", (0.2, 0.7, 2.0), ("member.restoring",)),
    Limit("state.lease.lessor", "CHECKPOINT_BATCH_MAX", _FEW),
    Limit("state.lease.lessor", "REVOKES_PER_SECOND_MAX", (10, 30)),
    Limit("state.lease.lessor", "EXAMINED_MAX", (10, 30)),
    Limit("state.lease.sorting", "SLICE", _FEW, ("state.lease.deadlines", "state.lease.lessor")),
    Limit("state.lease.deadlines", "_STALE_MIN", _NONE_OR_FEW),
    # The database.
    Limit("storage.backend.backend", "CHECKED_ROWS_MAX", _NONE_OR_FEW),
    Limit("storage.backend.backend", "FREED_PER_TURN", _FEW),
    Limit("storage.backend.batch", "_PIECE_ROWS", _FEW),
    Limit("storage.backend.cache", "ADDED_MAX", _NONE_OR_FEW, ("storage.backend.backend",)),
    Limit("storage.backend.view", "_SCAN_ENTRIES", (2, 3, 10)),
    Limit("storage.backend.transfer", "_PIECE_ENTRIES", _FEW),
    Limit("storage.backend.transfer", "_COMMIT_ENTRIES", (3, 30)),
    Limit("storage.backend.defragment", "SWITCH_WRITES_MAX", _NONE_OR_FEW),
    Limit("storage.backend.defragment", "ROUNDS_MAX", (1, 2, 3)),
    Limit("storage.backend.defragment", "_PIECE_ROWS", _FEW),
    # Clients and peers.
    Limit(
        "api.requests",
        "LONG_BYTES",
        _BYTES,
        ("member.apply", "member.message_checks", "server.rpc.kv"),
    ),
    Limit("server.rpc.services", "REQUESTS_PER_CLOCK_CHECK", _FEW),
    Limit("server.rpc.election", "ROWS_PER_SLICE", _FEW),
    Limit("server.rpc.lease", "LEASES_PER_SLICE", _FEW),
    Limit("server.server", "INLINE_CALLS_MAX", (0, 1, 100)),
    Limit("server.server", "INLINE_BYTES_MAX_ALONE", (0, 300)),
    Limit("server.server", "INLINE_BYTES_MAX", (0, 300, 64 * 1024)),
    Limit("server.peer.cluster.exchanges", "RUNNING_MAX", (1, 2)),
    Limit("server.rpc.kv", "PIECE_KEYS_FIRST", (1, 2, 3)),
    Limit("server.rpc.password_queue", "PROMPT_SECONDS_MAX", (0.0, 0.0008, 0.002)),
)
"""All limits that runs draw. Tests check that each is set in every module that uses it."""

_BY_NAME = {limit.name: limit for limit in LIMITS}


def draw_limits(random: Random) -> dict[str, float]:
    """Return the limits that are small in a run, and their values."""
    if random.random() < USUAL_CHANCE:
        return {}
    chance = random.choice(_SMALL_CHANCES)
    # Each limit draws the same number of times, so a new one leaves those before it as they are.
    drawn = [(random.random(), limit.name, random.choice(limit.choices)) for limit in LIMITS]
    return {name: value for place, name, value in drawn if place < chance}


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Set these limits in production's modules during the block."""
    before: list[tuple[ModuleType, str, float]] = []
    for name, value in limits.items():
        limit = _BY_NAME[name]
        for module in limit.places():
            before.append((module, limit.variable, getattr(module, limit.variable)))
            setattr(module, limit.variable, value)
    try:
        yield
    finally:
        for module, variable, value in before:
            setattr(module, variable, value)
