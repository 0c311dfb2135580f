"""The table of appliers: how each kind of request changes the state.

An applier gets the member, the caller that the entry names, the decoded request, and whether a
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
from kvorum.member import administration, log_lines, permissions, requests, transactions
from kvorum.member.ranges import range_response
from kvorum.state.membership.cluster import MembershipError
from kvorum.state.membership.versions import parse_version
from kvorum.state.mvcc.slices import Meter, run_first_slice
from kvorum.storage.backend.quota import LEASE_GRANT_BYTES, PUT_BYTES

if TYPE_CHECKING:
    from kvorum.api.errors import Status
    from kvorum.member.callers import Caller
    from kvorum.member.member import Member
    from kvorum.member.outbox import Result
    from kvorum.member.permissions import Checked
    from kvorum.member.results import Sliced, Slices


Applier = Callable[["Member", "Caller", Any, bool], "Sliced"]

ALARM_GET: Final = 0
ALARM_ACTIVATE: Final = 1
ALARM_DEACTIVATE: Final = 2


def _put(member: Member, caller: Caller, request: api.Put, wanted: bool) -> Sliced:
    refusal = member.alarms.refusal(requests.PUT)
    if refusal is None and member.auth.is_enabled:
        if request.lease:
            return run_first_slice(_checked_put(member, caller, request, wanted))
        refusal = permissions.plain_put_refusal(member, caller, request)
    return _permitted_put(member, request, wanted) if refusal is None else refusal


def _checked_put(member: Member, caller: Caller, request: api.Put, wanted: bool) -> Slices:
    refusal = yield from permissions.put_refusal(member, caller, request, Meter())
    return _permitted_put(member, request, wanted) if refusal is None else refusal


def _permitted_put(member: Member, request: api.Put, wanted: bool) -> Result:
    fits = member.fits_quota(PUT_BYTES + len(request.key) + len(request.value))
    result = transactions.put(member, request, wanted)
    return result if fits else _exceeded(member)


def _range(member: Member, caller: Caller, request: api.Range, wanted: bool) -> Sliced:
    if not wanted:
        return b""
    refusal = member.alarms.refusal(requests.RANGE)
    return range_response(member, caller, request) if refusal is None else refusal


def _delete_range(member: Member, caller: Caller, request: api.DeleteRange, wanted: bool) -> Sliced:
    refusal = member.alarms.refusal(requests.DELETE_RANGE)
    if refusal is None and member.auth.is_enabled:
        refusal = permissions.delete_refusal(member, caller, request)
    return transactions.delete_range(member, request, wanted) if refusal is None else refusal


def _txn(member: Member, caller: Caller, request: api.Txn, wanted: bool) -> Sliced:
    if member.accepts_plain_puts():
        return transactions.txn(member, request, wanted)
    cost = transactions.put_cost(request)
    refusal = member.alarms.refusal(requests.TXN, has_puts=cost > 0)
    if refusal is not None:
        return refusal
    if member.auth.is_enabled:
        checked = permissions.plain_txn_refusal(member, caller, request)
        if isinstance(checked, tuple):
            return checked
        if checked is not None:
            return run_first_slice(_checked_txn(member, checked, request, wanted, cost))
    return _permitted_txn(member, request, wanted, cost)


def _checked_txn(
    member: Member, checked: Checked, request: api.Txn, wanted: bool, cost: int
) -> Slices:
    refusal = yield from checked
    if refusal is not None:
        return refusal
    result = _permitted_txn(member, request, wanted, cost)
    if isinstance(result, (bytes, tuple)):
        return result
    return (yield from result)


def _permitted_txn(member: Member, request: api.Txn, wanted: bool, cost: int) -> Sliced:
    fits = not cost or member.fits_quota(cost)
    result = transactions.txn(member, request, wanted)
    return result if fits else _then_exceeded(member, result)


def long_txn(member: Member, caller: Caller, body: bytes) -> Slices:
    """Apply a transaction so long that even its decoding takes slices; it has no waiter."""
    request = yield from api.decode_txn_slices(body)
    result = _txn(member, caller, request, wanted=False)
    if isinstance(result, (bytes, tuple)):
        return result
    return (yield from result)


def _then_exceeded(member: Member, result: Sliced) -> Sliced:
    if isinstance(result, bytes):
        return _exceeded(member)
    if isinstance(result, tuple):
        return result

    return _in_slices(member, result)


def _in_slices(member: Member, slices: Slices) -> Slices:
    ended = yield from slices
    return _exceeded(member) if isinstance(ended, bytes) else ended


def _exceeded(member: Member) -> Status:
    member.raise_no_space()
    return NO_SPACE


def _compaction(
    member: Member, _caller: Caller, request: CompactionRequest, _wanted: bool
) -> Sliced:
    refusal = member.alarms.refusal(requests.COMPACTION)
    if refusal is not None:
        return refusal
    store = member.store
    store.compact(request.revision)
    store.ranges += 1  # etcd reads a key to learn the revision
    return member.header.field(store.revision)


def _lease_grant(
    member: Member, _caller: Caller, request: LeaseGrantRequest, wanted: bool
) -> Sliced:
    refusal = member.alarms.refusal(requests.LEASE_GRANT)
    if refusal is not None:
        return refusal
    if not request.ID:
        # The proposer chooses the id; etcd gives this answer to a grant without an id.
        return LEASE_NOT_FOUND
    fits = member.fits_quota(LEASE_GRANT_BYTES)
    ttl = member.lessor.grant(request.ID, request.TTL, member.clock())
    if not fits:
        return _exceeded(member)
    if not wanted:
        return b""
    body = LeaseGrantResponse(ID=request.ID, TTL=ttl).SerializeToString()
    return member.header.field(member.store.revision) + body


def _lease_revoke(
    member: Member, caller: Caller, request: LeaseRevokeRequest, _wanted: bool
) -> Sliced:
    refusal = member.alarms.refusal(requests.LEASE_REVOKE)
    if refusal is not None:
        return refusal
    if member.auth.is_enabled:
        return _checked_revoke(member, caller, request.ID)
    return transactions.revoke(member, request.ID)


def _checked_revoke(member: Member, caller: Caller, lease_id: int) -> Slices:
    refusal = yield from permissions.lease_refusal(member, caller, lease_id, Meter(), is_write=True)
    if refusal is not None:
        return refusal
    return (yield from transactions.revoke(member, lease_id))


def _lease_checkpoint(
    member: Member, _caller: Caller, request: LeaseCheckpointRequest, _wanted: bool
) -> Sliced:
    for checkpoint in request.checkpoints:
        member.lessor.checkpoint(checkpoint.ID, checkpoint.remaining_TTL, member.now)
    return member.header.field(member.store.revision)


def _alarm(member: Member, _caller: Caller, request: AlarmRequest, _wanted: bool) -> Sliced:
    alarms = member.alarms
    if request.action == ALARM_ACTIVATE:
        is_new = not alarms.is_raised(request.memberID, request.alarm)
        found = alarms.activate(request.memberID, request.alarm)
        if is_new:
            log_lines.alarms_changed(member, "alarm raised", found)
    elif request.action == ALARM_DEACTIVATE:
        found = alarms.deactivate(request.memberID, request.alarm)
        log_lines.alarms_changed(member, "alarm disarmed", found)
    else:
        found = alarms.raised(request.alarm) if request.action == ALARM_GET else []
    members = [AlarmMember(memberID=each.member_id, alarm=each.type) for each in found]  # type: ignore[arg-type]
    body = AlarmResponse(alarms=members).SerializeToString()
    return member.header.field(member.store.revision) + body


def _cluster_version(
    member: Member, _caller: Caller, request: ClusterVersionSetRequest, _wanted: bool
) -> Sliced:
    before = member.cluster.version
    version = parse_version(request.ver)
    member.cluster.set_version(version)
    member.cluster.adjust_storage_version()
    log_lines.version_set(member, before, version)
    if before is not None and version < before:
        member.snapshots.is_wanted = True
    return b""


def _attributes(
    member: Member, _caller: Caller, request: ClusterMemberAttrSetRequest, _wanted: bool
) -> Sliced:
    attributes = request.member_attributes
    urls = tuple(attributes.client_urls)
    try:
        member.cluster.set_attributes(request.member_ID, attributes.name, urls)
    except MembershipError as error:
        # The entry changes nothing on any member; stopping here would also stop every restart.
        member.logger.error(f"ignored what no member says of itself: {error}")
    return b""


def _downgrade(
    member: Member, _caller: Caller, request: DowngradeInfoSetRequest, _wanted: bool
) -> Sliced:
    target = parse_version(request.ver) if request.enabled else None
    member.cluster.set_downgrade_target(target)
    return b""


def _no_effect(_member: Member, _caller: Caller, _request: bytes, _wanted: bool) -> Sliced:
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
