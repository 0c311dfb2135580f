"""The errors of this library: refusals, and the one fatal error.

The two kinds are never mixed. A `RaftError` is an answer: the request is not possible now, and the
node goes on. A `FatalError` means that data was lost or that the embedder broke the contract.
Nothing in this library catches a `FatalError`, and the node must not be used again.
"""


class RaftError(Exception):
    """The node refused a request and is unchanged."""

    text = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)


class ProposalDroppedError(RaftError):
    """The proposal was refused and is not in any log, so the caller can propose it again."""

    text = "raft proposal dropped"


class LocalMessageError(RaftError):
    """An outside sender passed in a message of a type that only the node itself may make."""

    text = "raft: cannot step raft local message"


class PeerNotFoundError(RaftError):
    """A response came from a peer that is not in the configuration."""

    text = "raft: cannot step as peer not found"


class StoppedError(RaftError):
    """The node was stopped before it could handle the request."""

    text = "raft: stopped"


class BusyError(RaftError):
    """A queue of the node is full; retry later."""

    text = "raft: too many requests wait for this node"


class BootstrapError(RaftError):
    """The storage or the list of peers does not fit a first start."""


class ConfChangeError(RaftError):
    """A membership change does not fit the current configuration."""


class StorageError(RaftError):
    """The storage lacks the requested data. Any other error of a storage is fatal."""


class CompactedError(StorageError):
    """The index is older than the oldest entry kept."""

    text = "requested index is unavailable due to compaction"


class UnavailableError(StorageError):
    """The index is newer than the newest entry."""

    text = "requested entry at index is unavailable"


class SnapshotOutOfDateError(StorageError):
    """The storage already has a snapshot at this index or a newer one."""

    text = "requested index is older than the existing snapshot"


class SnapshotTemporarilyUnavailableError(StorageError):
    """The snapshot is still being built; the leader retries later."""

    text = "snapshot is temporarily unavailable"


class FatalError(Exception):
    """The node cannot go on: data was lost, or the contract was broken. Stop, and investigate."""
