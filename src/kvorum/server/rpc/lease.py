"""The unary calls of Lease: grant and revoke are proposals, the leader answers time-to-live.

Only the leader knows how much time a lease has left. A member that does not lead asks the leader,
and retries until the request timeout.
"""

from collections.abc import Generator

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseLeasesRequest,
    LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
)
from kvorum.api.pb.leasepb import LeaseInternalRequest, LeaseInternalResponse
from kvorum.api.responses import lease_keys_field, leases_field
from kvorum.api.wire import parse_message
from kvorum.member.leases import (
    INTERNAL_PATH,
    is_confirmed,
    time_to_live_here,
)
from kvorum.member.member import Member
from kvorum.member.parts import Part
from kvorum.member.waits import AskLeader, LeaderKnown, Steps, Until
from kvorum.server.rpc.interface import canonical
from kvorum.state.apply.callers import Caller, current
from kvorum.state.apply.permissions import (
    identity_refusal,
    is_outdated,
    lease_refusal,
    needs_permission,
)
from kvorum.state.apply.requests import LEASE_GRANT, LEASE_REVOKE
from kvorum.state.apply.results import Result, Slices
from kvorum.state.apply.state import State
from kvorum.state.mvcc.slices import Meter, run_to_end
from kvorum.storage.backend.quota import LEASE_GRANT_BYTES

RETRY_SECONDS = 0.05


