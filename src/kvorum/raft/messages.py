"""What nodes say to each other and to their own storage threads, as plain data.

A message belongs to nobody once it was made: a transport may hand the same object to two nodes, so
no one changes it or the lists within. Numbers are unsigned 64-bit; node 0 means none, and term 0 a
message that is not subject to terms.
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

    Plain numbers, as for roles and states: reading a member of an enumeration costs ten times as
    much, and every message needs several.
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
# Indexed by the type.
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
    """The application's state after an entry, in place of the log up to it."""

    index: int
    term: int
    conf_state: ConfState = NO_MEMBERS
    data: bytes = b""


class HardState(NamedTuple):
    """What must survive a restart besides the log."""

    term: int = 0
    vote: int = NONE
    commit: int = 0


NO_HARD_STATE: Final = HardState()


@dataclass(slots=True)
class Message:
    """One message; which fields count depends on its type."""

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
    # Sent once the storage write that this message asks for is done.
    responses: Sequence["Message"] = ()
