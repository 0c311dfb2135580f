"""Every way the library refuses, and the one way it stops.

Two kinds, never mixed. A `RaftError` is an answer: the caller asked for something that is not
possible now, and the node goes on. A `FatalError` means that data was lost or that the embedder
broke the contract: nothing in this library catches it, and the node must not be used again.
"""


class RaftError(Exception):
    """Something was refused; the node is as it was."""

    text = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)


class ProposalDroppedError(RaftError):
    """The proposal was not accepted; it will never be seen, so it can be proposed again."""

    text = "raft proposal dropped"


class LocalMessageError(RaftError):
    """A message that only a node itself may make came from outside."""

    text = "raft: cannot step raft local message"


class PeerNotFoundError(RaftError):
    """A response came from a peer that the configuration does not know."""

    text = "raft: cannot step as peer not found"


class StoppedError(RaftError):
    """The node was stopped before it could do what was asked."""

    text = "raft: stopped"


class BusyError(RaftError):
    """Too much waits already; ask again later."""

    text = "raft: too many requests wait for this node"


class BootstrapError(RaftError):
    """The storage or the list of peers does not fit a first start."""


class ConfChangeError(RaftError):
    """A membership change does not fit the configuration it is applied to."""


class StorageError(RaftError):
    """The storage does not hold what was asked for. Any other error of it is fatal."""


class CompactedError(StorageError):
    """The index is older than the oldest entry kept."""

    text = "requested index is unavailable due to compaction"


class UnavailableError(StorageError):
    """The index is newer than the newest entry."""

    text = "requested entry at index is unavailable"


class SnapshotOutOfDateError(StorageError):
    """A snapshot at this index or a newer one is already there."""

    text = "requested index is older than the existing snapshot"


class SnapshotTemporarilyUnavailableError(StorageError):
    """The snapshot is still being made; the leader asks again later."""

    text = "snapshot is temporarily unavailable"


class FatalError(Exception):
    """The node cannot go on: data was lost or its contract broken. Stop, and investigate."""
