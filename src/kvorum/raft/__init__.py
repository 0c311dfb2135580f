"""Raft consensus, sans-IO: no sockets, files, clocks or threads; usable without the rest of Kvorum.

Start with `RawNode`, or with `Node` for queues around it; `docs/raft.md` is the manual.
"""

from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2, Transition
from kvorum.raft.config import Config, ReadOnlyOption
from kvorum.raft.entries import NO_LIMIT, Entry, EntryType
from kvorum.raft.errors import (
    BootstrapError,
    BusyError,
    CompactedError,
    FatalError,
    LocalMessageError,
    PeerNotFoundError,
    ProposalDroppedError,
    RaftError,
    SnapshotOutOfDateError,
    SnapshotTemporarilyUnavailableError,
    StoppedError,
    StorageError,
    UnavailableError,
)
from kvorum.raft.logger import Logger
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    NONE,
    ConfState,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.node import Node, Proposal, restart_node, start_node
from kvorum.raft.rawnode import RawNode
from kvorum.raft.ready import Ready
from kvorum.raft.states import ReadState, Role, SoftState
from kvorum.raft.status import BasicStatus, Status
from kvorum.raft.storage import MemoryStorage, Storage

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "NONE",
    "NO_LIMIT",
    "BasicStatus",
    "BootstrapError",
    "BusyError",
    "Change",
    "ChangeType",
    "CompactedError",
    "ConfChange",
    "ConfChangeV2",
    "ConfState",
    "Config",
    "Entry",
    "EntryType",
    "FatalError",
    "HardState",
    "LocalMessageError",
    "Logger",
    "MemoryStorage",
    "Message",
    "MessageType",
    "Node",
    "PeerNotFoundError",
    "Proposal",
    "ProposalDroppedError",
    "RaftError",
    "RawNode",
    "ReadOnlyOption",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "SnapshotOutOfDateError",
    "SnapshotTemporarilyUnavailableError",
    "SoftState",
    "Status",
    "StoppedError",
    "Storage",
    "StorageError",
    "Transition",
    "UnavailableError",
    "restart_node",
    "start_node",
]
