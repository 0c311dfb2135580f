"""The limits that divide work into pieces, as one value that a member's parts receive.

The rules of this module:

- A limit belongs here if it bounds the work that the loop or a job does in one piece, or the time
  until the next piece, and if a simulated run makes it small: a run is short and its store small,
  so with production's limits it would never divide any work. Nothing else belongs here; options
  that flags set are in `MemberConfig`.
- A limit changes where work pauses, never what it computes. So members may differ in their limits.
- `MemberConfig.limits` holds the value, and every object and function below receives it, or the
  number that it needs, from its caller. No module keeps a copy of its own.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkLimits:
    """How much work is done in one piece. The defaults are those of production."""

    # The member.
    apply_entries_per_clock_check: int = 64
    """How many entries a member applies between two checks of the clock."""
    read_bytes_per_clock_check: int = 64 * 1024
    """How many bytes reads return between two checks of the clock."""
    long_reads_running_max: int = 4
    """How many long reads share the turns."""
    log_batches_in_flight_max: int = 2
    """How many batches of log writes are written at once; further writes gather meanwhile."""
    log_batch_bytes_max: int = 4 << 20
    """A batch of log writes takes no further write once it has this many bytes."""
    unnoted_entries_max: int = 1000
    """After more entries without an effect than this, a flush stores the applied index."""
    flush_awaited_writes_max: int = 20_000
    """The loop waits for the staging of a flush of at most this many writes, about 10 ms."""
    log_dropped_entries_min: int = 100
    """The member drops at least this many entries at once from the memory of its log, unless it
    keeps fewer at all."""
    log_held_after_sending_seconds: float = 30.0
    """How long a member keeps its log after it sent a snapshot, so that the receiver can catch
    up."""
    compaction_batch_rows_per_step: int = 1000
    """About how many rows of the option `compaction_batch` one step of a compaction stands for."""
    purge_seconds: float = 30.0
    """How often a member removes old files, and prepares the next segment of its log."""
    leases_promoted_at_once_max: int = 1000
    """A new leader with fewer leases than this starts to time them in one call."""
    lease_revokes_per_check_max: int = 500
    """How many expired leases a leader proposes to revoke at once."""

    # Keys.
    slice_keys: int = 250
    """How many keys a slice of an operation on keys covers."""
    slice_bytes: int = 1024 * 1024
    """A slice of an operation ends after the key that brings it to this many bytes."""
    slice_freed_items: int = 10_000
    """How many items of a long list or table a slice frees."""
    range_first_read_rows: int = 8
    """Rows of a range's first read; reads grow, to detect large rows before many of them are in
    memory."""
    range_merge_runs_max: int = 64
    """How many sorted runs one merge of a sorted range takes."""
    compaction_keys_per_step: int = 500
    """How many keys of the index a step of a compaction visits; most have nothing to remove."""
    compaction_rows_per_step: int = 500
    """How many rows a step of a compaction deletes."""
    key_chunk_keys_max: int = 1000
    """How many keys a chunk of a sorted set of keys holds."""
    key_run_single_keys_max: int = 8
    """A sorted set adds or removes the keys of a run one by one if a chunk gets at most this
    many."""
    hash_rows_per_scan: int = 1000
    """How many rows a hash job reads at once."""
    restore_rows_per_scan: int = 10_000
    """How many rows a starting member reads at once."""
    restore_rows_per_slice: int = 500
    """How many rows or leases a slice restores after the installation of a snapshot."""

    # Watchers.
    watch_catch_up_watchers_max: int = 512
    """Watchers that share one piece of history, and held watchers that one `release` queues."""
    watch_deliveries_per_step: int = 1000
    """Watchers to which one step sends a transaction or progress."""
    watch_catch_up_bytes_per_step: int = 4 * 1024 * 1024
    """Bytes that one step of catching up sends before it leaves the rest to the next step."""
    watch_stream_unsent_bytes_max: int = 1024 * 1024
    """Bytes that make a stream count as full until the next `WatchHub.take_outgoing`."""
    watch_spread_bytes_max: int = 64 * 1024
    """Bytes that fan-outs may add before the hub checks each stream."""
    watch_unsent_bytes_max: int = 16 * 1024 * 1024
    """Unsent bytes of all streams above which a transaction's remaining watchers fall behind.
    Catching up also pauses above this limit."""
    watchers_removed_per_step: int = 1000
    """Watchers that one step removes from a closed stream."""
    watch_changes_per_step: int = 1000
    """Changes of a transaction that one step matches with watchers."""
    watch_history_rows_max: int = 1000
    """Rows of a piece of history and of each call that reads it; a response never has more
    distinct revisions."""
    watch_history_bytes_max: int = 4 * 1024 * 1024
    """A piece of history takes no further rows once it has this many bytes."""
    watch_history_first_read_rows: int = 16
    """Half of the rows of the first read of a piece of history; reads grow, to detect large values
    before hundreds of them are in memory."""

    # Leases.
    lease_checkpoint_seconds: float = 300.0
    """The interval of the checkpoints of one lease."""
    lease_checkpoints_per_batch_max: int = 1000
    """How many leases one checkpoint covers."""
    lease_revokes_per_second_max: int = 1000
    """How many expired leases a leader revokes within any second."""
    lease_deadlines_examined_max: int = 1000
    """How many heap entries a search for expired leases visits; bounds a turn after a wave of
    renewals."""
    lease_slice_items: int = 500
    """How many leases or other sorted items a slice covers: some 0.2 ms of work."""
    lease_stale_deadlines_min: int = 64
    """A heap of deadlines with at most this many stale entries is never replaced."""

    # The database.
    seal_checked_rows_max: int = 20_000
    """A seal checks the order of at most this many rows: LMDB refuses to append unordered rows."""
    cache_freed_rows_per_turn: int = 4_000
    """How many rows that the cache dropped a turn frees."""
    flush_piece_rows: int = 1_000
    """How many rows a flush encodes at once. Small pieces keep the encoded rows in the processor's
    cache, which saves a fifth of the time."""
    cache_added_rows_max: int = 20_000
    """The cache takes no more rows than this at once."""
    view_scan_entries: int = 1_000
    """How many entries a view of the database reads at once."""
    image_piece_entries: int = 1_000
    """How many entries of a whole database are read at once."""
    image_commit_entries: int = 100_000
    """How many entries one transaction writes into a database that `CURRENT` does not name yet."""
    defragment_switch_writes_max: int = 10_000
    """The most writes left to the flush that switches to the defragmented file: the stage of that
    flush then takes a few milliseconds."""
    defragment_rounds_max: int = 10
    """After this many rounds the flush switches anyway: if writers outrun the helper, the last
    stage grows, but the defragmentation ends."""
    defragment_piece_rows: int = 1_000
    """How many rows a round of a defragmentation reads at once."""

    # Clients and peers.
    txn_slice_bytes: int = 16 * 1024
    """The server reads longer transactions in slices of about this many bytes."""
    requests_per_clock_check: int = 64
    """How many plain requests the server takes between two checks of the clock."""
    election_rows_per_slice: int = 500
    """How many rows of history an observer of an election reads at once."""
    leases_per_slice: int = 1000
    """How many leases a slice of the list of leases encodes or checks."""
    inline_calls_max: int = 4
    """With more requests at once, another thread writes the log, and the loop takes the next
    batch."""
    inline_alone_bytes_max: int = 64 * 1024
    """The largest append that the loop writes itself, which saves two wake-ups of threads, in a
    cluster of one member."""
    inline_shared_bytes_max: int = 4 * 1024
    """The same in other clusters: lower, because other members wait for the loop."""
    peer_requests_running_max: int = 32
    """How many short requests to one member run at once."""
    range_stream_first_keys: int = 10
    """How many keys the first piece of a streamed range has; the next ones follow from its size."""
    password_prompt_seconds_max: float = 0.5
    """The largest budget of the prompt process for passwords: its processor time in one burst."""


PRODUCTION: Final = WorkLimits()
"""The limits of every member outside the simulator and the tests."""
