"""The leader role: accept proposals, track the logs of peers, transfer leadership.

A leader ignores messages from peers that are not in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kvorum.api.coverage import reach
from kvorum.raft import reads
from kvorum.raft.describe import conf_change_text
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import NONE, Message, MessageType
from kvorum.raft.progress import Progress, ProgressState
from kvorum.raft.replication import (
    Payload,
    append,
    broadcast_append,
    broadcast_heartbeat,
    commit_for_peers,
    maybe_commit,
    maybe_send_append,
)
from kvorum.raft.wire import decode_conf_change

if TYPE_CHECKING:
    from kvorum.raft.core import Handler, Handlers, Raft

# Proposals.


def check_may_propose(raft: Raft) -> None:
    """Raise ProposalDroppedError if the leader accepts no proposals now."""
    if raft.id not in raft.tracker.progress:
        raise ProposalDroppedError  # removed, though still leading
    if raft.lead_transferee:
        raft.logger.debug(
            f"{raft.id:x} [term {raft.term}] transfer leadership to {raft.lead_transferee:x} "
            "is in progress; dropping proposal"
        )
        raise ProposalDroppedError


def propose(raft: Raft, payloads: Sequence[Payload]) -> None:
    """Append entries, and send them to the peers."""
    if not append(raft, payloads):
        raise ProposalDroppedError
    broadcast_append(raft)


def _on_propose(raft: Raft, message: Message) -> None:
    if not message.entries:
        raft.stop(f"{raft.id:x} stepped empty MsgProp")
    check_may_propose(raft)
    payloads = [(entry.type, entry.data) for entry in message.entries]
    unannounced = len(raft.unannounced_changes)
    try:
        for position, entry in enumerate(message.entries):
            if entry.type != EntryType.NORMAL:
                payloads[position] = _check_conf_change(raft, entry, position)
        propose(raft, payloads)
    except ProposalDroppedError:
        # Nothing was appended. Another entry will take the index, and its commit may be announced.
        del raft.unannounced_changes[unannounced:]
        raise


def _check_conf_change(raft: Raft, entry: Entry, position: int) -> Payload:
    """Return the change to append, or an empty entry instead if the change cannot be made now."""
    try:
        change = decode_conf_change(entry).as_v2()
    except ValueError as error:
        raft.logger.error(f"{raft.id:x} dropping a conf change that cannot be read: {error}")
        raise ProposalDroppedError from error
    config = raft.tracker.config
    reason = ""
    if raft.pending_conf_index > raft.log.applied:
        reason = (
            f"possible unapplied conf change at index {raft.pending_conf_index} "
            f"(applied to {raft.log.applied})"
        )
    elif config.is_joint() and change.changes:
        reason = "must transition out of joint config first"
    elif not config.is_joint() and not change.changes:
        reason = "not in joint state; refusing empty conf change"
    if reason and not raft.config.disable_conf_change_validation:
        raft.logger.info(
            f"{raft.id:x} ignoring conf change {conf_change_text(change)} "
            f"at config {config}: {reason}"
        )
        return EntryType.NORMAL, b""
    index = raft.log.last_index() + position + 1
    raft.pending_conf_index = index
    if raft.config.tell_changes_when_applied:
        raft.unannounced_changes.append(index)
    return entry.type, entry.data


# Responses of peers.


def _on_append_response(raft: Raft, message: Message, peer: Progress) -> None:
    peer.recent_active = True
    if message.reject:
        _on_append_rejected(raft, message, peer)
        return
    index, node = message.index, message.sender
    if index > raft.log.last_index():
        if not peer.is_ahead:
            peer.is_ahead = True
            raft.logger.error(
                f"{raft.id:x} ignored MsgAppResp from {node:x} for index {index}, behind the last "
                f"index {raft.log.last_index()}: {node:x} holds entries that this leader lacks, "
                "and cannot follow it. Was a member's data directory replaced by an older copy?"
            )
        return
    probing = peer.state == ProgressState.PROBE
    if not peer.maybe_update(index) and not (probing and peer.match == index):
        return
    if probing:
        peer.become_replicate()
    elif peer.state == ProgressState.REPLICATE:
        peer.inflights.free_up_to(index)
    elif peer.match + 1 >= raft.log.first_index():
        # The peer's log connects to this log, even if another snapshot brought it there.
        raft.logger.debug(
            f"{raft.id:x} recovered from needing snapshot, resumed sending replication messages "
            f"to {node:x} [{peer}]"
        )
        peer.become_probe()
        peer.become_replicate()
    if maybe_commit(raft):
        reads.release_pending(raft)
        broadcast_append(raft)
    elif node != raft.id and peer.can_bump_commit(commit_for_peers(raft)):
        maybe_send_append(raft, node, peer, send_if_empty=True)
    if node != raft.id:
        while maybe_send_append(raft, node, peer, send_if_empty=False):
            pass
    if node == raft.lead_transferee and peer.match == raft.log.last_index():
        raft.logger.info(f"{raft.id:x} sent MsgTimeoutNow to {node:x} after received MsgAppResp")
        raft.send(Message(MessageType.TIMEOUT_NOW, to=node))


def _on_append_rejected(raft: Raft, message: Message, peer: Progress) -> None:
    reach("append rejected")
    node, hint = message.sender, message.reject_hint
    if node == raft.id:
        return  # no leader rejects itself
    raft.logger.debug(
        f"{raft.id:x} received MsgAppResp(rejected, hint: (index {hint}, "
        f"term {message.log_term})) from {node:x} for index {message.index}"
    )
    if message.log_term:
        # The peer has this term at the hint, so it shares no entry of a newer term below the hint.
        _, hint = raft.log.find_conflict_by_term(hint, message.log_term)
    if peer.maybe_decrease(message.index, hint):
        raft.logger.debug(f"{raft.id:x} decreased progress of {node:x} to [{peer}]")
        if peer.state == ProgressState.REPLICATE:
            peer.become_probe()
        maybe_send_append(raft, node, peer, send_if_empty=True)


def _on_heartbeat_response(raft: Raft, message: Message, peer: Progress) -> None:
    if message.sender == raft.id:
        return  # no leader sends heartbeats to itself
    peer.recent_active = True
    peer.flow_paused = False
    if peer.match < raft.log.last_index() or peer.state == ProgressState.PROBE:
        maybe_send_append(raft, message.sender, peer, send_if_empty=True)
    reads.on_heartbeat_response(raft, message)


def _on_snapshot_status(raft: Raft, message: Message, peer: Progress) -> None:
    if peer.state != ProgressState.SNAPSHOT:
        return
    if message.reject:
        peer.pending_snapshot = 0  # otherwise the probe would start after it
    peer.become_probe()
    outcome = "failed" if message.reject else "succeeded"
    raft.logger.debug(
        f"{raft.id:x} snapshot {outcome}, resumed sending replication messages to "
        f"{message.sender:x} [{peer}]"
    )
    # Wait for the peer's MsgAppResp; a heartbeat response resumes, too.
    peer.flow_paused = True


def _on_unreachable(raft: Raft, message: Message, peer: Progress) -> None:
    # Appends in flight were probably lost.
    if peer.state == ProgressState.REPLICATE:
        peer.become_probe()
    raft.logger.debug(
        f"{raft.id:x} failed to send message to {message.sender:x} because it is unreachable "
        f"[{peer}]"
    )


def _on_transfer_leader(raft: Raft, message: Message, peer: Progress) -> None:
    target = message.sender
    if peer.is_learner:
        raft.logger.debug(f"{raft.id:x} is learner. Ignored transferring leadership")
        return
    if raft.lead_transferee:
        if raft.lead_transferee == target:
            raft.logger.info(
                f"{raft.id:x} [term {raft.term}] transfer leadership to {target:x} is in "
                f"progress, ignores request to same node {target:x}"
            )
            return
        raft.logger.info(
            f"{raft.id:x} [term {raft.term}] abort previous transferring leadership to "
            f"{raft.lead_transferee:x}"
        )
        raft.lead_transferee = NONE
    if target == raft.id:
        raft.logger.debug(f"{raft.id:x} is already leader. Ignored transferring leadership to self")
        return
    raft.logger.info(f"{raft.id:x} [term {raft.term}] starts to transfer leadership to {target:x}")
    # The transfer must complete within an election timeout from now.
    raft.election_elapsed = 0
    raft.lead_transferee = target
    if peer.match == raft.log.last_index():
        raft.send(Message(MessageType.TIMEOUT_NOW, to=target))
        raft.logger.info(
            f"{raft.id:x} sends MsgTimeoutNow to {target:x} immediately as {target:x} already "
            "has up-to-date log"
        )
    else:
        maybe_send_append(raft, target, peer, send_if_empty=True)


# The leader's clock.


def _on_beat(raft: Raft, _message: Message) -> None:
    broadcast_heartbeat(raft)


def _on_check_quorum(raft: Raft, _message: Message) -> None:
    if not raft.tracker.quorum_active():
        raft.logger.warning(f"{raft.id:x} stepped down to follower since quorum is not active")
        reach("leader stepped down without a quorum")
        raft.become_follower(raft.term, NONE)
    for node, peer in raft.tracker.progress.items():
        if node != raft.id:
            peer.recent_active = False


def _from_peer(handler: Callable[[Raft, Message, Progress], None]) -> Handler:
    """Wrap a handler so that it gets the sender's progress; ignore senders without progress."""

    def with_progress(raft: Raft, message: Message) -> None:
        peer = raft.tracker.progress.get(message.sender)
        if peer is None:
            raft.logger.debug(f"{raft.id:x} no progress available for {message.sender:x}")
            return
        handler(raft, message, peer)

    return with_progress


HANDLERS: Final[Handlers] = {
    MessageType.BEAT: _on_beat,
    MessageType.CHECK_QUORUM: _on_check_quorum,
    MessageType.PROP: _on_propose,
    MessageType.READ_INDEX: reads.on_read_index,
    MessageType.APP_RESP: _from_peer(_on_append_response),
    MessageType.HEARTBEAT_RESP: _from_peer(_on_heartbeat_response),
    MessageType.SNAP_STATUS: _from_peer(_on_snapshot_status),
    MessageType.UNREACHABLE: _from_peer(_on_unreachable),
    MessageType.TRANSFER_LEADER: _from_peer(_on_transfer_leader),
}
