"""Apply membership changes from the log.

Every member judges a change by the same state. Raft gets a refused change without a node, so that
the change has no effect there either but still advances the index.

A member applies a change once the commit index that covers it is durable here, and a leader tells
its peers only then. As soon as any member knows of a removal the removed member may be gone for
good, and a member that forgot the removal would wait for that member's vote for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.member import log_lines
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.wire import decode_conf_change
from kvorum.state.membership.documents import encode_conf_state

if TYPE_CHECKING:
    from kvorum.api.errors import Status
    from kvorum.member.replica import Replica
    from kvorum.raft.entries import Entry


def apply_change(replica: Replica, entry: Entry) -> None:
    """Apply an entry that changes the membership, and answer its proposer."""
    change = decode_conf_change(entry)
    refusal: Status | None = None
    if isinstance(change, ConfChange):
        before = replica.state.cluster.member(change.node_id)
        refusal = replica.state.cluster.apply(change)
        applied = change if refusal is None else change._replace(node_id=0)
        conf_state = replica.node.apply_conf_change(applied)
    else:
        conf_state = replica.node.apply_conf_change(change)
    replica.conf_state = conf_state
    replica.state.backend.set_conf_state(encode_conf_state(conf_state))
    if isinstance(change, ConfChange):
        if refusal is not None:
            replica.logger.warning(f"refused change {change.type} of {change.node_id:x}: {refusal}")
        else:
            log_lines.log_applied_change(replica, change, before)
            if change.type == ChangeType.REMOVE_NODE and change.node_id == replica.id:
                replica.note_removed()
        replica.answer(replica.changes.pop(change.id, None), refusal)
