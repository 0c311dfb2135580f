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
    from kvorum.member.replica import Replica


def expire(replica: Replica, now: float) -> None:
    """Fail the proposals and reads that have timed out."""
    oldest = now - replica.config.request_seconds_max
    for batch, waiting in replica.proposals.expire(oldest):
        # A batch that raft never took had no effect; other outcomes are unknown.
        status = (
            _unknown_outcome(replica, batch.started)
            if batch.is_taken
            else CONTEXT_DEADLINE_EXCEEDED
        )
        for pending in waiting:
            replica.counters.count_failed_proposal(pending[2], pending[5])
            replica.answer(pending[0], status)
    reads, confirming = replica.reads.expire(oldest)
    for read in reads:
        replica.counters.count_failed_read(read)
        replica.answer(read[0], TIMEOUT)
    for procedure in confirming:
        replica.answer(procedure, TIMEOUT)
    for read in replica.reads.expire_confirmed(oldest):
        replica.counters.count_failed_read(read)
        replica.answer(read[0], TIMEOUT_WAIT_APPLIED_INDEX)
    if replica.changes:
        replica.forget_changes()


def _unknown_outcome(replica: Replica, started: float) -> Status:
    elected = replica.leader_since
    window = 2 * replica.config.election_seconds
    if elected - window < started < elected:
        return TIMEOUT_DUE_TO_LEADER_FAIL
    if replica.is_leader:
        voters = replica.conf_state.voters
        connected = sum(replica.is_connected_since(voter, started) for voter in voters)
        if connected < len(voters) // 2 + 1:
            return TIMEOUT_DUE_TO_CONNECTION_LOST
    elif replica.leader and not replica.is_connected_since(replica.leader, started):
        return TIMEOUT_DUE_TO_CONNECTION_LOST
    return TIMEOUT
