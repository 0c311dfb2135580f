"""A model of etcd's answers: runs requests for keys on the history of effects.

All effects of a request follow from the state before it, so a check of its answer runs it once
more. A request that changes something runs on the state before the revision in its answer, and
must have the effects of that revision; any other runs on the state at that revision.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from kvorum.api.pb.etcdserverpb import (
    Compare,
    DeleteRangeRequest,
    DeleteRangeResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    ResponseOp,
    TxnRequest,
    TxnResponse,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.history import Row, is_in_range


class States(Protocol):
    """The state that requests run on: the history, or any other store of keys."""

    def all_keys(self) -> Iterable[bytes]:
        """Return every key that ever was, in order."""

    def at(self, key: bytes, main: int, /) -> bytes | None:
        """Return the encoded key-value of a key at a revision, None if it does not exist."""

    def range_at(self, key: bytes, end: bytes, main: int, /) -> list[bytes]:
        """Return the encoded key-values of a range at a revision, in the order of keys."""


class Transaction:
    """The state at a revision, and the rows that one request writes on top of it."""

    __slots__ = ("_before", "_history", "_written", "main", "rows")

    def __init__(self, history: States, before: int, main: int) -> None:
        self._history = history
        self._before = before
        self._written: dict[bytes, bytes | None] = {}
        self.main = main
        self.rows: list[Row] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the encoded key-value of a key."""
        if key in self._written:
            return self._written[key]
        return self._history.at(key, self._before)

    def range(self, key: bytes, end: bytes, revision: int = 0) -> list[bytes]:
        """Return the encoded key-values of a range, in the order of keys."""
        if revision or not self._written:
            return self._history.range_at(key, end, revision or self._before)
        keys = {each for each in self._history.all_keys() if is_in_range(each, key, end)}
        keys.update(each for each in self._written if is_in_range(each, key, end))
        found = [self.get(each) for each in sorted(keys)]
        return [kv for kv in found if kv is not None]

    def put(self, key: bytes, value: bytes, lease: int) -> None:
        """Write a key."""
        old = self.get(key)
        create, version = self.main, 1
        if old is not None:
            previous = KeyValue.FromString(old)
            create, version = previous.create_revision, previous.version + 1
        kv = KeyValue(
            key=key,
            create_revision=create,
            mod_revision=self.main,
            version=version,
            value=value,
            lease=lease,
        )
        self._write(key, kv.SerializeToString(), is_deletion=False)

    def delete(self, key: bytes) -> None:
        """Delete a key that exists."""
        self._write(key, KeyValue(key=key).SerializeToString(), is_deletion=True)

    def _write(self, key: bytes, kv: bytes, *, is_deletion: bool) -> None:
        revision = self.main << 32 | len(self.rows) << 1 | is_deletion
        self.rows.append((revision, kv))
        self._written[key] = None if is_deletion else kv


def run(
    history: States, request: Any, before: int, main: int
) -> tuple[RangeResponse | PutResponse | DeleteRangeResponse | TxnResponse, list[Row]]:
    """Return the answer to a request, without headers, and the rows it writes as revision main."""
    transaction = Transaction(history, before, main)
    if isinstance(request, RangeRequest):
        return _range(transaction, request), transaction.rows
    if isinstance(request, PutRequest):
        return _put(transaction, request), transaction.rows
    if isinstance(request, DeleteRangeRequest):
        return _delete(transaction, request), transaction.rows
    assert isinstance(request, TxnRequest), f"{request!r} is not about keys"
    return _txn(transaction, request, holds(transaction, request.compare)), transaction.rows


def _range(transaction: Transaction, request: RangeRequest) -> RangeResponse:
    found = transaction.range(request.key, request.range_end, request.revision)
    response = RangeResponse(count=len(found))
    if request.count_only:
        return response
    kvs = _chosen(request, [KeyValue.FromString(kv) for kv in found])
    limit = request.limit or len(kvs)
    response.more = len(kvs) > limit
    for kv in kvs[:limit]:
        if request.keys_only:
            kv.ClearField("value")
            # The index knows no leases.
            kv.ClearField("lease")
        response.kvs.append(kv)
    return response


