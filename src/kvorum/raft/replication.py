"""How a leader appends entries, sends them to its peers, and advances the commit index.

An entry counts for the quorum only where it is durable. This holds for the leader, too: its own
acknowledgement travels like a follower's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvorum.raft.entries import Entry, payload_size
from kvorum.raft.errors import SnapshotTemporarilyUnavailableError, StorageError
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.progress import Progress, ProgressState

if TYPE_CHECKING:
    from kvorum.raft.core import Raft

Payload = tuple[int, bytes]  # the type and the data of a future entry


def commit_for_peers(raft: Raft) -> int:
    """Return the commit index that the leader may announce to its peers."""
    committed = raft.log.committed
    return (
        min(committed, raft.unannounced_changes[0] - 1) if raft.unannounced_changes else committed
    )


def maybe_send_append(raft: Raft, to: int, peer: Progress, send_if_empty: bool) -> bool:
    """Send the peer the append or snapshot that it needs next; return whether one was sent."""
    log = raft.log
    if peer.is_paused() or not (send_if_empty or peer.next <= log.last_index()):
        return False
    previous = peer.next - 1
    try:
        previous_term = log.term(previous)
    except StorageError:
        return _maybe_send_snapshot(raft, to, peer)
    entries: list[Entry] = []
    compacted = False
    # With a full window an empty append still goes out. A peer that lost everything in flight
    # rejects it, and the rejection shows the leader where to resume.
    if peer.state != ProgressState.REPLICATE or not peer.inflights.full():
        try:
            entries = log.entries_from(peer.next, raft.config.message_size_max)
        except StorageError:
            compacted = True
    if not entries and not send_if_empty:
        return False
    if compacted:
        return _maybe_send_snapshot(raft, to, peer)
    committed = commit_for_peers(raft)
    raft.send(
        Message(
            MessageType.APP,
            to=to,
            index=previous,
            log_term=previous_term,
            entries=entries,
            commit=committed,
        )
    )
    peer.sent_entries(len(entries), payload_size(entries) if entries else 0)
    peer.sent_commit = committed
    return True


def _maybe_send_snapshot(raft: Raft, to: int, peer: Progress) -> bool:
    if not peer.recent_active:
        raft.logger.debug(f"ignore sending snapshot to {to:x} since it is not recently active")
        return False
    try:
        snapshot = raft.log.snapshot()
    except SnapshotTemporarilyUnavailableError:
        raft.logger.debug(
            f"{raft.id:x} failed to send snapshot to {to:x} because snapshot is temporarily "
            "unavailable"
        )
        return False
    if not snapshot.index:
        raft.stop("need non-empty snapshot")
    raft.logger.debug(
        f"{raft.id:x} [firstindex: {raft.log.first_index()}, commit: {raft.log.committed}] "
        f"sent snapshot[index: {snapshot.index}, term: {snapshot.term}] to {to:x} [{peer}]"
    )
    peer.become_snapshot(snapshot.index)
    raft.logger.debug(f"{raft.id:x} paused sending replication messages to {to:x} [{peer}]")
    raft.send(Message(MessageType.SNAP, to=to, snapshot=snapshot))
    return True


def broadcast_append(raft: Raft) -> None:
    """Send every peer the entries that it needs next, or at least the commit index."""
    for node, peer in raft.tracker.progress.items():
        if node != raft.id:
            maybe_send_append(raft, node, peer, send_if_empty=True)


def broadcast_heartbeat(raft: Raft) -> None:
    """Send a heartbeat to every peer, with the number of the newest waiting read."""
    context = raft.read_only.context()
    committed = commit_for_peers(raft)
    for node, peer in raft.tracker.progress.items():
        if node != raft.id:
            # Never announce more than the match index: the peer may have lost the entries above it.
            commit = min(peer.match, committed)
            raft.send(Message(MessageType.HEARTBEAT, to=node, commit=commit, context=context))
            peer.sent_commit = commit


def append(raft: Raft, payloads: Sequence[Payload]) -> bool:
    """Append entries of this term; return False if too much is uncommitted already."""
    index = raft.log.last_index() + 1
    term = raft.term
    entries = [
        Entry(kind, term, position, data) for position, (kind, data) in enumerate(payloads, index)
    ]
    size = payload_size(entries)
    limit = raft.config.uncommitted_size_max
    # With nothing uncommitted accept any size, or an entry above the limit could never be proposed.
    if limit and raft.uncommitted_size and size and raft.uncommitted_size + size > limit:
        raft.logger.warning(
            f"{raft.id:x} appending new entries to log would exceed uncommitted entry size "
            "limit; dropping proposal"
        )
        return False
    raft.uncommitted_size += size
    last = raft.log.append(entries)
    raft.send(Message(MessageType.APP_RESP, to=raft.id, index=last))
    return True


def maybe_commit(raft: Raft) -> bool:
    """Commit the entries that a quorum has; return whether the commit index advanced."""
    return raft.log.maybe_commit(raft.term, raft.tracker.committed())
