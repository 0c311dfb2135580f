"""What a member is told, and the seams through which it reaches the world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvorum.backend.environment import Environments
from kvorum.files import Files
from kvorum.raft.logger import Logger
from kvorum.wal import SEGMENT_BYTES

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
    """Monotonic seconds that go on while the machine is suspended: who has slept may not take its
    last word for news."""
    random_below: Callable[[int], int]
    unix_seconds: float
    """The time of day at the start; ids of members that are added are made from it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MemberConfig:
    """The options of one member; the defaults are etcd's."""

    name: str = "default"
    directory: str
    """Holds `wal/` and `snap/`; etcd's `<data-dir>/member`. The directory above exists."""
    wal_directory: str = ""
    """In place of `<directory>/wal`."""
    initial_cluster: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names and peer URLs of the members of a new cluster; used when there is no log yet."""
    initial_cluster_token: str = "etcd-cluster"  # noqa: S105 (not a secret)
    joins: tuple[int, int] | None = None
    """Member and cluster id, to join a cluster that exists; `initial_cluster` is not used."""
    force_new_cluster: bool = False
    """Make this member the only one; its log has to exist. For a cluster without a quorum."""
    client_urls: tuple[str, ...] = ()
    """Published to the cluster after the start."""

    heartbeat_seconds: float = 0.1
    """The caller calls `tick` that often."""
    election_ticks: int = 10
    pre_vote: bool = True
    message_bytes_max: int = MEBIBYTE
    inflight_messages_max: int = 512
    uncommitted_bytes_max: int = 128 * MEBIBYTE
    """Proposals wait while so much is not committed yet."""
    inflight_bytes_max: int = 32 * MEBIBYTE
    """Entries on their way to a peer; less than the transport keeps for one before it drops."""

    request_bytes_max: int = 1_572_864
    unapplied_entries_max: int = 5000
    """Proposals are refused while more is committed and not applied."""
    quota_bytes: int = 0
    """0 is 2 GiB; negative is without limit."""
    learners_max: int = 1
    strict_reconfig: bool = True
    """Changes of the membership that endanger the quorum are refused."""

    snapshot_entries: int = 10_000
    """A `.snap` file is written when so many entries were applied since the last one."""
    catch_up_entries: int = 5000
    """Entries kept for followers behind the newest that the backend holds durably."""
    catch_up_bytes_max: int = 128 * MEBIBYTE
    """What these entries take in memory; a follower that lacks dropped ones gets an image."""
    held_bytes_max: int = 512 * MEBIBYTE
    """What is kept while a snapshot is on its way; beyond that its receiver needs another one."""
    log_bytes_max: int = 1024 * MEBIBYTE
    """With more of the log in memory, what is not applied or durable yet is too much: proposals
    are refused, and entries of the leader are not taken, as if they were lost."""
    segment_bytes: int = SEGMENT_BYTES
    snapshots_kept: int = 5
    segments_kept: int = 5

    flush_seconds: float = 0.1
    flush_writes_max: int = 10_000
    compaction_batch: int = 1000
    compaction_pause_seconds: float = 0.01
    lease_checkpoints: bool = False
    fast_keep_alive: bool = True
    """A lease that is known is renewed without waiting for what is committed to be applied."""
    initial_corrupt_check: bool = False
    """Compare the hash of all keys with the peers' before serving, when started again."""
    corrupt_check_seconds: float = 0.0
    """How often the leader compares the hashes of all members; 0 is never."""
    compact_hash_check_seconds: float = 0.0
    """How often the leader compares those of compactions; 0 is never, etcd's gate a minute."""
    watch_progress_seconds: float = 600.0
    server_version: str = "3.7.3"

    @property
    def election_seconds(self) -> float:
        """The election timeout."""
        return self.election_ticks * self.heartbeat_seconds

    @property
    def request_seconds_max(self) -> float:
        """How long a proposal or a linearizable read waits: 7 s with the defaults."""
        return 5.0 + 2 * self.election_seconds
