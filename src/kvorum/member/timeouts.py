"""Time out requests that took too long, with etcd's error for each cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.errors import (
    CONTEXT_DEADLINE_EXCEEDED,
    TIMEOUT,
    TIMEOUT_DUE_TO_CONNECTION_LOST,
    TIMEOUT_DUE_TO_LEADER_FAIL,
    TIMEOUT_WAIT_APPLIED_INDEX,
    Status,
)

if TYPE_CHECKING:
    from kvorum.member.member import Member


def expire(member: Member, now: float) -> None:
    """Fail the proposals and reads that have timed out; a duty."""
    oldest = now - member.config.request_seconds_max
    for batch, waiting in member.proposals.expire(oldest):
        # A batch that raft never took had no effect; other outcomes are unknown.
        status = (
            _unknown_outcome(member, batch.started) if batch.is_taken else CONTEXT_DEADLINE_EXCEEDED
        )
        for pending in waiting:
            member.counters.failed(pending[2], pending[5])
            member.answer(pending[0], status)
    reads, confirming = member.reads.expire(oldest)
    for read in reads:
        member.counters.read_failed(read)
        member.answer(read[0], TIMEOUT)
    for procedure in confirming:
        member.answer(procedure, TIMEOUT)
    for read in member.reads.expire_confirmed(oldest):
        member.counters.read_failed(read)
        member.answer(read[0], TIMEOUT_WAIT_APPLIED_INDEX)
    if member.changes:
        member.forget_changes()


def _unknown_outcome(member: Member, started: float) -> Status:
    elected = member.leader_since
    window = 2 * member.config.election_seconds
    if elected - window < started < elected:
        return TIMEOUT_DUE_TO_LEADER_FAIL
    if member.is_leader:
        voters = member.conf_state.voters
        connected = sum(member.is_connected_since(voter, started) for voter in voters)
        if connected < len(voters) // 2 + 1:
            return TIMEOUT_DUE_TO_CONNECTION_LOST
    elif member.leader and not member.is_connected_since(member.leader, started):
        return TIMEOUT_DUE_TO_CONNECTION_LOST
    return TIMEOUT
