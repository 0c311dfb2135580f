"""Put, DeleteRange and Txn against the store, and their answers.

A transaction is done in three passes. First the path: every compare of the tree, nested ones
too, is evaluated against the state before, and that decides which operations run. Then those
operations are checked in their order, against the same state; the first that cannot run refuses
the whole. Then they run, each seeing what the ones before it wrote, under one revision.

Nested transactions may amount to a hundred thousand operations, and a few operations to a hundred
megabytes. A pass is done in slices, which one meter measures through all levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from kvorum.api import requests as api
from kvorum.api.codec import length_delimited, varint
from kvorum.api.errors import (
    COMPACTED,
    FUTURE_REV,
    KEY_NOT_FOUND,
    LEASE_NOT_FOUND,
    StatusError,
)
from kvorum.backend.quota import PUT_BYTES
from kvorum.member.ranges import found_one, is_plain, range_options
from kvorum.mvcc.keyvalue import fields_of, lease_of, value_of
from kvorum.mvcc.ranges import RangeOptions, field_parts, reply_parts, rows_in_slices
from kvorum.mvcc.slices import BYTES_PER_SLICE, KEYS_PER_SLICE, Meter, begun, freed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from kvorum.api.requests import Compare, DeleteRange, Operation, Put, Range, Txn
    from kvorum.backend import Backend
    from kvorum.lease.lessor import Lessor
    from kvorum.member.member import Member
    from kvorum.member.results import Sliced, Slices
    from kvorum.mvcc.store import Store
    from kvorum.mvcc.transaction import WriteTransaction

    Work = Generator[None, None, list[bytes]]

_NESTED_HEADER: Final = b"\x0a\x00"

# A plain variable, which tests make large.
OPERATION_BYTES = BYTES_PER_SLICE // KEYS_PER_SLICE
"""What an operation counts as, besides its bytes."""

_PLAIN_COMPARES_MAX: Final = 8
"""More may have to read more bytes than a slice has."""


class Path:
    """The operations of a transaction that run, and for each nested one its own path."""

    __slots__ = ("nested", "operations", "succeeded")

    def __init__(
        self, succeeded: bool, operations: Sequence[Operation], nested: list[Path | None]
    ) -> None:
        self.succeeded = succeeded
        self.operations = operations
        self.nested = nested


# Single writes.


def put(member: Member, request: Put, wanted: bool) -> Sliced:
    """Apply a put of any kind; return its encoded response."""
    revision, previous = _put_alone(member, request)
    return member.header.field(revision) + _prev_kv(previous) if wanted else b""


def _put_alone(member: Member, request: Put) -> tuple[int, bytes | None]:
    """Put a key in a transaction of its own; return the revision and what was asked for before."""
    store = member.store
    check_put(store, member.lessor, request)
    key, value, lease, prev_kv, ignore_value, ignore_lease = request
    previous = store.get(key) if prev_kv or ignore_value or ignore_lease else None
    if previous is not None:
        value, lease = _kept(previous, request)
    return store.put(key, value, lease), previous if prev_kv else None


def delete_range(member: Member, request: DeleteRange, wanted: bool) -> Sliced:
    """Apply a deletion; return its encoded response, or slices if it is long."""
    return begun(_delete_range(member, request, wanted))


def _delete_range(member: Member, request: DeleteRange, wanted: bool) -> Slices:
    transaction = member.store.begin()
    parts = yield from _delete(member.backend, transaction, request, wanted)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return b"".join([member.header.field(revision), *parts])


def revoke(member: Member, lease_id: int) -> Slices:
    """Delete the keys of a lease, in order and under one revision, and then the lease."""
    lessor, store = member.lessor, member.store
    if lessor.key_count(lease_id) > KEYS_PER_SLICE:
        keys = yield from lessor.sorted_keys_in_slices(lease_id)
    else:
        keys = lessor.sorted_keys(lease_id)
    transaction = store.begin()
    yield from transaction.delete_keys_slices(keys)
    # Within the transaction, so that no seal comes between the keys and the lease.
    lessor.forget(lease_id)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return member.header.field(revision)


# Transactions.


def txn(member: Member, request: Txn, wanted: bool) -> Sliced:
    """Apply a transaction; return its encoded response, or slices if it is long."""
    if not _is_plain(request):
        return begun(_txn(member, request, wanted))
    store = member.store
    compares, success, failure = request
    succeeded = True
    for compare in compares:
        if not _key_holds(store, compare):
            succeeded = False
            break
    operations = success if succeeded else failure
    if len(operations) == 1 and operations[0][0] == api.PUT:
        return _single_put(member, cast("Put", operations[0][1]), succeeded)
    for kind, each in operations:
        _check(store, member.lessor, kind, each)
    path = Path(succeeded, operations, [None] * len(operations))
    return begun(_run(member, path, wanted, Meter()))


def _single_put(member: Member, request: Put, succeeded: bool) -> bytes:
    """Run what most transactions amount to, without making a transaction of it."""
    revision, previous = _put_alone(member, request)
    body = _header(revision) + _prev_kv(previous)
    # A ResponseOp around a PutResponse.
    response = b"\x12" + varint(len(body)) + body
    start = b"\x10\x01\x1a" if succeeded else b"\x1a"
    return member.header.field(revision) + start + varint(len(response)) + response


def _txn(member: Member, request: Txn, wanted: bool) -> Slices:
    meter = Meter()
    path = yield from choose(member.store, request, meter)
    yield from check_path(member.store, member.lessor, path, meter)
    return (yield from _run(member, path, wanted, meter))


def _run(member: Member, path: Path, wanted: bool, meter: Meter) -> Slices:
    transaction = member.store.begin()
    parts = yield from _execute(member.backend, transaction, path, wanted, meter)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return b"".join([member.header.field(revision), *parts])


def read_txn(member: Member, request: Txn) -> Sliced:
    """Answer a transaction that only reads, from the state as it is now."""
    return begun(_read_txn(member, request))


def _read_txn(member: Member, request: Txn) -> Slices:
    store, meter = member.store, Meter()
    try:
        revision = store.revision
        path = yield from choose(store, request, meter, revision)
        yield from check_path(store, member.lessor, path, meter)
        header = _header(revision)
        parts = [b"\x10\x01" if path.succeeded else b""]
        for kind, each in path.operations:
            assert kind == api.RANGE, f"operation {kind} in a transaction that only reads"
            options = range_options(cast("Range", each))
            if options.revision <= 0:
                # All of it is one state, though others may write between two slices.
                options = options._replace(revision=revision)
            result = yield from store.range_slices(options)
            body = yield from reply_parts(result)
            parts += _response(b"\x0a", header, body)
            meter.spent += OPERATION_BYTES + sum(map(len, body))
            if meter.spent >= BYTES_PER_SLICE:
                meter.spent = 0
                yield
    except StatusError as error:
        return error.status
    return b"".join([member.header.field(revision), *parts])


def _is_plain(request: Txn) -> bool:
    """Tell whether there is little to look at and nothing nested; many operations may run."""
    compares, success, failure = request
    if len(compares) > _PLAIN_COMPARES_MAX or any(compare[3] for compare in compares):
        return False
    return all(kind != api.TXN for operations in (success, failure) for kind, _ in operations)


# The path.


def choose(
    store: Store, request: Txn, meter: Meter, revision: int = 0
) -> Generator[None, None, Path]:
    """Evaluate the compares; return what is to run."""
    compares, success, failure = request
    succeeded = True
    for compare in compares:
        meter.spent += OPERATION_BYTES
        if meter.spent >= BYTES_PER_SLICE:
            meter.spent = 0
            yield
        if not (yield from _holds(store, compare, meter, revision)):
            succeeded = False
            break
    operations = success if succeeded else failure
    nested: list[Path | None] = []
    for kind, each in operations:
        if kind == api.TXN:
            meter.spent += OPERATION_BYTES
            if meter.spent >= BYTES_PER_SLICE:
                meter.spent = 0
                yield
            nested.append((yield from choose(store, cast("Txn", each), meter, revision)))
        else:
            nested.append(None)
    return Path(succeeded, operations, nested)


def _holds(
    store: Store, compare: Compare, meter: Meter, revision: int
) -> Generator[None, None, bool]:
    result, target, key, range_end, operand = compare
    if not range_end:
        if target not in (api.VALUE, api.LEASE) and not revision:
            return _key_holds(store, compare)
        kv = store.get(key, revision)
        meter.spent += 0 if kv is None else len(kv)
        return _compared(result, target, kv, operand)
    options = RangeOptions(key, range_end, revision=revision)
    found = yield from store.range_slices(options)
    kvs = found.kvs
    if not kvs:
        return _compared(result, target, None, operand)
    holds = True
    # They are freed as they are looked at: all at once would outlast the turn.
    while kvs:
        kv = kvs.pop()
        holds = holds and _compared(result, target, kv, operand)
        meter.spent += OPERATION_BYTES + len(kv)
        if meter.spent >= BYTES_PER_SLICE:
            meter.spent = 0
            yield
    return holds


def _key_holds(store: Store, compare: Compare) -> bool:
    """Compare one key at the current revision; the row is read only if it has to be."""
    result, target, key, _, operand = compare
    revision = store.revision_of(key)
    if not revision:
        return _compared(result, target, None, operand)
    if target == api.MOD:
        return _fulfils(result, revision >> 32, operand)
    if target in (api.VERSION, api.CREATE):
        # The index knows them: no row is read, and none is taken apart.
        create, _, version = store.facts_of(key, revision)
        return _fulfils(result, version if target == api.VERSION else create, operand)
    return _compared(result, target, store.row(revision), operand)


def _compared(result: int, target: int, kv: bytes | None, operand: int | bytes) -> bool:
    """Compare a stored key-value, or the absence of one, with what was given."""
    stored: Any
    if target == api.VALUE:
        if kv is None:
            return False
        stored = value_of(kv)
    elif target > api.LEASE or target < 0:
        stored = operand  # etcd takes what it does not know for equal
    elif kv is None:
        stored = 0
    elif target == api.LEASE:
        stored = lease_of(kv)
    else:
        fields = fields_of(kv)
        stored = (fields.version, fields.create_revision, fields.mod_revision)[target]
    return _fulfils(result, stored, operand)


def _fulfils(result: int, stored: Any, operand: Any) -> bool:
    if result == api.EQUAL:
        return bool(stored == operand)
    if result == api.GREATER:
        return bool(stored > operand)
    if result == api.LESS:
        return bool(stored < operand)
    return bool(stored != operand) if result == api.NOT_EQUAL else True


def check_path(
    store: Store, lessor: Lessor, path: Path, meter: Meter
) -> Generator[None, None, None]:
    """Raise StatusError for the first operation that cannot run."""
    for (kind, each), nested in zip(path.operations, path.nested, strict=True):
        meter.spent += OPERATION_BYTES
        if meter.spent >= BYTES_PER_SLICE:
            meter.spent = 0
            yield
        if nested is None:
            _check(store, lessor, kind, each)
        else:
            yield from check_path(store, lessor, nested, meter)


def _check(store: Store, lessor: Lessor, kind: int, each: Any) -> None:
    if kind == api.PUT:
        check_put(store, lessor, each)
    elif kind == api.RANGE:
        revision = each[3]
        if revision > store.revision:
            raise StatusError(FUTURE_REV)
        if revision and revision < store.compacted_revision:
            raise StatusError(COMPACTED)


def check_put(store: Store, lessor: Lessor, request: Put) -> None:
    """Raise StatusError if a put cannot run."""
    key, _, lease, _, ignore_value, ignore_lease = request
    if lease and lease not in lessor:
        raise StatusError(LEASE_NOT_FOUND)
    if (ignore_value or ignore_lease) and not store.revision_of(key):
        raise StatusError(KEY_NOT_FOUND)


# Execution.


def _execute(
    backend: Backend, transaction: WriteTransaction, path: Path, wanted: bool, meter: Meter
) -> Work:
    """Run the operations; return the encoded response but for its header, in parts."""
    parts = [b"\x10\x01" if path.succeeded else b""]
    body: list[bytes]
    for (kind, each), nested in zip(path.operations, path.nested, strict=True):
        if kind == api.PUT:
            body = [_put(transaction, cast("Put", each))]
            response = b"\x12"
        elif kind == api.RANGE:
            if not wanted:
                continue
            request = cast("Range", each)
            if is_plain(request):
                kv = transaction.get(request[0])
                body = [] if kv is None else [found_one(kv)]
            else:
                result = yield from transaction.range_slices(range_options(request))
                body = yield from reply_parts(result)
            response = b"\x0a"
        elif kind == api.DELETE_RANGE:
            deletion = cast("DeleteRange", each)
            if deletion[1]:
                body = yield from _delete(backend, transaction, deletion, wanted)
            else:
                body = _delete_one(backend, transaction, deletion, wanted)
            response = b"\x1a"
        else:
            assert nested is not None, f"operation of kind {kind} was not refused"
            body = yield from _execute(backend, transaction, nested, wanted, meter)
            response = b"\x22"
        header = _header(transaction.revision) if nested is None else _NESTED_HEADER
        # What is nested has been counted.
        meter.spent += OPERATION_BYTES + (sum(map(len, body)) if nested is None else 0)
        parts += _response(response, header, body)
        if meter.spent >= BYTES_PER_SLICE:
            meter.spent = 0
            yield
    return parts


def _response(kind: bytes, header: bytes, body: list[bytes]) -> list[bytes]:
    """Encode a ResponseOp around a response, whose parts may be large and are not copied."""
    size = len(header) + sum(map(len, body))
    head = kind + varint(size) + header
    return [b"\x1a" + varint(len(head) - len(header) + size) + head, *body]


def _put(transaction: WriteTransaction, request: Put) -> bytes:
    key, value, lease, prev_kv, ignore_value, ignore_lease = request
    previous = transaction.get(key) if prev_kv or ignore_value or ignore_lease else None
    if previous is not None:
        value, lease = _kept(previous, request)
    transaction.put(key, value, lease)
    return _prev_kv(previous if prev_kv else None)


def _delete_one(
    backend: Backend, transaction: WriteTransaction, request: DeleteRange, wanted: bool
) -> list[bytes]:
    key, _, prev_kv = request
    previous = transaction.delete_one(key)
    if not previous or not wanted:
        return []
    return [b"\x10\x01" + (_deleted_kv(backend.row(previous)) if prev_kv else b"")]


def _delete(
    backend: Backend, transaction: WriteTransaction, request: DeleteRange, wanted: bool
) -> Work:
    key, range_end, prev_kv = request
    deleted = yield from transaction.delete_range_slices(key, range_end)
    parts = [b"\x10" + varint(len(deleted))] if deleted and wanted else []
    if prev_kv and wanted:
        kvs = yield from rows_in_slices(backend, [revision for _, revision in deleted])
        fields = yield from field_parts(b"\x1a", kvs)
        parts += fields
    yield from freed(deleted)
    return parts


def _deleted_kv(kv: bytes) -> bytes:
    return b"\x1a" + varint(len(kv)) + kv


def _kept(previous: bytes, request: Put) -> tuple[bytes, int]:
    """Return value and lease of a put over what was there before."""
    _, value, lease, _, ignore_value, ignore_lease = request
    return (
        value_of(previous) if ignore_value else value,
        lease_of(previous) if ignore_lease else lease,
    )


def _header(revision: int) -> bytes:
    return length_delimited(b"\x0a", b"\x18" + varint(revision))


def _prev_kv(kv: bytes | None) -> bytes:
    return b"" if kv is None else b"\x12" + varint(len(kv)) + kv


def put_cost(request: Txn) -> int:
    """Return what a transaction costs against the quota."""
    _, success, failure = request
    return max(_cost(success), _cost(failure)) if failure else _cost(success)


def _cost(operations: Sequence[Operation]) -> int:
    cost = 0
    for kind, each in operations:
        if kind == api.PUT:
            request = cast("Put", each)
            cost += PUT_BYTES + len(request[0]) + len(request[1])
        elif kind == api.TXN:
            cost += put_cost(cast("Txn", each))
    return cost
