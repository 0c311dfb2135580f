"""Leases on the leader: timing from its first entry, expiry, checkpoints, renewal.

Only the leader's lessor times leases, from the moment the first entry of its term is applied: by
then it has every earlier grant, and it extends every lease by an election timeout. The extension
covers renewals by a predecessor that did not know of the new leader, because no leader renews if a
quorum confirmed its leadership longer ago than that. However the predecessor was deposed (by an
election, by a transfer that it started, while it was cut off, stopped or suspended), a quorum still
followed it at that confirmation. A leader also confirms its leadership before it revokes leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.codec import lease_keep_alive_request, lease_revoke_request
from kvorum.api.coverage import reach
from kvorum.api.errors import (
    AUTH_OLD_REVISION,
    LEASE_NOT_FOUND,
    NO_LEADER,
    NOT_PRIMARY_LESSOR,
    TIMEOUT,
    TIMEOUT_WAIT_APPLIED_INDEX,
    Code,
    Status,
)
from kvorum.api.pb.etcdserverpb import (
    LeaseCheckpoint,
    LeaseCheckpointRequest,
    LeaseKeepAliveResponse,
)
from kvorum.member.procedures import Exclusive
from kvorum.member.waits import (
    AppliedTo,
    AskLeader,
    LeadConfirmed,
    LeaderKnown,
    Propose,
    ReadIndex,
    Steps,
    Until,
)
from kvorum.state.apply import permissions, requests
from kvorum.state.apply.callers import MEMBER, current
from kvorum.state.lease.lessor import NotRenewed
from kvorum.state.mvcc.slices import Meter

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from kvorum.member.member import Member
    from kvorum.member.replica import Replica
    from kvorum.member.waits import Wait
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Result, Slices

EXPIRY_SECONDS = 0.5
APPLY_WAIT_SECONDS = 1.0
RETRY_SECONDS = 0.05

UNCONFIRMED = Status(Code.UNAVAILABLE, NOT_PRIMARY_LESSOR.text)
"""The answer of a leader that finds no quorum to confirm it: clients try another member."""

LEASES_PATH = "/leases"
INTERNAL_PATH = "/leases/internal"
"""The path at which members ask their leader for a lease's time to live."""


def promote(replica: Replica) -> Slices | None:
    """Start timing leases; return slices if there are many leases."""
    lessor = replica.state.lessor
    extension = replica.config.election_seconds
    if len(lessor) < replica.limits.leases_promoted_at_once_max:
        lessor.promote(replica.now, extension)
        return None
    return _promote_in_slices(replica, extension)


def _promote_in_slices(replica: Replica, extension: float) -> Slices:
    yield from replica.state.lessor.promote_in_slices(replica.now, extension)
    return b""


def expire(member: Member, now: float) -> None:
    """Propose to revoke expired leases; a duty."""
    lessor = member.state.lessor
    if (
        not lessor.is_primary
        or lessor.next_deadline > now
        or member.procedures.is_running(Exclusive.REVOKE_LEASES)
    ):
        return
    member.procedures.begin_exclusive(Exclusive.REVOKE_LEASES)
    member.procedures.start(None, MEMBER, _revoke_expired(member))


def _revoke_expired(member: Member) -> Steps:
    try:
        term = member.term
        # Only a confirmed leader may revoke: a deposed one may not know of renewals.
        if (yield ReadIndex()) is not None or not member.is_leader or member.replica.is_behind:
            return None
        expired_max = member.config.limits.lease_revokes_per_check_max
        asked = [
            (requests.LEASE_REVOKE, lease_revoke_request(lease_id))
            for lease_id in member.state.lessor.take_expired(member.now, expired_max)
        ]
        expired = len(asked)
        due = member.state.lessor.take_due_checkpoints(member.now)
        if due:
            request = LeaseCheckpointRequest(
                checkpoints=[LeaseCheckpoint(ID=each, remaining_TTL=left) for each, left in due]
            )
            asked.append((requests.LEASE_CHECKPOINT, request.SerializeToString()))
        if member.replica.propose_as_leader(term, asked):
            member.counters.leases_expired += expired
            member.state.lessor.note_proposed_checkpoints(due)
        return None
    finally:
        member.procedures.finish_exclusive(Exclusive.REVOKE_LEASES)


def is_confirmed(member: Member) -> bool:
    """Return whether a quorum has recently confirmed that this member leads.

    Requests the next confirmation ahead of time, so that steady renewals never wait.
    """
    limit = member.config.election_seconds
    age = member.replica.reads.confirmation_age()
    if age > limit / 2:
        member.replica.reads.confirm_soon()
    return age < limit


def try_renew(member: Member, lease_id: int) -> int | None:
    """Renew a lease if no wait is necessary and return its TTL; otherwise return None."""
    if not member.is_leader or _must_catch_up(member) or not is_confirmed(member):
        return None
    renewed = _renew(member, lease_id)
    return renewed if isinstance(renewed, int) else None


