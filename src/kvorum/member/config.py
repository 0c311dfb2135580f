"""The options of a member, and the seams through which it reaches the outside world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.raft.logger import Logger
from kvorum.state.auth.tokens import Tokens
from kvorum.storage.backend.environment import Environments
from kvorum.storage.files import Files
from kvorum.storage.wal import SEGMENT_BYTES
from kvorum.storage.wal.skimming import Skim

ETCD_VERSION = "3.7.3"
"""The version of etcd that members are compatible with, and tell each other."""
MEBIBYTE = 1 << 20


@dataclass(slots=True, frozen=True, kw_only=True)
class Seams:
    """The outside world as a member sees it: files, clocks, random numbers, tokens."""

    files: Files
    environments: Environments
    logger: Logger
    clock: Callable[[], float]
    """Monotonic seconds, which may stop while the machine is suspended. Within a turn this clock
    decides where the turn ends and when a lease starts to run."""
    boot_clock: Callable[[], float]
    """Monotonic seconds that continue while the machine is suspended, so that a confirmation of
    leadership from before the suspension counts as old."""
    random_below: Callable[[int], int]
    unix_seconds: float
    """The time of day at the start; the ids of added members depend on it."""
    wall_clock: Callable[[], float]
    """The time of day, in Unix seconds; signed tokens carry their expiry in it."""
    tokens: Tokens
    """Verifies clients' tokens; at the start only signed tokens are valid."""
    member_token: str = ""
    """The token that the member's own child process sends instead of a user's; empty: none."""
    stopwatch: Callable[[], float] = lambda: 0.0
    """Monotonic seconds for the durations in metrics; no decision depends on them."""
    skim: Skim | None = None
    """Skips records of the log that a start does not need; without it Python reads all of them."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MemberConfig:
    """The options of one member. Options that flags set have no default here."""

    name: str
    directory: str
    """Holds `wal/` and `snap/`; etcd's `<data-dir>/member`. Its parent directory must exist."""
    wal_directory: str
    """Used instead of `<directory>/wal`, unless it is empty."""
    initial_cluster: Mapping[str, tuple[str, ...]]
    """Names and peer URLs of the members of a new cluster; used only without a log."""
    initial_cluster_token: str
    joins: tuple[int, int] | None = None
    """Member and cluster id, to join an existing cluster; `initial_cluster` is ignored then."""
    force_new_cluster: bool
    """Make this member, which needs a log, the only one; for a cluster without a quorum."""
    client_urls: tuple[str, ...]
    """The client URLs that the member publishes to the cluster after the start."""

    heartbeat_seconds: float
    """How often the runtime calls `tick`."""
    election_ticks: int
    pre_vote: bool
    message_bytes_max: int = MEBIBYTE
    inflight_messages_max: int = 512
    uncommitted_bytes_max: int = 128 * MEBIBYTE
    """Proposals wait while this many proposed bytes are not committed."""
    inflight_bytes_max: int = 32 * MEBIBYTE
    """Entry bytes in flight to a peer; below the size at which the transport drops messages."""

    request_bytes_max: int
    unapplied_entries_max: int = 5000
    """The member refuses proposals while more committed entries than this are not applied."""
    prioritizes_revokes: bool
    """Refuse lease revokes only at twice that number of unapplied entries."""
    quota_bytes: int
    """Negative: no limit."""
    learners_max: int
    strict_reconfig: bool
    """Refuse membership changes that endanger the quorum."""

    snapshot_entries: int
    """The member writes a `.snap` file after more than this many applied entries."""
    catch_up_entries: int
    """How many entries before the backend's durable index stay in memory for followers."""
    catch_up_bytes_max: int = 128 * MEBIBYTE
    """The memory for these entries; a follower that lacks dropped entries gets an image."""
    held_bytes_max: int = 512 * MEBIBYTE
    """The same during a snapshot transfer; beyond it the receiver needs another snapshot."""
    log_bytes_max: int = 1024 * MEBIBYTE
    """With more of the log in memory, too much of it is unapplied or not durable: the member
    refuses proposals and drops entries from the leader, as if they were lost."""
    segment_bytes: int = SEGMENT_BYTES
    snapshots_kept: int
    segments_kept: int

    flush_seconds: float
    flush_writes_max: int
    compaction_batch: int
    compaction_pause_seconds: float
    retention_seconds: float
    """The leader compacts history older than this; 0: never."""
    retention_revisions: int
    """The leader compacts all but this many revisions; 0: never."""
    retention_check_seconds: float = 300.0
    """How often the leader compares the number of revisions with that limit."""
    lease_checkpoints: bool
    fast_keep_alive: bool
    """Renew a known lease without waiting for the commit index to be applied."""
    initial_corrupt_check: bool
    """Compare the hash of all keys with the peers' before serving, on a restart."""
    corrupt_check_seconds: float
    """How often the leader compares the hashes of all members; 0: never."""
    compact_hash_check_seconds: float
    """How often the leader compares the hashes of compactions; 0: never."""
    downgrade_check_seconds: float
    """How often the leader checks whether a running downgrade is complete; 0: never."""
    bcrypt_cost: int
    """The bcrypt cost of passwords that this member hashes."""
    watch_progress_seconds: float
    server_version: str = ETCD_VERSION
    limits: WorkLimits = PRODUCTION
    """How much work is done in one piece; no flag sets it."""

    @property
    def election_seconds(self) -> float:
        """The election timeout."""
        return self.election_ticks * self.heartbeat_seconds

    @property
    def request_seconds_max(self) -> float:
        """How long a proposal or a linearizable read waits: 7 s with the defaults."""
        return 5.0 + 2 * self.election_seconds
