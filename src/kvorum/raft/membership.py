"""Install a configuration: at the start, by a committed change, or with a snapshot.

A change takes effect when it is applied, not when it is appended. After a change, more entries may
be on a quorum, and there may be peers that the leader has not contacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.coverage import reach
from kvorum.raft.changer import Changer, Result, restore
from kvorum.raft.changes import ConfChange, ConfChangeV2
from kvorum.raft.describe import conf_state_text
from kvorum.raft.entries import EntryType
from kvorum.raft.errors import ConfChangeError
from kvorum.raft.messages import NONE, ConfState, Snapshot
from kvorum.raft.reads import answer_confirmed, drop_all
from kvorum.raft.replication import (
    broadcast_append,
    commit_for_peers,
    maybe_commit,
    maybe_send_append,
)
from kvorum.raft.states import Role
from kvorum.raft.tracker import Tracker

if TYPE_CHECKING:
    from kvorum.raft.core import Raft


def restore_config(raft: Raft, state: ConfState) -> None:
    """Replace the configuration with a saved one, and reset the progress of all peers."""
    tracker = Tracker(raft.config.inflight_messages_max, raft.config.inflight_bytes_max)
    try:
        restore(tracker, raft.log.last_index(), state)
    except ConfChangeError as error:
        raft.stop(f"unable to restore config {conf_state_text(state)}: {error}")
    raft.tracker = tracker
    restored = _switch(raft, (tracker.config, tracker.progress))
    if restored != state.normal():
        raft.stop(
            "ConfStates not equivalent after sorting:\n"
            f"{conf_state_text(state)}\n{conf_state_text(restored)}"
        )


def apply_conf_change(raft: Raft, change: ConfChange | ConfChangeV2) -> ConfState:
    """Apply a committed change; return the members after it.

    A change that was handed out before a pending snapshot arrived has no effect: the snapshot
    includes it, and its configuration is already in force.
    """
    if raft.log.unstable.snapshot is not None:
        return raft.tracker.config.conf_state()
    if raft.unannounced_changes:
        _announce_change(raft)
    change = change.as_v2()
    try:
        changer = Changer(raft.tracker, raft.log.last_index())
        if change.leaves_joint():
            result = changer.leave_joint()
            reach("joint configuration left")
        elif change.enters_joint():
            result = changer.enter_joint(change.auto_leave(), change.changes)
        else:
            result = changer.simple(change.changes)
    except ConfChangeError as error:
        # Every member fails at this index, because the change is committed.
        raft.stop(str(error))
    return _switch(raft, result)


def uncommitted_changes(raft: Raft) -> list[int]:
    """Return the indexes of membership changes above the commit index."""
    log = raft.log
    pages = log.scan(log.committed + 1, log.last_index() + 1, raft.config.committed_size_max)
    return [entry.index for page in pages for entry in page if entry.type != EntryType.NORMAL]


def _announce_change(raft: Raft) -> None:
    """Announce the commit of the change being applied, also to the peers that it removes."""
    del raft.unannounced_changes[0]
    committed = commit_for_peers(raft)
    for node, peer in raft.tracker.progress.items():
        if node != raft.id and peer.can_bump_commit(committed):
            maybe_send_append(raft, node, peer, send_if_empty=True)


def _switch(raft: Raft, result: Result) -> ConfState:
    raft.tracker.install(*result)
    config = raft.tracker.config
    raft.logger.info(f"{raft.id:x} switched to configuration {config}")
    state = config.conf_state()
    own = raft.tracker.progress.get(raft.id)
    raft.is_learner = own is not None and own.is_learner
    if raft.role == Role.LEADER and (own is None or own.is_learner):
        # The node still leads the group through this change, unless configured otherwise.
        drop_all(raft)
        if raft.config.step_down_on_removal:
            raft.become_follower(raft.term, NONE)
        return state
    if raft.role != Role.LEADER or not config.incoming:
        return state
    if maybe_commit(raft):
        broadcast_append(raft)
    else:
        # Probe new peers now, not at the next heartbeat.
        for node, peer in raft.tracker.progress.items():
            if node != raft.id:
                maybe_send_append(raft, node, peer, send_if_empty=False)
    # If no other node is left, no heartbeat response will come to release waiting reads.
    answer_confirmed(raft)
    if raft.lead_transferee not in config.incoming | config.outgoing:
        raft.lead_transferee = NONE
    return state


def restore_snapshot(raft: Raft, snapshot: Snapshot) -> bool:
    """Replace log and configuration with a snapshot; False if it is not needed or not allowed."""
    log, index, term = raft.log, snapshot.index, snapshot.term
    if index <= log.committed:
        return False
    if raft.role != Role.FOLLOWER:
        raft.logger.warning(
            f"{raft.id:x} attempted to restore snapshot as leader; should never happen"
        )
        raft.become_follower(raft.term + 1, NONE)
        return False
    state = snapshot.conf_state
    if raft.id not in (*state.voters, *state.learners, *state.voters_outgoing):
        raft.logger.warning(
            f"{raft.id:x} attempted to restore snapshot but it is not in the ConfState "
            f"{conf_state_text(state)}; should never happen"
        )
        return False
    if log.matches(term, index):
        last_term, last_index = log.last_entry_id()
        raft.logger.info(
            f"{raft.id:x} [commit: {log.committed}, lastindex: {last_index}, "
            f"lastterm: {last_term}] fast-forwarded commit to snapshot "
            f"[index: {index}, term: {term}]"
        )
        reach("snapshot not needed")
        log.commit_to(index)
        return False
    log.restore(snapshot)
    reach("log replaced by a snapshot")
    restore_config(raft, state)
    last_term, last_index = log.last_entry_id()
    raft.logger.info(
        f"{raft.id:x} [commit: {log.committed}, lastindex: {last_index}, lastterm: {last_term}] "
        f"restored snapshot [index: {index}, term: {term}]"
    )
    return True