def _renew(member: Member, lease_id: int) -> int | NotRenewed:
    # The lease runs from the clock's time: on a slow disk the turn may have started long ago.
    return member.state.lessor.renew(lease_id, member.clock())


def renew(
    member: Member, caller: Caller, lease_id: int
) -> Generator[Wait | None, Any, int | Status]:
    """Renew a caller's lease here or through the leader; return its TTL, 0 if it does not exist.

    Procedures call it as `ttl = yield from renew(member, caller, lease_id)`.
    """
    deadline = member.now + member.config.request_seconds_max
    while member.now < deadline:
        if member.is_leader:
            renewed = yield from renew_here(member, lease_id, caller)
            if renewed is not None:
                return renewed
        else:
            leader = member.leader or (yield LeaderKnown(deadline))
            if not leader:
                return NO_LEADER
            refusal = yield from renewal_refusal(member, caller, lease_id)
            if refusal is not None:
                return refusal
            if leader != member.id:
                question = lease_keep_alive_request(lease_id)
                answer: Result | None = yield AskLeader(LEASES_PATH, question)
                if answer == LEASE_NOT_FOUND:
                    return 0
                if isinstance(answer, bytes):
                    response = LeaseKeepAliveResponse.FromString(answer)
                    if lease_id == response.ID:
                        return response.TTL
        yield Until(member.now + RETRY_SECONDS)
    return TIMEOUT


def renewal_refusal(
    member: Member, caller: Caller, lease_id: int
) -> Generator[None, None, Status | None]:
    """Refuse a caller without permission to write every key of the lease now."""
    refusal = permissions.identity_refusal(member.state, caller)
    if refusal is None and permissions.needs_permission(member.state, caller):
        now = current(member.state, caller)
        refusal = yield from permissions.lease_refusal(
            member.state, now, lease_id, Meter(member.state.limits), is_write=True
        )
        if refusal is None and permissions.is_outdated(member.state, now):
            refusal = AUTH_OLD_REVISION
    return refusal


def renew_here(
    member: Member, lease_id: int, caller: Caller | None = None
) -> Generator[Wait | None, Any, int | Status | None]:
    """Renew a lease on the leader; return None if this member does not lead.

    Without a caller the request comes from another member, which has checked its own caller.
    """
    deadline = member.now + member.config.request_seconds_max
    is_current = False
    while member.is_leader:
        # Every pass checks this again, because any wait may have been long.
        if not is_confirmed(member):
            if member.now >= deadline or (yield LeadConfirmed()) is not None:
                return UNCONFIRMED
            continue
        # The grant may be committed and not applied yet, or a new leader may have made it: only a
        # leader that is still confirmed may answer that a lease does not exist.
        if not is_current and (lease_id not in member.state.lessor or _must_catch_up(member)):
            if lease_id not in member.state.lessor and (yield LeadConfirmed()) is not None:
                return UNCONFIRMED
            if not (yield from applied_in_time(member)):
                return TIMEOUT_WAIT_APPLIED_INDEX
            is_current = True
            continue
        if caller is not None:
            refusal = yield from renewal_refusal(member, caller, lease_id)
            if refusal is not None:
                return refusal
        renewed = _renew(member, lease_id)
        if renewed is NotRenewed.CHECKPOINTED:
            reach("lease checkpoint cleared")
            cleared = LeaseCheckpointRequest(checkpoints=[LeaseCheckpoint(ID=lease_id)])
            answer = yield Propose(requests.LEASE_CHECKPOINT, cleared.SerializeToString())
            if isinstance(answer, Status):
                return answer
        elif renewed is NotRenewed.EXPIRED:
            reach("lease renewed too late")
            # An expired lease stays expired: wait for its revocation or another leader.
            while lease_id in member.state.lessor and member.is_leader:
                yield Until(member.now + RETRY_SECONDS)
        elif renewed is NotRenewed.NOT_FOUND:
            return 0
        else:
            return renewed if isinstance(renewed, int) else None
    return None


def _must_catch_up(member: Member) -> bool:
    return member.state.applied < member.committed and not member.config.fast_keep_alive


def time_to_live_here(
    member: Member, lease_id: int
) -> Generator[Wait | None, Any, tuple[int, int] | Status | None]:
    """Return a lease's remaining and granted seconds; None if this member does not lead."""
    is_known = lease_id in member.state.lessor and is_confirmed(member)
    if not is_known and (yield LeadConfirmed()) is not None:
        return None
    if not (yield from applied_in_time(member)):
        return TIMEOUT_WAIT_APPLIED_INDEX
    if not member.state.lessor.is_primary:
        return None
    return member.state.lessor.time_to_live(lease_id, member.now) or LEASE_NOT_FOUND


def applied_in_time(member: Member) -> Generator[Wait | None, Any, bool]:
    """Wait at most a second for the current commit index to be applied; return whether it is."""
    wanted = member.committed
    if member.state.applied < wanted:
        yield AppliedTo(wanted, member.now + APPLY_WAIT_SECONDS)
    return member.state.applied >= wanted
