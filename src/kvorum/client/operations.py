"""Every call as a value: its method, its request, and the decoder of its answer.

Both clients make calls from these values, so that one place defines the arguments and the meaning
of each call.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from kvorum.api import writing
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import answers, rpcs
from kvorum.client.keys import KeyRange, Text, as_bytes, as_number
from kvorum.client.rpcs import Rpc
from kvorum.client.values import (
    ConditionalResult,
    DeleteResult,
    KeyValue,
    LeaseStatus,
    PutResult,
    RangeResult,
    TxnResult,
    key_value,
)

T_co = TypeVar("T_co", covariant=True)


class Operation(NamedTuple, Generic[T_co]):
    """A call as a value."""

    rpc: Rpc
    message: bytes
    decode: Callable[[bytes], T_co]


# Keys.


def put(
    key: Text, value: Text, lease: int, *, previous: bool, keep_value: bool, keep_lease: bool
) -> bytes:
    """Return the request of a put."""
    return writing.put_request(
        as_bytes(key),
        as_bytes(value, "value"),
        as_number(lease, "lease"),
        previous=previous,
        keep_value=keep_value,
        keep_lease=keep_lease,
    )


def put_operation(request: bytes) -> Operation[PutResult]:
    """Return the call of a put."""
    return Operation(rpcs.PUT, request, _put_result)


def delete_operation(keys: KeyRange, *, previous: bool) -> Operation[DeleteResult]:
    """Return the call of a deletion."""
    request = writing.delete_request(keys.key, keys.end, previous=previous)
    return Operation(rpcs.DELETE_RANGE, request, _delete_result)


def range_operation(request: bytes, *, serializable: bool = False) -> Operation[RangeResult]:
    """Return the call of a range."""
    rpc = rpcs.SERIALIZABLE_RANGE if serializable else rpcs.RANGE
    return Operation(rpc, request, _range_result)


def stream_operation(request: bytes, *, serializable: bool = False) -> Operation[RangeResult]:
    """Return the call of a range that the server answers in several messages."""

    def decode(answer: bytes) -> RangeResult:
        return range_result(pb.RangeStreamResponse.FromString(answer).range_response)

    rpc = rpcs.SERIALIZABLE_STREAM if serializable else rpcs.RANGE_STREAM
    return Operation(rpc, request, decode)


def get_operation(key: Text, revision: int, *, serializable: bool) -> Operation[KeyValue | None]:
    """Return the call that reads one key."""
    request = writing.get_request(
        as_bytes(key), as_number(revision, "revision"), serializable=serializable
    )
    rpc = rpcs.SERIALIZABLE_RANGE if serializable else rpcs.RANGE
    return Operation(rpc, request, _one)


def txn_operation(request: "pb.TxnRequest") -> Operation[TxnResult]:
    """Return the call of a transaction; the client may repeat one that only reads."""
    rpc = rpcs.READ_TXN if _only_reads(request) else rpcs.TXN
    return Operation(rpc, request.SerializeToString(), _txn_result)


def conditional_operation(
    key: Text, revision: int, step: "pb.RequestOp", *, reads: bool = True
) -> Operation[ConditionalResult]:
    """Return the call that changes a key if it has this mod revision, and otherwise reads it."""
    name = as_bytes(key)
    compare = pb.Compare(
        key=name,
        target=pb.Compare.MOD,
        result=pb.Compare.EQUAL,
        mod_revision=as_number(revision, "revision"),
    )
    read = pb.RequestOp(request_range=pb.RangeRequest(key=name))
    failure = [read] if reads else []
    request = pb.TxnRequest(compare=[compare], success=[step], failure=failure)

    def decode(answer: bytes) -> ConditionalResult:
        response = pb.TxnResponse.FromString(answer)
        found = response.responses[0].response_range.kvs if response.responses else []
        current = None if response.succeeded or not found else key_value(found[0])
        return ConditionalResult(response.succeeded, response.header.revision, current)

    return Operation(rpcs.TXN, request.SerializeToString(), decode)


def compact_operation(revision: int, *, physical: bool) -> Operation[int]:
    """Return the call of a compaction; its result is the store's revision."""
    request = pb.CompactionRequest(revision=as_number(revision, "revision"), physical=physical)
    return Operation(rpcs.COMPACT, request.SerializeToString(), _revision(pb.CompactionResponse))


def _only_reads(request: "pb.TxnRequest") -> bool:
    return all(
        operation.HasField("request_range")
        or (operation.HasField("request_txn") and _only_reads(operation.request_txn))
        for operation in (*request.success, *request.failure)
    )


def _put_result(answer: bytes) -> PutResult:
    return answers.read_put(answer) or put_result(pb.PutResponse.FromString(answer))


def put_result(response: "pb.PutResponse") -> PutResult:
    """Return the result of a put."""
    previous = key_value(response.prev_kv) if response.HasField("prev_kv") else None
    return PutResult(response.header.revision, previous)


def _delete_result(answer: bytes) -> DeleteResult:
    found = answers.read_delete(answer)
    return found or delete_result(pb.DeleteRangeResponse.FromString(answer))


def delete_result(response: "pb.DeleteRangeResponse") -> DeleteResult:
    """Return the result of a deletion."""
    return DeleteResult(
        response.deleted, response.header.revision, list(map(key_value, response.prev_kvs))
    )


def _range_result(answer: bytes) -> RangeResult:
    return answers.read_range(answer) or range_result(pb.RangeResponse.FromString(answer))


