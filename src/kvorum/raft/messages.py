"""The messages between nodes, and between a node and its own storage threads, as plain data.

A message is immutable once it was made: a transport may hand the same object to two nodes, so no
code changes the message or the lists in it. Numbers are unsigned 64-bit. Node 0 means none, and
term 0 means that the message is not subject to terms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvorum.raft.entries import Entry

NONE: Final = 0
APPEND_THREAD: Final = (1 << 64) - 1
APPLY_THREAD: Final = (1 << 64) - 2


class MessageType:
    """The kinds of messages, numbered as on the wire.

    The kinds are plain numbers, as roles and states are: reading a member of an enumeration costs
    ten times as much, and every message needs several reads.
    """

    HUP: Final = 0
    BEAT: Final = 1
    PROP: Final = 2
    APP: Final = 3
    APP_RESP: Final = 4
    VOTE: Final = 5
    VOTE_RESP: Final = 6
    SNAP: Final = 7
    HEARTBEAT: Final = 8
    HEARTBEAT_RESP: Final = 9
    UNREACHABLE: Final = 10
    SNAP_STATUS: Final = 11
    CHECK_QUORUM: Final = 12
    TRANSFER_LEADER: Final = 13
    TIMEOUT_NOW: Final = 14
    READ_INDEX: Final = 15
    READ_INDEX_RESP: Final = 16
    PRE_VOTE: Final = 17
    PRE_VOTE_RESP: Final = 18
    STORAGE_APPEND: Final = 19
    STORAGE_APPEND_RESP: Final = 20
    STORAGE_APPLY: Final = 21
    STORAGE_APPLY_RESP: Final = 22
    FORGET_LEADER: Final = 23


MESSAGE_TYPES: Final = range(24)
_LOCAL: Final = {
    MessageType.HUP,
    MessageType.BEAT,
    MessageType.UNREACHABLE,
    MessageType.SNAP_STATUS,
    MessageType.CHECK_QUORUM,
    MessageType.STORAGE_APPEND,
    MessageType.STORAGE_APPEND_RESP,
    MessageType.STORAGE_APPLY,
    MessageType.STORAGE_APPLY_RESP,
}
_RESPONSE: Final = {
    MessageType.APP_RESP,
    MessageType.VOTE_RESP,
    MessageType.HEARTBEAT_RESP,
    MessageType.UNREACHABLE,
    MessageType.READ_INDEX_RESP,
    MessageType.PRE_VOTE_RESP,
    MessageType.STORAGE_APPEND_RESP,
    MessageType.STORAGE_APPLY_RESP,
}
# Indexed by message type.
IS_LOCAL: Final = tuple(kind in _LOCAL for kind in MESSAGE_TYPES)
IS_RESPONSE: Final = tuple(kind in _RESPONSE for kind in MESSAGE_TYPES)


class ConfState(NamedTuple):
    """The members of a configuration; both voter lists are non-empty while it is joint."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False

    def normal(self) -> "ConfState":
        """Return the same members in ascending order, so that equal states compare equal."""
        return ConfState(
            tuple(sorted(self.voters)),
            tuple(sorted(self.learners)),
            tuple(sorted(self.voters_outgoing)),
            tuple(sorted(self.learners_next)),
            self.auto_leave,
        )


NO_MEMBERS: Final = ConfState()


@dataclass(slots=True, frozen=True)
class Snapshot:
    """The application's state at an index; it replaces the log up to that index."""

    index: int
    term: int
    conf_state: ConfState = NO_MEMBERS
    data: bytes = b""


class HardState(NamedTuple):
    """The state that must survive a restart besides the log."""

    term: int = 0
    vote: int = NONE
    commit: int = 0


NO_HARD_STATE: Final = HardState()


@dataclass(slots=True)
class Message:
    """One message. Its type decides which fields have a meaning."""

    type: int
    to: int = NONE
    sender: int = NONE
    term: int = 0
    log_term: int = 0
    index: int = 0
    entries: Sequence[Entry] = ()
    commit: int = 0
    vote: int = NONE
    snapshot: Snapshot | None = None
    reject: bool = False
    reject_hint: int = 0
    context: bytes = b""
    # Send these once the storage write that this message asks for is done.
    responses: Sequence["Message"] = ()
