"""Put, DeleteRange and Txn against the store, and their answers.

A transaction is done in three passes. First the path: every compare of the tree, nested ones
too, is evaluated against the state before, and that decides which operations run. Then those
operations are checked in their order, against the same state; the first that cannot run refuses
the whole. Then they run, each seeing what the ones before it wrote, under one revision.
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
from kvorum.member.ranges import range_options
from kvorum.mvcc.keyvalue import fields_of, lease_of, value_of
from kvorum.mvcc.ranges import RangeOptions, reply_parts
from kvorum.mvcc.slices import KEYS_PER_SLICE, freed, run_to_end

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from kvorum.api.requests import Compare, DeleteRange, Operation, Put, Range, Txn
    from kvorum.backend import Backend
    from kvorum.lease.lessor import Lessor
    from kvorum.member.member import Member
    from kvorum.member.slices import Sliced, Slices
    from kvorum.mvcc.store import Store
    from kvorum.mvcc.transaction import WriteTransaction

    Work = Generator[None, None, list[bytes]]

_NESTED_HEADER: Final = b"\x0a\x00"


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
    slices = _delete_range(member, request, wanted)
    if not request[1]:
        return run_to_end(slices)
    return slices


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
    """Apply a transaction; return its encoded response, or slices if it may be long."""
    if _may_be_long(request):
        return _txn(member, request, wanted)
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
    path = Path(succeeded, operations, [None] * len(operations))
    check_path(store, member.lessor, path)
    return run_to_end(_run(member, path, wanted))


def _single_put(member: Member, request: Put, succeeded: bool) -> bytes:
    """Run what most transactions amount to, without making a transaction of it."""
    revision, previous = _put_alone(member, request)
    body = _header(revision) + _prev_kv(previous)
    # A ResponseOp around a PutResponse.
    response = b"\x12" + varint(len(body)) + body
    start = b"\x10\x01\x1a" if succeeded else b"\x1a"
    return member.header.field(revision) + start + varint(len(response)) + response


def _txn(member: Member, request: Txn, wanted: bool) -> Slices:
    path = yield from choose(member.store, request)
    check_path(member.store, member.lessor, path)
    return (yield from _run(member, path, wanted))


def _run(member: Member, path: Path, wanted: bool) -> Slices:
    transaction = member.store.begin()
    parts = yield from _execute(member.backend, transaction, path, wanted)
    revision = transaction.commit()
    yield from transaction.end_slices()
    return b"".join([member.header.field(revision), *parts])


def read_txn(member: Member, request: Txn) -> Sliced:
    """Answer a transaction that only reads, from the state as it is now."""
    store = member.store
    try:
        if _may_be_long(request):
            return _read_txn(member, request)
        return run_to_end(_read_txn(member, request))
    except StatusError as error:
        return error.status
    finally:
        assert not store.is_writing or member.apply_queue.slices is not None


def _read_txn(member: Member, request: Txn) -> Slices:
    store = member.store
    try:
        revision = store.revision
        path = yield from choose(store, request, revision)
        check_path(store, member.lessor, path)
        parts = [b"\x10\x01" if path.succeeded else b""]
        for kind, each in path.operations:
            assert kind == api.RANGE, f"operation {kind} in a transaction that only reads"
            options = range_options(cast("Range", each))
            if options.revision <= 0:
                # All of it is one state, though others may write between two slices.
                options = options._replace(revision=revision)
            result = yield from store.range_slices(options)
            body = yield from reply_parts(result)
            parts += _response(b"\x0a", _header(revision), body)
    except StatusError as error:
        return error.status
    return b"".join([member.header.field(revision), *parts])


def _may_be_long(request: Txn) -> bool:
    compares, success, failure = request
    return any(compare[3] for compare in compares) or any(
        kind == api.TXN or (kind != api.PUT and cast("Range | DeleteRange", each)[1])
        for operations in (success, failure)
        for kind, each in operations
    )


# The path.


def choose(store: Store, request: Txn, revision: int = 0) -> Generator[None, None, Path]:
    """Evaluate the compares; return what is to run."""
    compares, success, failure = request
    succeeded = True
    for compare in compares:
        if not (yield from _holds(store, compare, revision)):
            succeeded = False
            break
    operations = success if succeeded else failure
    nested: list[Path | None] = []
    for kind, each in operations:
        if kind == api.TXN:
            nested.append((yield from choose(store, cast("Txn", each), revision)))
        else:
            nested.append(None)
    return Path(succeeded, operations, nested)


def _holds(store: Store, compare: Compare, revision: int) -> Generator[None, None, bool]:
    result, target, key, range_end, operand = compare
    if not range_end and not revision:
        return _key_holds(store, compare)
    if not range_end:
        return _compared(result, target, store.get(key, revision), operand)
    options = RangeOptions(key, range_end, revision=revision)
    found = yield from store.range_slices(options)
    kvs = found.kvs
    if not kvs:
        return _compared(result, target, None, operand)
    holds = True
    # They are freed as they are looked at: all at once would outlast the turn.
    while kvs:
        some = kvs[-KEYS_PER_SLICE:]
        del kvs[-KEYS_PER_SLICE:]
        holds = holds and all(_compared(result, target, kv, operand) for kv in some)
        if kvs:
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


def check_path(store: Store, lessor: Lessor, path: Path) -> None:
    """Raise StatusError for the first operation that cannot run."""
    for (kind, each), nested in zip(path.operations, path.nested, strict=True):
        if kind == api.PUT:
            check_put(store, lessor, cast("Put", each))
        elif kind == api.RANGE:
            revision = cast("Range", each)[3]
            if revision > store.revision:
                raise StatusError(FUTURE_REV)
            if revision and revision < store.compacted_revision:
                raise StatusError(COMPACTED)
        elif nested is not None:
            check_path(store, lessor, nested)


def check_put(store: Store, lessor: Lessor, request: Put) -> None:
    """Raise StatusError if a put cannot run."""
    key, _, lease, _, ignore_value, ignore_lease = request
    if lease and lease not in lessor:
        raise StatusError(LEASE_NOT_FOUND)
    if (ignore_value or ignore_lease) and not store.revision_of(key):
        raise StatusError(KEY_NOT_FOUND)


# Execution.


def _execute(backend: Backend, transaction: WriteTransaction, path: Path, wanted: bool) -> Work:
    """Run the operations; return the encoded response but for its header, in parts."""
    parts = [b"\x10\x01" if path.succeeded else b""]
    for (kind, each), nested in zip(path.operations, path.nested, strict=True):
        if kind == api.PUT:
            body = [_put(transaction, cast("Put", each))]
            response = b"\x12"
        elif kind == api.RANGE:
            if not wanted:
                continue
            options = range_options(cast("Range", each))
            result = yield from transaction.range_slices(options)
            body = yield from reply_parts(result)
            response = b"\x0a"
        elif kind == api.DELETE_RANGE:
            deletion = cast("DeleteRange", each)
            body = yield from _delete(backend, transaction, deletion, wanted)
            response = b"\x1a"
        else:
            assert nested is not None, f"operation of kind {kind} was not refused"
            body = yield from _execute(backend, transaction, nested, wanted)
            response = b"\x22"
        header = _header(transaction.revision) if nested is None else _NESTED_HEADER
        parts += _response(response, header, body)
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


def _delete(
    backend: Backend, transaction: WriteTransaction, request: DeleteRange, wanted: bool
) -> Work:
    key, range_end, prev_kv = request
    deleted = yield from transaction.delete_range_slices(key, range_end)
    parts = [b"\x10" + varint(len(deleted))] if deleted and wanted else []
    if prev_kv and wanted:
        for start in range(0, len(deleted), KEYS_PER_SLICE):
            if start:
                yield
            kvs = backend.rows([each[1] for each in deleted[start : start + KEYS_PER_SLICE]])
            parts.append(b"".join([b"\x1a" + varint(len(kv)) + kv for kv in kvs]))
    yield from freed(deleted)
    return parts


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
