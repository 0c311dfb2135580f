"""The table of appliers: how each kind of request changes the state.

An applier gets the state, the caller that the entry names, the decoded request, and whether a
waiter wants the answer. It returns the encoded response, a Status, or slices that return one of
them; it may raise StatusError before it changes anything. It first lets alarms refuse the request,
then checks the caller's permissions if authentication is enabled. An exceeded quota refuses nothing
here, because every member has to do the same: the request runs, the client gets an error, and the
member raises the alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kvorum.api import requests as api
from kvorum.api.errors import LEASE_NOT_FOUND, NO_SPACE
from kvorum.api.pb.etcdserverpb import (
    AlarmMember,
    AlarmRequest,
    AlarmResponse,
    CompactionRequest,
    LeaseCheckpointRequest,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseRevokeRequest,
)
from kvorum.api.pb.membershippb import (
    ClusterMemberAttrSetRequest,
    ClusterVersionSetRequest,
    DowngradeInfoSetRequest,
)
from kvorum.state.apply import administration, log_lines, permissions, requests, transactions
from kvorum.state.apply.ranges import range_response
from kvorum.state.membership.cluster import MembershipError
from kvorum.state.membership.versions import parse_version
from kvorum.state.mvcc.slices import Meter, run_first_slice
from kvorum.storage.backend.quota import LEASE_GRANT_BYTES, PUT_BYTES

if TYPE_CHECKING:
    from kvorum.api.errors import Status
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.permissions import Checked
    from kvorum.state.apply.results import Result, Sliced, Slices
    from kvorum.state.apply.state import State


Applier = Callable[["State", "Caller", Any, bool], "Sliced"]

ALARM_GET: Final = 0
ALARM_ACTIVATE: Final = 1
ALARM_DEACTIVATE: Final = 2


def _put(state: State, caller: Caller, request: api.Put, wanted: bool) -> Sliced:
    refusal = state.alarms.refusal(requests.PUT)
    if refusal is None and state.auth.is_enabled:
        if request.lease:
            return run_first_slice(_checked_put(state, caller, request, wanted))
        refusal = permissions.plain_put_refusal(state, caller, request)
    return _permitted_put(state, request, wanted) if refusal is None else refusal


def _checked_put(state: State, caller: Caller, request: api.Put, wanted: bool) -> Slices:
    refusal = yield from permissions.put_refusal(state, caller, request, Meter(state.limits))
    return _permitted_put(state, request, wanted) if refusal is None else refusal


def _permitted_put(state: State, request: api.Put, wanted: bool) -> Result:
    fits = state.fits_quota(PUT_BYTES + len(request.key) + len(request.value))
    result = transactions.put(state, request, wanted)
    return result if fits else _refuse_space(state)


def _range(state: State, caller: Caller, request: api.Range, wanted: bool) -> Sliced:
    if not wanted:
        return b""
    refusal = state.alarms.refusal(requests.RANGE)
    return range_response(state, caller, request) if refusal is None else refusal


def _delete_range(state: State, caller: Caller, request: api.DeleteRange, wanted: bool) -> Sliced:
    refusal = state.alarms.refusal(requests.DELETE_RANGE)
    if refusal is None and state.auth.is_enabled:
        refusal = permissions.delete_refusal(state, caller, request)
    return transactions.delete_range(state, request, wanted) if refusal is None else refusal


def _txn(state: State, caller: Caller, request: api.Txn, wanted: bool) -> Sliced:
    if state.accepts_plain_puts():
        return transactions.txn(state, request, wanted)
    cost = transactions.put_cost(request)
    refusal = state.alarms.refusal(requests.TXN, has_puts=cost > 0)
    if refusal is not None:
        return refusal
    if state.auth.is_enabled:
        checked = permissions.plain_txn_refusal(state, caller, request)
        if isinstance(checked, tuple):
            return checked
        if checked is not None:
            return run_first_slice(_checked_txn(state, checked, request, wanted, cost))
    return _permitted_txn(state, request, wanted, cost)


def _checked_txn(
    state: State, checked: Checked, request: api.Txn, wanted: bool, cost: int
) -> Slices:
    refusal = yield from checked
    if refusal is not None:
        return refusal
    result = _permitted_txn(state, request, wanted, cost)
    if isinstance(result, (bytes, tuple)):
        return result
    return (yield from result)


def _permitted_txn(state: State, request: api.Txn, wanted: bool, cost: int) -> Sliced:
    fits = not cost or state.fits_quota(cost)
    result = transactions.txn(state, request, wanted)
    return result if fits else _refuse_for_quota(state, result)


def long_txn(state: State, caller: Caller, body: bytes) -> Slices:
    """Apply a transaction so long that even its decoding takes slices; it has no waiter."""
    request = yield from api.decode_txn_slices(body, state.limits.txn_slice_bytes)
    result = _txn(state, caller, request, wanted=False)
    if isinstance(result, (bytes, tuple)):
        return result
    return (yield from result)


def _refuse_for_quota(state: State, result: Sliced) -> Sliced:
    if isinstance(result, bytes):
        return _refuse_space(state)
    if isinstance(result, tuple):
        return result

    return _refuse_after_slices(state, result)


def _refuse_after_slices(state: State, slices: Slices) -> Slices:
    ended = yield from slices
    return _refuse_space(state) if isinstance(ended, bytes) else ended


def _refuse_space(state: State) -> Status:
    state.exceeds_quota = True
    return NO_SPACE


def _compaction(state: State, _caller: Caller, request: CompactionRequest, _wanted: bool) -> Sliced:
    refusal = state.alarms.refusal(requests.COMPACTION)
    if refusal is not None:
        return refusal
    store = state.store
    store.compact(request.revision)
    store.ranges += 1  # etcd reads a key to learn the revision
    return state.header.field(store.revision)


def _lease_grant(state: State, _caller: Caller, request: LeaseGrantRequest, wanted: bool) -> Sliced:
    refusal = state.alarms.refusal(requests.LEASE_GRANT)
    if refusal is not None:
        return refusal
    if not request.ID:
        # The proposer chooses the id; etcd gives this answer to a grant without an id.
        return LEASE_NOT_FOUND
    fits = state.fits_quota(LEASE_GRANT_BYTES)
    ttl = state.lessor.grant(request.ID, request.TTL, state.now)
    if not fits:
        return _refuse_space(state)
    if not wanted:
        return b""
    body = LeaseGrantResponse(ID=request.ID, TTL=ttl).SerializeToString()
    return state.header.field(state.store.revision) + body


def _lease_revoke(
    state: State, caller: Caller, request: LeaseRevokeRequest, _wanted: bool
) -> Sliced:
    refusal = state.alarms.refusal(requests.LEASE_REVOKE)
    if refusal is not None:
        return refusal
    if state.auth.is_enabled:
        return _checked_revoke(state, caller, request.ID)
    return transactions.revoke(state, request.ID)


def _checked_revoke(state: State, caller: Caller, lease_id: int) -> Slices:
    refusal = yield from permissions.lease_refusal(
        state, caller, lease_id, Meter(state.limits), is_write=True
    )
    if refusal is not None:
        return refusal
    return (yield from transactions.revoke(state, lease_id))


def _lease_checkpoint(
    state: State, _caller: Caller, request: LeaseCheckpointRequest, _wanted: bool
) -> Sliced:
    for checkpoint in request.checkpoints:
        state.lessor.checkpoint(checkpoint.ID, checkpoint.remaining_TTL, state.now)
    return state.header.field(state.store.revision)


def _alarm(state: State, _caller: Caller, request: AlarmRequest, _wanted: bool) -> Sliced:
    alarms = state.alarms
    if request.action == ALARM_ACTIVATE:
        is_new = not alarms.is_raised(request.memberID, request.alarm)
        found = alarms.activate(request.memberID, request.alarm)
        if is_new:
            log_lines.log_changed_alarms(state, "alarm raised", found)
    elif request.action == ALARM_DEACTIVATE:
        found = alarms.deactivate(request.memberID, request.alarm)
        log_lines.log_changed_alarms(state, "alarm disarmed", found)
    else:
        found = alarms.raised(request.alarm) if request.action == ALARM_GET else []
    members = [AlarmMember(memberID=each.member_id, alarm=each.type) for each in found]  # type: ignore[arg-type]
    body = AlarmResponse(alarms=members).SerializeToString()
    return state.header.field(state.store.revision) + body


def _cluster_version(
    state: State, _caller: Caller, request: ClusterVersionSetRequest, _wanted: bool
) -> Sliced:
    before = state.cluster.version
    version = parse_version(request.ver)
    state.cluster.set_version(version)
    state.cluster.adjust_storage_version()
    log_lines.log_version_change(state, before, version)
    if before is not None and version < before:
        state.wants_snapshot = True
    return b""


def _attributes(
    state: State, _caller: Caller, request: ClusterMemberAttrSetRequest, _wanted: bool
) -> Sliced:
    attributes = request.member_attributes
    urls = tuple(attributes.client_urls)
    try:
        state.cluster.set_attributes(request.member_ID, attributes.name, urls)
    except MembershipError as error:
        # The entry changes nothing on any member; stopping here would also stop every restart.
        state.logger.error(f"ignored invalid attributes of a member: {error}")
    return b""


def _downgrade(
    state: State, _caller: Caller, request: DowngradeInfoSetRequest, _wanted: bool
) -> Sliced:
    target = parse_version(request.ver) if request.enabled else None
    state.cluster.set_downgrade_target(target)
    return b""


def _no_effect(_state: State, _caller: Caller, _request: bytes, _wanted: bool) -> Sliced:
    return b""


APPLIERS: Final[dict[int, Applier]] = {
    requests.RANGE: _range,
    requests.PUT: _put,
    requests.DELETE_RANGE: _delete_range,
    requests.TXN: _txn,
    requests.COMPACTION: _compaction,
    requests.LEASE_GRANT: _lease_grant,
    requests.LEASE_REVOKE: _lease_revoke,
    requests.ALARM: _alarm,
    requests.LEASE_CHECKPOINT: _lease_checkpoint,
    requests.CLUSTER_VERSION_SET: _cluster_version,
    requests.CLUSTER_MEMBER_ATTR_SET: _attributes,
    requests.DOWNGRADE_INFO_SET: _downgrade,
    requests.DOWNGRADE_VERSION_TEST: _no_effect,
    **administration.APPLIERS,
}

DECODERS: Final[dict[int, Callable[[bytes], object]]] = {
    requests.RANGE: api.decode_range,
    requests.PUT: api.decode_put,
    requests.DELETE_RANGE: api.decode_delete_range,
    requests.TXN: api.decode_txn,
    requests.COMPACTION: CompactionRequest.FromString,
    requests.LEASE_GRANT: LeaseGrantRequest.FromString,
    requests.LEASE_REVOKE: LeaseRevokeRequest.FromString,
    requests.ALARM: AlarmRequest.FromString,
    requests.LEASE_CHECKPOINT: LeaseCheckpointRequest.FromString,
    requests.CLUSTER_VERSION_SET: ClusterVersionSetRequest.FromString,
    requests.CLUSTER_MEMBER_ATTR_SET: ClusterMemberAttrSetRequest.FromString,
    requests.DOWNGRADE_INFO_SET: DowngradeInfoSetRequest.FromString,
    requests.DOWNGRADE_VERSION_TEST: bytes,
    **administration.DECODERS,
}
