"""The operations of calls in traces: etcd's spans inside the span of a call, with attributes.

Keys that are not UTF-8 are escaped, because collectors refuse them; long keys are truncated.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from kvorum.api.pb import etcdserverpb as pb
from kvorum.server.telemetry.milestones import Way

KEY_BYTES_MAX: Final = 1024

Attributes = Mapping[str, str | int | bool]


class TracedOperation(NamedTuple):
    """A span inside the span of a call."""

    name: str
    attributes: Attributes
    way: Way


def text(key: bytes) -> str:
    """Return a key as an attribute's value."""
    shown = key[:KEY_BYTES_MAX].decode("utf-8", "backslashreplace")
    return shown if len(key) <= KEY_BYTES_MAX else f"{shown}…"


def _range(payload: bytes) -> TracedOperation:
    request = pb.RangeRequest.FromString(payload)
    way = Way.OTHER if request.serializable else Way.READ
    return TracedOperation("range", _ranged(request) | {"keys_only": request.keys_only}, way)


def _range_stream(payload: bytes) -> TracedOperation:
    return TracedOperation(
        "range_streaming", _ranged(pb.RangeRequest.FromString(payload)), Way.OTHER
    )


def _ranged(request: pb.RangeRequest) -> dict[str, str | int | bool]:
    return {
        "range_begin": text(request.key),
        "range_end": text(request.range_end),
        "rev": request.revision,
        "limit": request.limit,
        "count_only": request.count_only,
    }


def _put(payload: bytes) -> TracedOperation:
    return TracedOperation("put", {"key": text(pb.PutRequest.FromString(payload).key)}, Way.WRITE)


def _delete_range(payload: bytes) -> TracedOperation:
    request = pb.DeleteRangeRequest.FromString(payload)
    ends = {"range_begin": text(request.key), "range_end": text(request.range_end)}
    return TracedOperation("delete_range", ends, Way.WRITE)


def _txn(payload: bytes) -> TracedOperation:
    request = pb.TxnRequest.FromString(payload)
    operations = [*request.success, *request.failure]
    is_read = all(each.WhichOneof("request") == "request_range" for each in operations)
    is_stale = all(each.request_range.serializable for each in operations)
    kinds = (each.WhichOneof("request") for each in request.success)
    puts = (each.request_put for each in request.success if each.HasField("request_put"))
    attributes: Attributes = {
        "compare_first_key": _first(each.key for each in request.compare),
        "success_first_key": _first(map(_key, request.success)),
        "success_first_type": next((kind for kind in kinds if kind), "").removeprefix("request_"),
        "success_first_lease": next((put.lease for put in puts), -1),
        "compare_len": len(request.compare),
        "success_len": len(request.success),
        "failure_len": len(request.failure),
        "read_only": is_read,
    }
    way = Way.WRITE
    if is_read:
        way = Way.OTHER if is_stale else Way.READ
    return TracedOperation("txn", attributes, way)


def _key(operation: pb.RequestOp) -> bytes:
    """Return the first key of a transaction's operation; empty if it has none."""
    kind = operation.WhichOneof("request")
    if kind == "request_put":
        return operation.request_put.key
    if kind == "request_range":
        return operation.request_range.key
    return operation.request_delete_range.key


def _first(keys: Iterable[bytes]) -> str:
    return text(next(filter(None, keys), b""))


def _compact(payload: bytes) -> TracedOperation:
    request = pb.CompactionRequest.FromString(payload)
    attributes = {"is_physical": request.physical, "rev": request.revision}
    return TracedOperation("compact", attributes, Way.WRITE)


def _lease_grant(payload: bytes) -> TracedOperation:
    request = pb.LeaseGrantRequest.FromString(payload)
    return TracedOperation("lease_grant", {"id": request.ID, "ttl": request.TTL}, Way.WRITE)


def _lease_revoke(payload: bytes) -> TracedOperation:
    request = pb.LeaseRevokeRequest.FromString(payload)
    return TracedOperation("lease_revoke", {"id": request.ID}, Way.WRITE)


def lease_renew(payload: bytes) -> TracedOperation:
    """Return the span of a keep-alive."""
    request = pb.LeaseKeepAliveRequest.FromString(payload)
    return TracedOperation("lease_renew", {"id": request.ID}, Way.OTHER)


def watch(request: pb.WatchCreateRequest) -> TracedOperation:
    """Return the span of a watcher."""
    # A range end of "\0" means all keys from `key` on.
    range_end = b"" if request.range_end == b"\0" else request.range_end
    attributes: Attributes = {
        "key": text(request.key or b"\0"),
        "range_end": text(range_end),
        "start_rev": request.start_revision,
        "progress_notify": request.progress_notify,
        "prev_kv": request.prev_kv,
        "fragment": request.fragment,
    }
    return TracedOperation("watch", attributes, Way.OTHER)


_OPERATIONS: Final[dict[str, Callable[[bytes], TracedOperation]]] = {
    "/etcdserverpb.KV/Range": _range,
    "/etcdserverpb.KV/RangeStream": _range_stream,
    "/etcdserverpb.KV/Put": _put,
    "/etcdserverpb.KV/DeleteRange": _delete_range,
    "/etcdserverpb.KV/Txn": _txn,
    "/etcdserverpb.KV/Compact": _compact,
    "/etcdserverpb.Lease/LeaseGrant": _lease_grant,
    "/etcdserverpb.Lease/LeaseRevoke": _lease_revoke,
}


def operation(path: str, payload: bytes) -> TracedOperation | None:
    """Return the operation of a call with one request; None if etcd traces none for it."""
    make = _OPERATIONS.get(path)
    try:
        return None if make is None else make(payload)
    except DecodeError:
        return None
