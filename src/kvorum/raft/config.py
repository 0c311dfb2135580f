"""The options of a node, all checked by `validate`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kvorum.raft.entries import NO_LIMIT
from kvorum.raft.logger import Logger
from kvorum.raft.messages import APPEND_THREAD, APPLY_THREAD, NONE
from kvorum.raft.storage import Storage


class ReadOnlyOption(Enum):
    """How a leader confirms that it still leads before it answers a read."""

    SAFE = "safe"  # a quorum confirms it
    LEASE_BASED = "lease-based"  # trusts recent contact with a quorum; clocks must not drift


@dataclass(slots=True, kw_only=True)
class Config:
    """The options of one node. A tick is one call of `tick`."""

    id: int
    storage: Storage
    logger: Logger
    # Return a random number in 0 .. n-1, given n. Election timeouts are drawn with it.
    random_below: Callable[[int], int]
    election_ticks: int
    heartbeat_ticks: int
    # On a restart, the last index that the application has applied; 0 means the index of the
    # storage's snapshot.
    applied: int = 0
    async_storage_writes: bool = False
    message_size_max: int = NO_LIMIT  # encoded bytes in one append; 0 sends one entry at a time
    committed_size_max: int = 0  # encoded bytes being applied; 0 means message_size_max
    uncommitted_size_max: int = 0  # payload a leader accepts above its commit; 0 means no limit
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 0  # payload in flight to a peer; 0 means no limit
    check_quorum: bool = False
    pre_vote: bool = False
    read_only_option: ReadOnlyOption = ReadOnlyOption.SAFE
    disable_proposal_forwarding: bool = False
    disable_conf_change_validation: bool = False
    step_down_on_removal: bool = False
    # A leader announces the commit of a membership change only after it has applied the change.
    tell_changes_when_applied: bool = False
    # A candidate adds its commit index to vote requests: a voter may hold the entry that made it a
    # voter without knowing that it is committed. A refusing voter adds its own to the refusal: the
    # candidate may have been removed.
    tell_commit_to_voters: bool = False

    def validate(self) -> None:
        """Raise ValueError if the options contradict each other; fill in derived options."""
        if self.id == NONE:
            raise ValueError("cannot use none as id")
        if self.id in (APPEND_THREAD, APPLY_THREAD):
            raise ValueError("cannot use local target as id")
        if self.heartbeat_ticks <= 0:
            raise ValueError("heartbeat tick must be greater than 0")
        if self.election_ticks <= self.heartbeat_ticks:
            raise ValueError("election tick must be greater than heartbeat tick")
        if self.storage is None:
            raise ValueError("storage cannot be nil")
        if self.committed_size_max == 0:
            self.committed_size_max = self.message_size_max
        if self.inflight_messages_max <= 0:
            raise ValueError("max inflight messages must be greater than 0")
        if 0 < self.inflight_bytes_max < self.message_size_max:
            raise ValueError("max inflight bytes must be >= max message size")
        if self.read_only_option is ReadOnlyOption.LEASE_BASED and not self.check_quorum:
            raise ValueError(
                "CheckQuorum must be enabled when ReadOnlyOption is ReadOnlyLeaseBased"
            )
        if self.committed_size_max <= 0:
            raise ValueError(
                "committed_size_max and message_size_max are both 0: nothing could ever be "
                "applied; give one of them"
            )