def _chosen(request: RangeRequest, kvs: list[KeyValue]) -> list[KeyValue]:
    """Return the key-values that a range selects, in the order that it asks for."""
    low, high = request.min_create_revision, request.max_create_revision
    kvs = [
        kv for kv in kvs if low <= kv.create_revision and (not high or kv.create_revision <= high)
    ]
    if request.sort_order != RangeRequest.NONE:
        assert request.sort_target == RangeRequest.CREATE, "no client here sorts by anything else"
        is_reverse = request.sort_order == RangeRequest.DESCEND
        kvs.sort(key=lambda kv: kv.create_revision, reverse=is_reverse)
    return kvs


def _put(transaction: Transaction, request: PutRequest) -> PutResponse:
    response = PutResponse()
    old = transaction.get(request.key)
    if request.prev_kv and old is not None:
        response.prev_kv.ParseFromString(old)
    before = KeyValue() if old is None else KeyValue.FromString(old)
    value = before.value if request.ignore_value else request.value
    lease = before.lease if request.ignore_lease else request.lease
    transaction.put(request.key, value, lease)
    return response


def _delete(transaction: Transaction, request: DeleteRangeRequest) -> DeleteRangeResponse:
    found = transaction.range(request.key, request.range_end)
    response = DeleteRangeResponse(deleted=len(found))
    for kv in found:
        message = KeyValue.FromString(kv)
        if request.prev_kv:
            response.prev_kvs.append(message)
        transaction.delete(message.key)
    return response


def _txn(transaction: Transaction, request: TxnRequest, succeeded: bool) -> TxnResponse:
    response = TxnResponse(succeeded=succeeded)
    operations = request.success if succeeded else request.failure
    # All compares, nested ones too, see the state before anything is written.
    nested = [
        holds(transaction, each.request_txn.compare) if each.HasField("request_txn") else False
        for each in operations
    ]
    for operation, is_fulfilled in zip(operations, nested, strict=True):
        response.responses.append(_operation(transaction, operation, is_fulfilled))
    return response


def _operation(transaction: Transaction, operation: RequestOp, succeeds: bool) -> ResponseOp:
    if operation.HasField("request_range"):
        return ResponseOp(response_range=_range(transaction, operation.request_range))
    if operation.HasField("request_put"):
        return ResponseOp(response_put=_put(transaction, operation.request_put))
    if operation.HasField("request_delete_range"):
        deletion = operation.request_delete_range
        return ResponseOp(response_delete_range=_delete(transaction, deletion))
    return ResponseOp(response_txn=_txn(transaction, operation.request_txn, succeeds))


def holds(transaction: Transaction, compares: Sequence[Compare]) -> bool:
    """Return whether all compares hold."""
    return all(_is_true(transaction, compare) for compare in compares)


def _is_true(transaction: Transaction, compare: Compare) -> bool:
    encoded = transaction.get(compare.key)
    kv = KeyValue() if encoded is None else KeyValue.FromString(encoded)
    if compare.target == Compare.VALUE:
        return encoded is not None and _fulfils(compare.result, kv.value, compare.value)
    stored, given = {
        Compare.MOD: (kv.mod_revision, compare.mod_revision),
        Compare.CREATE: (kv.create_revision, compare.create_revision),
        Compare.VERSION: (kv.version, compare.version),
        Compare.LEASE: (kv.lease, compare.lease),
    }[compare.target]
    return _fulfils(compare.result, stored, given)


def _fulfils(result: int, stored: Any, given: Any) -> bool:
    if result == Compare.EQUAL:
        return bool(stored == given)
    if result == Compare.NOT_EQUAL:
        return bool(stored != given)
    return bool(stored > given) if result == Compare.GREATER else bool(stored < given)


def without_headers(response: Any) -> bytes:
    """Return an answer's bytes without its headers, including those of nested answers."""
    copy = type(response)()
    copy.CopyFrom(response)
    _strip(copy)
    encoded: bytes = copy.SerializeToString()
    return encoded


def _strip(response: Any) -> None:
    response.ClearField("header")
    if isinstance(response, TxnResponse):
        for each in response.responses:
            _strip(getattr(each, each.WhichOneof("response")))
