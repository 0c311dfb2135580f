"""Run Put, DeleteRange and Txn against the store, and encode their answers.

A transaction takes three passes. The first evaluates every compare of the tree, nested ones too,
against the state before the transaction, which yields the path: the operations to run. The second
checks those operations in order against the same state; the first that cannot run refuses the whole
transaction. The third runs them under one revision, each seeing the writes of those before it.

Nested transactions may amount to a hundred thousand operations, and a few operations to a hundred
megabytes. Each pass therefore runs in slices, which one meter measures through all levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvorum.api import requests as api
from kvorum.api.errors import (
    COMPACTED,
    FUTURE_REV,
    KEY_NOT_FOUND,
    LEASE_NOT_FOUND,
    StatusError,
)
from kvorum.api.limits import PRODUCTION
from kvorum.api.requests import DeleteRange, Put, Range, Txn
from kvorum.api.responses import (
    DELETE_RANGE_RESPONSE,
    DELETED_KVS,
    NESTED_TXN_HEADER,
    PUT_RESPONSE,
    RANGE_RESPONSE,
    TXN_RESPONSE,
    deleted_body_of_one,
    deleted_field,
    operation_field,
    operation_header,
    put_body,
    range_body_of_one,
    succeeded_field,
    txn_body_of_one_put,
)
from kvorum.state.apply.callers import current
from kvorum.state.apply.compares import RangeCompares, fulfils, holds_for_row
from kvorum.state.apply.permissions import needs_permission, refuse_if_outdated, txn_refusal
from kvorum.state.apply.ranges import is_plain, range_options
from kvorum.state.mvcc.keyvalue import lease_of, value_of
from kvorum.state.mvcc.ranges import field_parts, reply_parts, rows_in_slices
from kvorum.state.mvcc.slices import Meter, free_in_slices, run_first_slice
from kvorum.storage.backend.quota import PUT_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from kvorum.api.requests import Compare, Operation
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Result, Sliced, Slices
    from kvorum.state.apply.state import State
    from kvorum.state.lease.lessor import Lessor
    from kvorum.state.mvcc.store import Store
    from kvorum.state.mvcc.transaction import WriteTransaction

    Work = Generator[None, None, list[bytes]]

# A plain variable, which tests make large.
OPERATION_BYTES = PRODUCTION.slice_bytes // PRODUCTION.slice_keys
"""The bytes that an operation counts for, besides its own."""

_PLAIN_COMPARES_MAX: Final = 8
"""More compares may read more bytes than a slice allows."""


class Path:
    """The operations of a transaction that will run, and the path of each nested transaction."""

    __slots__ = ("nested", "operations", "succeeded")

    def __init__(
        self, succeeded: bool, operations: Sequence[Operation], nested: list[Path | None]
    ) -> None:
        self.succeeded = succeeded
        self.operations = operations
        self.nested = nested


# Single writes.


def put(state: State, request: Put, wanted: bool) -> Result:
    """Apply a put of any kind; return its encoded response."""
    revision, previous = _put_alone(state, request)
    return state.header.field(revision) + put_body(previous) if wanted else b""


def _put_alone(state: State, request: Put) -> tuple[int, bytes | None]:
    """Put a key in its own transaction; return the revision and, if wanted, the previous row."""
    store = state.store
    needs_previous = _needs_previous(request)
    store.ranges += needs_previous
    check_put(store, state.lessor, request)
    key = request.key
    previous = None
    if needs_previous:
        previous = store.get(key)
        store.transactions_of_many += 1
    if previous is None:
        return store.put(key, request.value, request.lease), None
    value, lease = _kept(previous, request)
    return store.put(key, value, lease), previous if request.prev_kv else None


def delete_range(state: State, request: DeleteRange, wanted: bool) -> Sliced:
    """Apply a deletion; return its encoded response, or slices if it is long."""
    return run_first_slice(_delete_range(state, request, wanted))


def _delete_range(state: State, request: DeleteRange, wanted: bool) -> Slices:
    transaction = state.store.begin()
    parts = yield from _delete(state.store, transaction, request, wanted)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return b"".join([state.header.field(revision), *parts])


def revoke(state: State, lease_id: int) -> Slices:
    """Delete the keys of a lease, in order and under one revision, and then the lease itself."""
    lessor, store = state.lessor, state.store
    if lessor.key_count(lease_id) > state.limits.slice_keys:
        keys = yield from lessor.sorted_keys_in_slices(lease_id)
    else:
        keys = lessor.sorted_keys(lease_id)
    transaction = store.begin()
    yield from transaction.delete_keys_slices(keys)
    # Within the transaction, so that no seal comes between the keys and the lease.
    lessor.forget(lease_id)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return state.header.field(revision)


# Transactions.


def txn(state: State, request: Txn, wanted: bool) -> Sliced:
    """Apply a transaction; return its encoded response, or slices if it is long."""
    if not _is_plain(request):
        return run_first_slice(_txn(state, request, wanted))
    store = state.store
    succeeded = True
    reads = 0
    for compare in request.compares:
        reads += 1
        if not _key_holds(store, compare):
            succeeded = False
            break
    operations = request.success if succeeded else request.failure
    if len(operations) == 1:
        only = operations[0]
        if isinstance(only, Put):
            store.count_reads(reads + _needs_previous(only))
            return _single_put(state, only, succeeded)
    for each in operations:
        _check(store, state.lessor, each)
        reads += isinstance(each, Put) and _needs_previous(each)
    store.count_reads(reads)
    path = Path(succeeded, operations, [None] * len(operations))
    return run_first_slice(_run(state, path, wanted, Meter(state.limits)))


def _single_put(state: State, request: Put, succeeded: bool) -> bytes:
    """Run a single put, as most transactions are, without a write transaction of the store."""
    revision, previous = _put_alone(state, request)
    return state.header.field(revision) + txn_body_of_one_put(succeeded, revision, previous)


def _txn(state: State, request: Txn, wanted: bool) -> Slices:
    meter = Meter(state.limits)
    path = yield from choose(state.store, request, meter)
    yield from check_path(state.store, state.lessor, path, meter)
    state.store.count_reads(meter.reads)
    return (yield from _run(state, path, wanted, meter))


def _run(state: State, path: Path, wanted: bool, meter: Meter) -> Slices:
    transaction = state.store.begin()
    parts = yield from _execute(state.store, transaction, path, wanted, meter)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return b"".join([state.header.field(revision), *parts])


def read_txn(state: State, caller: Caller, request: Txn) -> Sliced:
    """Answer a read-only transaction from the current state."""
    if needs_permission(state, caller):
        return run_first_slice(_checked_read_txn(state, current(state, caller), request))
    return run_first_slice(_read_txn(state, request))


def _checked_read_txn(state: State, caller: Caller, request: Txn) -> Slices:
    refusal = caller.refusal
    if refusal is None:
        refusal = yield from txn_refusal(state, caller, request, Meter(state.limits))
    if refusal is not None:
        return refusal
    result = refuse_if_outdated(state, caller, _read_txn(state, request))
    if isinstance(result, (bytes, tuple)):
        return result
    return (yield from result)


def _read_txn(state: State, request: Txn) -> Slices:
    store, meter = state.store, Meter(state.limits)
    try:
        revision = store.revision
        path = yield from choose(store, request, meter, revision)
        yield from check_path(store, state.lessor, path, meter)
        header = operation_header(revision)
        parts = [succeeded_field(path.succeeded)]
        for each in path.operations:
            assert isinstance(each, Range), f"{each} in a transaction that only reads"
            options = range_options(each)
            if options.revision <= 0:
                # All ranges see one state, although writes may come between two slices.
                options = options._replace(revision=revision)
            meter.reads += 1
            result = yield from store.range_slices(options)
            body = yield from reply_parts(result, state.limits)
            parts += operation_field(RANGE_RESPONSE, header, body)
            meter.spent += OPERATION_BYTES + sum(map(len, body))
            if meter.spent >= meter.slice_bytes:
                meter.spent = 0
                yield
    except StatusError as error:
        return error.status
    store.count_reads(meter.reads)
    return b"".join([state.header.field(revision), *parts])


def _is_plain(request: Txn) -> bool:
    """Return whether a transaction has few compares, all of single keys, and nothing nested."""
    if len(request.compares) > _PLAIN_COMPARES_MAX:
        return False
    for compare in request.compares:
        if compare.range_end:
            return False
    for operations in (request.success, request.failure):
        for each in operations:
            if isinstance(each, Txn):
                return False
    return True


# The path.


def choose(
    store: Store, request: Txn, meter: Meter, revision: int = 0
) -> Generator[None, None, Path]:
    """Evaluate the compares; return the path of operations to run."""
    return _choose(store, request, RangeCompares(store, request, revision), meter, revision)


def _choose(
    store: Store, request: Txn, ranges: RangeCompares, meter: Meter, revision: int
) -> Generator[None, None, Path]:
    succeeded = True
    for compare in request.compares:
        meter.spent += OPERATION_BYTES
        meter.reads += 1
        if meter.spent >= meter.slice_bytes:
            meter.spent = 0
            yield
        if compare.range_end:
            holds = yield from ranges.holds(compare, meter)
        elif compare.target in (api.VALUE, api.LEASE) or revision:
            kv = store.get(compare.key, revision)
            meter.spent += 0 if kv is None else len(kv)
            holds = holds_for_row(compare.result, compare.target, kv, compare.operand)
        else:
            holds = _key_holds(store, compare)
        if not holds:
            succeeded = False
            break
    operations = request.success if succeeded else request.failure
    nested: list[Path | None] = []
    for each in operations:
        if isinstance(each, Txn):
            meter.spent += OPERATION_BYTES
            if meter.spent >= meter.slice_bytes:
                meter.spent = 0
                yield
            nested.append((yield from _choose(store, each, ranges, meter, revision)))
        else:
            nested.append(None)
    return Path(succeeded, operations, nested)


def _key_holds(store: Store, compare: Compare) -> bool:
    """Compare one key at the current revision, reading its row only if necessary."""
    result, target, operand = compare.result, compare.target, compare.operand
    key = compare.key
    revision = store.revision_of(key)
    if not revision:
        return holds_for_row(result, target, None, operand)
    if target == api.MOD:
        return fulfils(result, revision >> 32, operand)
    if target in (api.VERSION, api.CREATE):
        # The index holds them, so this reads and decodes no row.
        create, _, version = store.facts_of(key, revision)
        return fulfils(result, version if target == api.VERSION else create, operand)
    return holds_for_row(result, target, store.row(revision), operand)


def check_path(
    store: Store, lessor: Lessor, path: Path, meter: Meter
) -> Generator[None, None, None]:
    """Raise StatusError for the first operation that cannot run."""
    for each, nested in zip(path.operations, path.nested, strict=True):
        meter.spent += OPERATION_BYTES
        if meter.spent >= meter.slice_bytes:
            meter.spent = 0
            yield
        if nested is None:
            _check(store, lessor, each)
            meter.reads += isinstance(each, Put) and _needs_previous(each)
        else:
            yield from check_path(store, lessor, nested, meter)


def _check(store: Store, lessor: Lessor, each: Operation) -> None:
    if isinstance(each, Put):
        check_put(store, lessor, each)
    elif isinstance(each, Range):
        revision = each.revision
        if revision > store.revision:
            raise StatusError(FUTURE_REV)
        if revision and revision < store.compacted_revision:
            raise StatusError(COMPACTED)


def check_put(store: Store, lessor: Lessor, request: Put) -> None:
    """Raise StatusError if a put cannot run."""
    if request.lease and request.lease not in lessor:
        raise StatusError(LEASE_NOT_FOUND)
    if (request.ignore_value or request.ignore_lease) and not store.revision_of(request.key):
        raise StatusError(KEY_NOT_FOUND)


# Execution.


def _execute(
    store: Store, transaction: WriteTransaction, path: Path, wanted: bool, meter: Meter
) -> Work:
    """Run the operations; return the encoded response without its header, in parts."""
    parts = [succeeded_field(path.succeeded)]
    body: list[bytes]
    for each, nested in zip(path.operations, path.nested, strict=True):
        if isinstance(each, Put):
            body = [_put(transaction, each)]
            response = PUT_RESPONSE
        elif isinstance(each, Range):
            if not wanted:
                continue
            if is_plain(each):
                kv = transaction.get(each.key)
                body = [] if kv is None else [range_body_of_one(kv)]
            else:
                result = yield from transaction.range_slices(range_options(each))
                body = yield from reply_parts(result, store.limits)
            response = RANGE_RESPONSE
        elif isinstance(each, DeleteRange):
            if each.range_end:
                body = yield from _delete(store, transaction, each, wanted)
            else:
                body = _delete_one(store, transaction, each, wanted)
            response = DELETE_RANGE_RESPONSE
        else:
            assert nested is not None, "an empty operation was not refused"
            body = yield from _execute(store, transaction, nested, wanted, meter)
            response = TXN_RESPONSE
        header = NESTED_TXN_HEADER if nested else operation_header(transaction.revision)
        # The recursive call has already counted a nested body.
        meter.spent += OPERATION_BYTES + (sum(map(len, body)) if nested is None else 0)
        parts += operation_field(response, header, body)
        if meter.spent >= meter.slice_bytes:
            meter.spent = 0
            yield
    return parts


def _put(transaction: WriteTransaction, request: Put) -> bytes:
    key = request.key
    previous = transaction.get(key) if _needs_previous(request) else None
    if previous is None:
        transaction.put(key, request.value, request.lease)
        return b""
    value, lease = _kept(previous, request)
    transaction.put(key, value, lease)
    return put_body(previous if request.prev_kv else None)


def _delete_one(
    store: Store, transaction: WriteTransaction, request: DeleteRange, wanted: bool
) -> list[bytes]:
    if request.prev_kv:
        transaction.count_read()
    previous = transaction.delete_one(request.key)
    if not previous or not wanted:
        return []
    return [deleted_body_of_one(store.row(previous) if request.prev_kv else None)]


def _delete(
    store: Store, transaction: WriteTransaction, request: DeleteRange, wanted: bool
) -> Work:
    if request.prev_kv:
        transaction.count_read()
    deleted = yield from transaction.delete_range_slices(request.key, request.range_end)
    parts = [deleted_field(len(deleted))] if deleted and wanted else []
    if request.prev_kv and wanted:
        revisions = [revision for _, revision in deleted]
        kvs = yield from rows_in_slices(store.backend, revisions, store.limits)
        fields = yield from field_parts(DELETED_KVS, kvs, store.limits)
        parts += fields
    yield from free_in_slices(deleted, store.limits.slice_freed_items)
    return parts


def _needs_previous(request: Put) -> bool:
    return request.prev_kv or request.ignore_value or request.ignore_lease


def _kept(previous: bytes, request: Put) -> tuple[bytes, int]:
    """Return the value and lease of a put over an existing key-value."""
    return (
        value_of(previous) if request.ignore_value else request.value,
        lease_of(previous) if request.ignore_lease else request.lease,
    )


def put_cost(request: Txn) -> int:
    """Return a transaction's cost against the quota: that of the costlier branch."""
    cost = _cost(request.success)
    return max(cost, _cost(request.failure)) if request.failure else cost


def _cost(operations: Sequence[Operation]) -> int:
    cost = 0
    for each in operations:
        if isinstance(each, Put):
            cost += PUT_BYTES + len(each.key) + len(each.value)
        elif isinstance(each, Txn):
            cost += put_cost(each)
    return cost
