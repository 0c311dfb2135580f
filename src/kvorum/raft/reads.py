"""Linearizable reads on the leader: find the index to apply before serving a read.

A leader knows the commit index only once it has committed an entry of its own term, so reads wait
for that entry. The leader must then confirm that it still leads: by asking a quorum, or by its
lease. A leader that was removed, or made a learner, goes on leading so that its peers learn of the
change. It may never learn of the next leader, so it answers no read from then on.

A forwarded request carries the follower's term. If that term is the leader's, the follower had
voted for no later leader when it sent the request. If leader and follower together are a quorum, no
later leader was elected before the read began, so the leader answers without a round of heartbeats.
This holds for that one read only, since the request may have travelled for a long time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.coverage import reach
from kvorum.raft.config import ReadOnlyOption
from kvorum.raft.messages import NONE, Message, MessageType
from kvorum.raft.read_only import ReadOnly
from kvorum.raft.replication import broadcast_heartbeat
from kvorum.raft.states import ReadState

if TYPE_CHECKING:
    from kvorum.raft.core import Raft


def on_read_index(raft: Raft, message: Message) -> None:
    """Answer a read, or queue it. A leader that is no voter answers none."""
    if not raft.tracker.is_voter(raft.id):
        raft.logger.debug(f"{raft.id:x} does not vote any more; dropping index reading msg")
    elif not _committed_in_term(raft):
        reach("read waits for the first commit of a term")
        raft.pending_read_index_messages.append(message)
    elif raft.tracker.decides_alone(raft.id):
        _answer(raft, message, raft.log.committed)
    else:
        _read(raft, message)


def release_pending(raft: Raft) -> None:
    """Process the reads that waited for the first commit of the term."""
    if raft.pending_read_index_messages and _committed_in_term(raft):
        waiting, raft.pending_read_index_messages = raft.pending_read_index_messages, []
        for message in waiting:
            on_read_index(raft, message)


def drop_all(raft: Raft) -> None:
    """Drop all waiting reads, because this leader is no longer a voter."""
    raft.pending_read_index_messages = []
    raft.read_only = ReadOnly()


def on_heartbeat_response(raft: Raft, message: Message) -> None:
    """Count a peer's acknowledgement, and answer the reads that a quorum has confirmed."""
    if raft.config.read_only_option is ReadOnlyOption.SAFE and len(message.context) == 8:
        read_only = raft.read_only
        read_only.acknowledge(message.sender, int.from_bytes(message.context, "little"))
        answer_confirmed(raft)


def answer_confirmed(raft: Raft) -> None:
    """Answer the reads that a quorum of the current configuration has confirmed."""
    confirmed = raft.tracker.quorum_index(raft.read_only.acknowledged)
    for request, commit in raft.read_only.confirm_up_to(confirmed):
        _answer(raft, request, commit)


def _committed_in_term(raft: Raft) -> bool:
    return raft.log.term_or_zero(raft.log.committed) == raft.term


def _read(raft: Raft, message: Message) -> None:
    is_leased = raft.config.read_only_option is ReadOnlyOption.LEASE_BASED
    if is_leased or _confirms_itself(raft, message):
        _answer(raft, message, raft.log.committed)
        return
    raft.read_only.add(message, raft.log.committed, raft.id)
    broadcast_heartbeat(raft)


def _confirms_itself(raft: Raft, message: Message) -> bool:
    """Return whether the sender and this node alone are a quorum of this term."""
    return (
        message.log_term == raft.term
        and raft.tracker.quorum_index({raft.id: 1, message.sender: 1}) > 0
    )


def _answer(raft: Raft, request: Message, commit: int) -> None:
    """Answer the requesting node; drop a local request without entries, which has no context."""
    if request.sender in (NONE, raft.id):
        if request.entries:
            raft.read_states.append(ReadState(commit, request.entries[0].data))
        return
    raft.send(
        Message(
            MessageType.READ_INDEX_RESP,
            to=request.sender,
            index=commit,
            entries=request.entries,
        )
    )
