"""Promote a learner to a voter. The leader judges: only it knows the learner's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.errors import (
    LEARNER_NOT_READY,
    MEMBER_NOT_FOUND,
    NOT_LEADER,
    TIMEOUT_WAIT_APPLIED_INDEX,
    Status,
)
from kvorum.member.leases import applied_in_time
from kvorum.member.waits import ProposeChange
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.state.membership import documents, reconfiguration

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.parts import Part


def promote_here(member: Member, learner: int) -> Part[Status | None]:
    """Promote a learner as the leader; None on success, NOT_LEADER if another member has to."""
    status = yield from _promote(member, learner)
    if status != NOT_LEADER:
        member.counters.count_promotion(status)
    return status


def _promote(member: Member, learner: int) -> Part[Status | None]:
    if not member.is_leader:
        return NOT_LEADER
    if not (yield from applied_in_time(member)):
        return TIMEOUT_WAIT_APPLIED_INDEX
    progress = member.replica.node.raft.tracker.progress
    # A removed leader continues for a moment, without a progress entry of its own.
    if not member.is_leader or member.id not in progress:
        return NOT_LEADER
    if learner not in progress:
        return MEMBER_NOT_FOUND
    if not reconfiguration.is_learner_ready(progress[learner].match, progress[member.id].match):
        return LEARNER_NOT_READY
    if member.config.strict_reconfig:
        status = reconfiguration.may_promote(member.state.cluster.members)
        if status is not None:
            return status
    change = ConfChange(ChangeType.ADD_NODE, learner, documents.encode_promotion(learner))
    refusal: Status | None = yield ProposeChange(change)
    return refusal
