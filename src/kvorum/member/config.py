"""The options of a member, and the seams through which it reaches the world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvorum.auth.tokens import Tokens
from kvorum.backend.environment import Environments
from kvorum.files import Files
from kvorum.raft.logger import Logger
from kvorum.wal import SEGMENT_BYTES
from kvorum.wal.skimming import Skim

MEBIBYTE = 1 << 20


@dataclass(slots=True, frozen=True, kw_only=True)
class Seams:
    """Everything a member may ask of the world."""

    files: Files
    environments: Environments
    logger: Logger
    clock: Callable[[], float]
    """Monotonic seconds; they may stand still while the machine is suspended. Within a turn it
    decides where the turn ends, and from when a lease runs."""
    boot_clock: Callable[[], float]
    """Monotonic seconds that go on while the machine is suspended: after that, what was confirmed
    before counts as old."""
    random_below: Callable[[int], int]
    unix_seconds: float
    """The time of day at the start; ids of members that are added are made from it."""
    wall_clock: Callable[[], float]
    """The time of day, in Unix seconds: when tokens end that say so themselves."""
    tokens: Tokens
    """The tokens that clients may show; none is valid at the start, unless it is signed."""
    member_token: str = ""
    """What the member's own child shows in place of a user's token; empty: there is none."""
    stopwatch: Callable[[], float] = lambda: 0.0
    """Monotonic seconds by which durations are taken for metrics; they decide nothing."""
    skim: Skim | None = None
    """Passes records of the log that a start does not need; without it Python reads them all."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MemberConfig:
    """The options of one member. Those that flags set have no default here."""

    name: str
    directory: str
    """Holds `wal/` and `snap/`; etcd's `<data-dir>/member`. The directory above exists."""
    wal_directory: str
    """Used instead of `<directory>/wal`, unless it is empty."""
    initial_cluster: Mapping[str, tuple[str, ...]]
    """Names and peer URLs of the members of a new cluster; used when there is no log yet."""
    initial_cluster_token: str
    joins: tuple[int, int] | None = None
    """Member and cluster id, to join a cluster that exists; `initial_cluster` is not used."""
    force_new_cluster: bool
    """Make this member the only one; its log has to exist. For a cluster without a quorum."""
    client_urls: tuple[str, ...]
    """Published to the cluster after the start."""

    heartbeat_seconds: float
    """How often the caller calls `tick`."""
    election_ticks: int
    pre_vote: bool
    message_bytes_max: int = MEBIBYTE
    inflight_messages_max: int = 512
    uncommitted_bytes_max: int = 128 * MEBIBYTE
    """Proposals wait while so many bytes are not committed."""
    inflight_bytes_max: int = 32 * MEBIBYTE
    """Entries on their way to a peer; less than the transport queues before it drops any."""

    request_bytes_max: int
    unapplied_entries_max: int = 5000
    """Proposals are refused while more entries are committed and not applied."""
    prioritizes_revokes: bool
    """Revokes of leases are refused at twice that number only."""
    quota_bytes: int
    """Negative: no limit."""
    learners_max: int
    strict_reconfig: bool
    """Changes of the membership that endanger the quorum are refused."""

    snapshot_entries: int
    """A `.snap` file is written when so many entries were applied since the last one."""
    catch_up_entries: int
    """How many entries before the newest durable one in the backend are kept for followers."""
    catch_up_bytes_max: int = 128 * MEBIBYTE
    """The memory these entries may take; a follower that lacks dropped ones gets an image."""
    held_bytes_max: int = 512 * MEBIBYTE
    """The same while a snapshot is on its way; beyond that its receiver needs another one."""
    log_bytes_max: int = 1024 * MEBIBYTE
    """With more of the log in memory, too much is not applied or not durable: proposals are
    refused, and entries from the leader are dropped, as if they were lost."""
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
    """The leader compacts all but so many revisions; 0: never."""
    retention_check_seconds: float = 300.0
    """How often it checks whether there are more revisions than that."""
    lease_checkpoints: bool
    fast_keep_alive: bool
    """A known lease is renewed without waiting until everything committed is applied."""
    initial_corrupt_check: bool
    """Compare the hash of all keys with the peers' before serving, on a restart."""
    corrupt_check_seconds: float
    """How often the leader compares the hashes of all members; 0: never."""
    compact_hash_check_seconds: float
    """How often the leader compares the hashes of compactions; 0: never."""
    downgrade_check_seconds: float
    """How often the leader looks whether a downgrade under way has ended; 0: never."""
    bcrypt_cost: int
    """Of the passwords that this member hashes."""
    watch_progress_seconds: float
    server_version: str = "3.7.3"

    @property
    def election_seconds(self) -> float:
        """The election timeout."""
        return self.election_ticks * self.heartbeat_seconds

    @property
    def request_seconds_max(self) -> float:
        """How long a proposal or a linearizable read waits: 7 s with the defaults."""
        return 5.0 + 2 * self.election_seconds
