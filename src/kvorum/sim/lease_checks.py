"""Leases do not end early: a client can rely on the time that an answer promised.

An answer promises that the lease lives for its TTL from when the client asked. The end of a lease
shows in its keys, which are deleted, in a renewal that finds no lease, and in a put that is refused
for lack of it. A client may revoke a lease, which must not end before the client asks for that.
"""

from math import inf

from kvorum.api.errors import LEASE_NOT_FOUND, Status
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
    PutRequest,
    TxnRequest,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.history import History, Record, is_in_range
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import is_clients_key
from kvorum.state.mvcc.keyvalue import key_of

GUARANTEE = "leases do not end early"


def check_leases(history: History) -> None:
    """Require that no lease ended before its time, counted from its last renewal."""
    revoked: dict[int, float] = {}
    for record in history.records:
        if isinstance(record.request, LeaseRevokeRequest):
            lease = record.request.ID
            revoked[lease] = min(revoked.get(lease, inf), record.started)
    renewals: dict[int, list[Record]] = {}
    for record in history.records:
        if (
            isinstance(record.request, LeaseGrantRequest | LeaseKeepAliveRequest)
            and record.is_answered
            and record.response.TTL > 0
        ):
            renewals.setdefault(record.response.ID, []).append(record)
    for lease, ended, how in (*_deletions(history), *_refusals(history)):
        for record in renewals.get(lease, ()):
            until = record.started + record.response.TTL
            if record.finished <= ended < min(until, revoked.get(lease, inf)):
                raise Violation(
                    GUARANTEE,
                    f"{lease:x} was to live until {until:.3f} by {record.kind} "
                    f"#{record.invoked}, but at {ended:.3f} {how}",
                    record,
                )


def _deletions(history: History) -> list[tuple[int, float, str]]:
    """Return leases whose keys no client has deleted, and when the keys were gone."""
    claimed = {record.response.header.revision for record in history.records if record.wrote}
    lost = [
        deletion
        for record in history.records
        if record.response is None
        for deletion in _deletions_of(record.request)
    ]
    found = []
    for main, rows in history.effects.items():
        for revision, kv in rows:
            key = key_of(kv)
            if not revision & 1 or main in claimed or not is_clients_key(key):
                continue
            # A client that never got an answer may have deleted the key as well.
            if any(is_in_range(key, each.key, each.range_end) for each in lost):
                continue
            before = history.at(key, main - 1)
            lease = 0 if before is None else KeyValue.FromString(before).lease
            if lease:
                ended = history.first_seen[main]
                found.append((lease, ended, f"its key {key!r} was gone at revision {main}"))
    return found


def _deletions_of(request: object) -> list[DeleteRangeRequest]:
    if isinstance(request, DeleteRangeRequest):
        return [request]
    if isinstance(request, TxnRequest):
        found = [
            each.request_delete_range
            for each in request.success
            if each.HasField("request_delete_range")
        ]
        for each in request.success:
            found += _deletions_of(each.request_txn if each.HasField("request_txn") else None)
        return found
    return []


def _refusals(history: History) -> list[tuple[int, float, str]]:
    """Return leases that an answer reported not to exist, and when the answer came."""
    found = []
    for record in history.records:
        request, response = record.request, record.response
        text = f"{record.kind} #{record.invoked} did not find it"
        if isinstance(request, LeaseKeepAliveRequest) and record.is_answered:
            if not response.TTL:
                found.append((request.ID, record.finished, text))
        elif isinstance(request, LeaseTimeToLiveRequest) and record.is_answered:
            if response.TTL == -1:
                found.append((request.ID, record.finished, text))
        elif (
            isinstance(request, PutRequest)
            and isinstance(response, Status)
            and response == LEASE_NOT_FOUND
        ):
            found.append((request.lease, record.finished, text))
    return found
