"""Force a new one-member cluster on a member whose cluster has lost its quorum for good.

The log continues with entries that remove all other members, committed without a quorum. Entries
beyond the last known commit index stay: some may have been acknowledged, and no member is left to
confirm that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.member.errors import StartRefused
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.wire import decode_conf_change, encode_conf_change
from kvorum.state.membership.documents import decode_context, encode_promotion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvorum.raft.messages import ConfState


def entries_forcing_membership(
    member_id: int, members: ConfState, unapplied: Sequence[Entry], last: int, term: int
) -> list[Entry]:
    """Return the entries that make a member the only one, to be appended after entry `last`.

    `members` is the configuration of the applied state, `unapplied` holds the entries after it.
    Raises StartRefused for a removed member, because an id never returns after its removal.
    """
    voters, learners, gone = _after(members, unapplied)
    if member_id not in voters and member_id not in learners:
        raise StartRefused(
            f"cannot force a new cluster: member {member_id:x} is not in it, or was removed. "
            f"Use the directory of another member, or restore a snapshot"
        )
    changes = []
    if member_id in learners:
        promotion = encode_promotion(member_id)
        changes.append(ConfChange(ChangeType.ADD_NODE, member_id, promotion))
    # Remove departed members again: applying may refuse the earlier removal, but never both.
    others = sorted({*voters, *learners, *gone} - {member_id})
    changes += [ConfChange(ChangeType.REMOVE_NODE, other) for other in others]
    return [
        Entry(EntryType.CONF_CHANGE, term, index, encode_conf_change(change)[1])
        for index, change in enumerate(changes, last + 1)
    ]


def _after(members: ConfState, unapplied: Iterable[Entry]) -> tuple[set[int], ...]:
    """Return voters, learners and removed members after those entries that applying accepts."""
    voters = {*members.voters, *members.voters_outgoing}
    learners = {*members.learners, *members.learners_next}
    gone: set[int] = set()
    for entry in unapplied:
        if entry.type == EntryType.NORMAL:
            continue
        change = decode_conf_change(entry)
        if not isinstance(change, ConfChange):
            # No proposer changes several members at once.
            continue
        kind, node = change.type, change.node_id
        if kind == ChangeType.UPDATE_NODE or node in gone:
            continue
        if kind == ChangeType.REMOVE_NODE:
            if voters != {node}:
                voters.discard(node)
                learners.discard(node)
                gone.add(node)
        elif decode_context(change.context).is_promotion:
            if node in learners:
                learners.discard(node)
                voters.add(node)
        elif node not in voters and node not in learners:
            (voters if kind == ChangeType.ADD_NODE else learners).add(node)
    return voters, learners, gone