def range_result(response: "pb.RangeResponse") -> RangeResult:
    """Return the result of a range."""
    found = list(map(key_value, response.kvs))
    return RangeResult(found, response.count, response.more, response.header.revision)


def _one(answer: bytes) -> KeyValue | None:
    found = _range_result(answer).kvs
    return found[0] if found else None


def _txn_result(answer: bytes) -> TxnResult:
    return txn_result(pb.TxnResponse.FromString(answer))


def txn_result(response: "pb.TxnResponse") -> TxnResult:
    """Return the result of a transaction; its parts get the revision of the whole."""
    revision = response.header.revision
    results: list[PutResult | DeleteResult | RangeResult | TxnResult] = []
    for each in response.responses:
        match each.WhichOneof("response"):
            case "response_put":
                results.append(put_result(each.response_put)._replace(revision=revision))
            case "response_delete_range":
                deleted = delete_result(each.response_delete_range)
                results.append(deleted._replace(revision=revision))
            case "response_range":
                results.append(range_result(each.response_range)._replace(revision=revision))
            case _:
                results.append(txn_result(each.response_txn)._replace(revision=revision))
    return TxnResult(response.succeeded, results, revision)


def _revision(kind: Any) -> Callable[[bytes], int]:
    def decode(answer: bytes) -> int:
        revision: int = kind.FromString(answer).header.revision
        return revision

    return decode


# Leases.


def grant_operation(lease: int, ttl: int) -> Operation[int]:
    """Return the call that grants a lease; its result is the TTL in seconds.

    The client chooses the id, so that a repeated grant finds the lease of the first attempt.
    """
    request = pb.LeaseGrantRequest(ID=as_number(lease, "lease"), TTL=as_number(ttl, "ttl"))

    def decode(answer: bytes) -> int:
        granted: int = pb.LeaseGrantResponse.FromString(answer).TTL
        return granted

    return Operation(rpcs.LEASE_GRANT, request.SerializeToString(), decode)


def revoke_operation(lease: int) -> Operation[int]:
    """Return the call that revokes a lease and deletes its keys; its result is the revision."""
    request = pb.LeaseRevokeRequest(ID=as_number(lease, "lease"))
    decode = _revision(pb.LeaseRevokeResponse)
    return Operation(rpcs.LEASE_REVOKE, request.SerializeToString(), decode)


def time_to_live_operation(lease: int, *, keys: bool) -> Operation[LeaseStatus]:
    """Return the call that reads the remaining time of a lease."""
    request = pb.LeaseTimeToLiveRequest(ID=as_number(lease, "lease"), keys=keys)

    def decode(answer: bytes) -> LeaseStatus:
        found = pb.LeaseTimeToLiveResponse.FromString(answer)
        return LeaseStatus(found.ID, found.TTL, found.grantedTTL, list(found.keys))

    return Operation(rpcs.LEASE_TIME_TO_LIVE, request.SerializeToString(), decode)


def leases_operation() -> Operation[list[int]]:
    """Return the call that lists leases."""

    def decode(answer: bytes) -> list[int]:
        return [each.ID for each in pb.LeaseLeasesResponse.FromString(answer).leases]

    return Operation(rpcs.LEASE_LEASES, pb.LeaseLeasesRequest().SerializeToString(), decode)


def range_request(
    keys: KeyRange,
    *,
    limit: int = 0,
    revision: int = 0,
    order: str = "",
    by: str = "key",
    serializable: bool = False,
    keys_only: bool = False,
    count_only: bool = False,
    mod_revisions: Sequence[int] = (0, 0),
    create_revisions: Sequence[int] = (0, 0),
) -> bytes:
    """Return the request of a range."""
    if order not in _ORDERS or by not in _TARGETS:
        raise ValueError(
            f"cannot sort {order!r} by {by!r}; expected 'ascending' or 'descending', by "
            f"{', '.join(_TARGETS)}"
        )
    if order == "ascending" and by == "key":
        # Servers return keys in this order anyway, without the work of sorting.
        order = ""
    sort = (_ORDERS[order], _TARGETS[by])
    limit, revision = as_number(limit, "limit"), as_number(revision, "revision")
    numbers = (limit, revision, *sort, serializable, keys_only, count_only)
    bounds = (("mod_revisions", mod_revisions), ("create_revisions", create_revisions))
    revisions = tuple(as_number(each, name) for name, pair in bounds for each in pair)
    return writing.range_request(keys.key, keys.end, (*numbers, *revisions))


def watch_request(
    keys: KeyRange,
    revision: int,
    *,
    previous: bool,
    progress: bool,
    puts: bool,
    deletes: bool,
) -> "pb.WatchCreateRequest":
    """Return the request of a watch."""
    filters = ([] if puts else [pb.WatchCreateRequest.NOPUT]) + (
        [] if deletes else [pb.WatchCreateRequest.NODELETE]
    )
    return pb.WatchCreateRequest(
        key=keys.key,
        range_end=keys.end,
        start_revision=as_number(revision, "revision"),
        progress_notify=progress,
        prev_kv=previous,
        filters=filters,
    )


# The numbers of RangeRequest's SortOrder and SortTarget.
_ORDERS = {"": 0, "ascending": 1, "descending": 2}
_TARGETS = {"key": 0, "version": 1, "create_revision": 2, "mod_revision": 3, "value": 4}
