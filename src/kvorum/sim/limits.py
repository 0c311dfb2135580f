"""Limits of production that a run makes small, as entries per clock check and keys per slice.

A run is short and its store small, so with production's limits no work would be done in pieces:
apply would never lag behind commit, no read would take several slices, and no run would try what
happens between two pieces.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from kvorum.api.limits import PRODUCTION, WorkLimits

USUAL_CHANCE = 0.25
"""The share of runs that keep production's limits."""
_SMALL_CHANCES = (0.3, 0.6, 0.85)
"""The share of limits that are small in the other runs; each run draws one of these."""

DrawnLimits = Mapping[str, float]
"""Limits that differ from production's, by the names of the fields of `WorkLimits`."""

_FEW = (1, 2, 3, 10)
_BYTES = (1, 100, 1000)
_NONE_OR_FEW = (0, 1, 3, 10)

CHOICES: Mapping[str, tuple[float, ...]] = {
    # The member.
    "apply_entries_per_clock_check": _FEW,
    "read_bytes_per_clock_check": _BYTES,
    "long_reads_running_max": (1, 2),
    "log_batches_in_flight_max": (1, 3),
    "log_batch_bytes_max": _BYTES,
    "unnoted_entries_max": _NONE_OR_FEW,
    "flush_awaited_writes_max": _NONE_OR_FEW,
    "log_dropped_entries_min": _FEW,
    "log_held_after_sending_seconds": (0.0, 0.3, 2.0),
    "compaction_batch_rows_per_step": _FEW,
    "purge_seconds": (0.1, 0.5, 2.0),
    "leases_promoted_at_once_max": _NONE_OR_FEW,
    # Not fewer: a run waits until all leases have ended, some dozens.
    "lease_revokes_per_check_max": (10, 30),
    # Keys.
    "slice_keys": _FEW,
    "slice_bytes": (1, 100, 5000),
    "slice_freed_items": _FEW,
    "range_first_read_rows": (1, 2, 3),
    "range_merge_runs_max": (2, 3),
    # Not fewer: several compactions must end within seconds, and pause between steps.
    "compaction_keys_per_step": (30, 60),
    "compaction_rows_per_step": (30, 60),
    "key_chunk_keys_max": (2, 5, 20),
    "key_run_single_keys_max": (0, 1, 3),
    "hash_rows_per_scan": (1, 3, 20),
    "restore_rows_per_scan": (1, 3, 20),
    "restore_rows_per_slice": (1, 3, 20),
    # Watchers.
    "watch_catch_up_watchers_max": (1, 2),
    "watch_deliveries_per_step": _FEW,
    "watch_catch_up_bytes_per_step": _BYTES,
    "watch_stream_unsent_bytes_max": _BYTES,
    "watch_spread_bytes_max": _BYTES,
    "watch_unsent_bytes_max": _BYTES,
    "watchers_removed_per_step": (1, 2),
    "watch_changes_per_step": _FEW,
    "watch_history_rows_max": _FEW,
    "watch_history_bytes_max": _BYTES,
    "watch_history_first_read_rows": (1, 3),
    # Leases.
    "lease_checkpoint_seconds": (0.2, 0.7, 2.0),
    "lease_checkpoints_per_batch_max": _FEW,
    "lease_revokes_per_second_max": (10, 30),
    "lease_deadlines_examined_max": (10, 30),
    "lease_slice_items": _FEW,
    "lease_stale_deadlines_min": _NONE_OR_FEW,
    # The database.
    "seal_checked_rows_max": _NONE_OR_FEW,
    "cache_freed_rows_per_turn": _FEW,
    "flush_piece_rows": _FEW,
    "cache_added_rows_max": _NONE_OR_FEW,
    "view_scan_entries": (2, 3, 10),
    "image_piece_entries": _FEW,
    "image_commit_entries": (3, 30),
    "defragment_switch_writes_max": _NONE_OR_FEW,
    "defragment_rounds_max": (1, 2, 3),
    "defragment_piece_rows": _FEW,
    # Clients and peers.
    "txn_slice_bytes": _BYTES,
    "requests_per_clock_check": _FEW,
    "election_rows_per_slice": _FEW,
    "leases_per_slice": _FEW,
    "inline_calls_max": (0, 1, 100),
    "inline_alone_bytes_max": (0, 300),
    "inline_shared_bytes_max": (0, 300, 64 * 1024),
    "peer_requests_running_max": (1, 2),
    "range_stream_first_keys": (1, 2, 3),
    "password_prompt_seconds_max": (0.0, 0.0008, 0.002),
}
"""The small values of each limit. Their order decides which limits a seed draws."""


def draw_limits(random: Random) -> dict[str, float]:
    """Return the limits that are small in a run, and their values."""
    if random.random() < USUAL_CHANCE:
        return {}
    chance = random.choice(_SMALL_CHANCES)
    # Each limit draws the same number of times, so a new one leaves those before it as they are.
    drawn = [(random.random(), name, random.choice(values)) for name, values in CHOICES.items()]
    return {name: value for place, name, value in drawn if place < chance}


def work_limits(drawn: DrawnLimits) -> WorkLimits:
    """Return production's limits with these in their place."""
    return replace(PRODUCTION, **drawn)  # type: ignore[arg-type]
