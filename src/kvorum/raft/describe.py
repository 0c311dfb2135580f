"""Text for people: entries, messages, states and Ready, in one form for logs and scenarios.

The form is that of etcd's library, so that transcripts of both can be compared line by line. Node
ids are hexadecimal in messages and configurations, decimal in states.
"""

from collections.abc import Iterable

from kvorum.raft.changes import ChangeType, ConfChangeV2
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    NONE,
    ConfState,
    HardState,
    Message,
    Snapshot,
)
from kvorum.raft.names import MESSAGE_TYPE_NAMES
from kvorum.raft.ready import Ready
from kvorum.raft.states import ROLE_NAMES, SoftState
from kvorum.raft.wire import decode_conf_change

ENTRY_TYPE_NAMES = ("EntryNormal", "EntryConfChange", "EntryConfChangeV2")
CHANGE_TYPE_NAMES = (
    "ConfChangeAddNode",
    "ConfChangeRemoveNode",
    "ConfChangeUpdateNode",
    "ConfChangeAddLearnerNode",
)
TRANSITION_NAMES = (
    "ConfChangeTransitionAuto",
    "ConfChangeTransitionJointImplicit",
    "ConfChangeTransitionJointExplicit",
)
_CHANGE_LETTERS = {
    ChangeType.ADD_NODE: "v",
    ChangeType.ADD_LEARNER_NODE: "l",
    ChangeType.REMOVE_NODE: "r",
    ChangeType.UPDATE_NODE: "u",
}
_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quote(data: bytes) -> str:
    """Return bytes as a quoted string, with unprintable characters escaped."""
    return '"' + "".join(map(_escape, data.decode("utf-8", "surrogateescape"))) + '"'


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def changes_text(change: ConfChangeV2) -> str:
    """Return changes as `v1 l2 r3 u4`."""
    return " ".join(f"{_CHANGE_LETTERS[kind]}{node}" for kind, node in change.changes)


def conf_change_text(change: ConfChangeV2) -> str:
    """Return a whole change, with its transition and context."""
    text = f"transition:{TRANSITION_NAMES[change.transition]}"
    for kind, node in change.changes:
        text += f" changes:{{type:{CHANGE_TYPE_NAMES[kind]} node_id:{node}}}"
    return text + (f" context:{quote(change.context)}" if change.context else "")


def entry_text(entry: Entry) -> str:
    """Return an entry on one line."""
    if entry.type == EntryType.NORMAL:
        payload = quote(entry.data)
    else:
        try:
            payload = changes_text(decode_conf_change(entry).as_v2())
        except ValueError as error:
            payload = str(error)
    text = f"{entry.term}/{entry.index} {ENTRY_TYPE_NAMES[entry.type]}"
    return f"{text} {payload}" if payload else text


def _node_text(node: int) -> str:
    names = {NONE: "None", APPEND_THREAD: "AppendThread", APPLY_THREAD: "ApplyThread"}
    return names.get(node) or f"{node:x}"


def message_text(message: Message, indent: str = "") -> str:
    """Return a message; entries, snapshot and responses take lines of their own."""
    text = (
        f"{indent}{_node_text(message.sender)}->{_node_text(message.to)} "
        f"{MESSAGE_TYPE_NAMES[message.type]} Term:{message.term} "
        f"Log:{message.log_term}/{message.index}"
    )
    if message.reject:
        text += f" Rejected (Hint: {message.reject_hint})"
    if message.commit:
        text += f" Commit:{message.commit}"
    if message.vote:
        text += f" Vote:{message.vote}"
    if len(message.entries) == 1:
        text += f" Entries:[{entry_text(message.entries[0])}]"
    elif message.entries:
        lines = "".join(f"\n{indent}  {entry_text(entry)}" for entry in message.entries)
        text += f" Entries:[{lines}\n{indent}]"
    if message.snapshot is not None and message.snapshot.index:
        text += f"\n{indent}  Snapshot: {snapshot_text(message.snapshot)}"
    if message.responses:
        lines = "".join(f"\n{message_text(each, indent + '  ')}" for each in message.responses)
        text += f" Responses:[{lines}\n{indent}]"
    return text


def hard_state_text(state: HardState) -> str:
    """Return a hard state on one line."""
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def soft_state_text(state: SoftState) -> str:
    """Return a soft state on one line."""
    return f"Lead:{state.lead} State:{ROLE_NAMES[state.role]}"


def conf_state_text(state: ConfState) -> str:
    """Return the members on one line."""

    def listed(nodes: Iterable[int]) -> str:
        return "[" + " ".join(map(str, nodes)) + "]"

    return (
        f"Voters:{listed(state.voters)} VotersOutgoing:{listed(state.voters_outgoing)} "
        f"Learners:{listed(state.learners)} LearnersNext:{listed(state.learners_next)} "
        f"AutoLeave:{str(state.auto_leave).lower()}"
    )


def snapshot_text(snapshot: Snapshot) -> str:
    """Return a snapshot on one line, without its data."""
    state = conf_state_text(snapshot.conf_state)
    return f"Index:{snapshot.index} Term:{snapshot.term} ConfState:{state}"


def ready_text(ready: Ready) -> str:
    """Return the parts of a Ready as text."""
    lines = []
    if ready.soft_state is not None:
        lines.append(soft_state_text(ready.soft_state))
    if ready.hard_state is not None:
        lines.append(f"HardState {hard_state_text(ready.hard_state)}")
    if ready.read_states:
        states = (
            f"{{{state.index} [{' '.join(map(str, state.context))}]}}"
            for state in ready.read_states
        )
        lines.append(f"ReadStates [{' '.join(states)}]")
    if ready.entries:
        lines += ["Entries:", *map(entry_text, ready.entries)]
    if ready.snapshot is not None:
        lines.append(f"Snapshot {snapshot_text(ready.snapshot)}")
    if ready.committed_entries:
        lines += ["CommittedEntries:", *map(entry_text, ready.committed_entries)]
    if ready.messages:
        lines += ["Messages:", *map(message_text, ready.messages)]
    if not lines:
        return "<empty Ready>"
    return "\n".join([f"Ready MustSync={str(ready.must_sync).lower()}:", *lines, ""])