class LeaseService:
    """Serves the unary calls of Lease."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def grant(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Grant a lease, with the client's id or a generated one."""
        request = parse_message(LeaseGrantRequest, payload)
        member = self._member
        status = member.replica.check_quota(LEASE_GRANT_BYTES) or identity_refusal(
            member.state, caller
        )
        if status is not None:
            return status
        if not request.ID:
            request.ID = member.replica.ids.next_lease_id()
        member.replica.propose(call, caller, LEASE_GRANT, canonical(request), request)
        return None

    def revoke(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Revoke a lease and delete its keys."""
        request = parse_message(LeaseRevokeRequest, payload)
        if (status := identity_refusal(self._member.state, caller)) is not None:
            return status
        self._member.replica.propose(call, caller, LEASE_REVOKE, canonical(request), request)
        return None

    def time_to_live(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Answer how much time a lease has left."""
        request = parse_message(LeaseTimeToLiveRequest, payload)
        member = self._member
        if member.state.auth.is_enabled:
            member.start(call, caller, _permitted_time_to_live(member, caller, request))
            return None
        is_current = member.is_leader and member.state.applied >= member.committed
        if is_current and member.state.lessor.is_primary and is_confirmed(member):
            answer = _time_to_live(member, request)
            if len(answer[1]) <= member.config.limits.slice_keys:
                return run_to_end(_append_keys(member.state, caller, answer))
            member.replica.read(call, caller, _append_keys, answer, linearizable=False)
            return None
        member.start(call, caller, _wait_for_time_to_live(member, caller, request))
        return None

    def leases(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """List the leases in this member's state."""
        parse_message(LeaseLeasesRequest, payload)
        self._member.replica.read(call, caller, _listed, None, linearizable=False)
        return None


def _listed(state: State, caller: Caller, _request: object) -> Slices:
    """List all leases, in slices because there may be very many.

    A single lease with a key that the caller may not read refuses the whole call.
    """
    header = state.header.field(state.store.revision)
    known = yield from state.lessor.leases_in_slices()
    if needs_permission(state, caller):
        caller = current(state, caller)
        refusal = identity_refusal(state, caller)
        if refusal is None:
            refusal = yield from _leases_refusal(state, caller, known)
        if refusal is None and is_outdated(state, caller):
            refusal = errors.AUTH_OLD_REVISION
        if refusal is not None:
            return refusal
    parts, count = [header], state.limits.leases_per_slice
    for start in range(0, len(known), count):
        parts.append(leases_field(known[start : start + count]))
        yield
    return b"".join(parts)


def _leases_refusal(
    state: State, caller: Caller, leases: list[int]
) -> Generator[None, None, Status | None]:
    meter = Meter(state.limits)
    for number, lease in enumerate(leases, 1):
        refusal = yield from lease_refusal(state, caller, lease, meter, is_write=False)
        if refusal is not None:
            return refusal
        if not number % state.limits.leases_per_slice:
            yield
    return None


LeaseAnswer = tuple[bytes, list[bytes]]
"""The encoded answer about a lease, and the lease's keys if the request asks for them."""


def _time_to_live(member: Member, request: LeaseTimeToLiveRequest) -> LeaseAnswer:
    lessor = member.state.lessor
    answer = LeaseTimeToLiveResponse(ID=request.ID, TTL=-1)
    found = lessor.time_to_live(request.ID, member.now)
    keys: list[bytes] = []
    if found is not None:
        answer.TTL, answer.grantedTTL = found
        if request.keys:
            keys = lessor.keys_of(request.ID)
    return member.state.header.field(member.state.store.revision) + answer.SerializeToString(), keys


def _append_keys(state: State, _caller: Caller, answer: LeaseAnswer) -> Slices:
    """Append the keys to the answer about a lease, in slices because there may be very many."""
    head, keys = answer
    parts, count = [head], state.limits.slice_keys
    for start in range(0, len(keys), count):
        if start:
            yield
        parts.append(lease_keys_field(keys[start : start + count]))
    return b"".join(parts)


def _permitted_time_to_live(
    member: Member, caller: Caller, request: LeaseTimeToLiveRequest
) -> Steps:
    """Check the caller's rights, then answer; only the lease's keys need permissions."""
    refusal = identity_refusal(member.state, caller)
    if refusal is not None or not request.keys:
        return refusal or (yield from _wait_for_time_to_live(member, caller, request))
    now = current(member.state, caller)
    meter = Meter(member.state.limits)
    refusal = yield from lease_refusal(member.state, now, request.ID, meter, is_write=False)
    answer = refusal or (yield from _wait_for_time_to_live(member, caller, request))
    is_old = (
        isinstance(answer, bytes)
        and member.state.auth.is_enabled
        and is_outdated(member.state, now)
    )
    return errors.AUTH_OLD_REVISION if is_old else answer


def _wait_for_time_to_live(
    member: Member, caller: Caller, request: LeaseTimeToLiveRequest
) -> Steps:
    """Answer here once this member leads and has applied everything, or ask the leader."""
    limit = member.now + member.config.request_seconds_max
    while member.now < limit:
        if member.is_leader:
            found = yield from time_to_live_here(member, request.ID)
            if found == errors.TIMEOUT_WAIT_APPLIED_INDEX:
                return errors.TIMEOUT_WAIT_APPLIED_INDEX
            if found is not None:
                return (
                    yield from _append_keys(member.state, caller, _time_to_live(member, request))
                )
        elif not (yield LeaderKnown(limit)):
            return errors.NO_LEADER
        elif not member.is_leader:
            answer = yield from _ask_leader(request)
            if answer is not None:
                return (
                    member.state.header.field(member.state.store.revision)
                    + answer.SerializeToString()
                )
        yield Until(member.now + RETRY_SECONDS)
    return errors.TIMEOUT


def _ask_leader(request: LeaseTimeToLiveRequest) -> Part[LeaseTimeToLiveResponse | None]:
    """Ask the leader; return None if that member does not answer, or does not lead."""
    question = LeaseInternalRequest(LeaseTimeToLiveRequest=request)
    answer: Result | None = yield AskLeader(INTERNAL_PATH, question.SerializeToString())
    if answer == errors.LEASE_NOT_FOUND:
        return LeaseTimeToLiveResponse(ID=request.ID, TTL=-1)
    if not isinstance(answer, bytes):
        return None
    response = LeaseInternalResponse.FromString(answer).LeaseTimeToLiveResponse
    response.ClearField("header")
    return response
