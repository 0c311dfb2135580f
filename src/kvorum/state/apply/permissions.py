"""Check a caller's permissions: on arrival, before a read, and when an entry is applied.

Checks of reads and of operators' requests use the caller's current identity. Checks of log entries
use the user and revision that the entry names, and the state before it, so that every member
decides alike. Every function returns the status that refuses, or None; functions that may take long
return slices.

A caller that renews or revokes a lease, or attaches a key to it, decides about all of its keys, and
so needs permission to write every one of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from kvorum.api.errors import AUTH_OLD_REVISION, USER_EMPTY, Status
from kvorum.api.requests import DeleteRange, Put, Range, Txn
from kvorum.state.apply.callers import current
from kvorum.state.apply.results import Result
from kvorum.state.mvcc.slices import Meter, run_first_slice

if TYPE_CHECKING:
    from kvorum.api.requests import Operation
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Sliced, Slices
    from kvorum.state.apply.state import State

    Checked = Generator[None, None, Status | None]

PLAIN_OPERATIONS_MAX = 16
"""Up to this many compares, or operations in a branch, a transaction is checked at once."""

# Checks at the time of the request.


def needs_permission(state: State, caller: Caller) -> bool:
    """Return whether a caller needs permissions: members and their own work need none."""
    return state.auth.is_enabled and caller.identifying is not None


def identity_refusal(state: State, caller: Caller) -> Status | None:
    """Refuse a caller without a valid identity; the user itself need not exist."""
    if not needs_permission(state, caller):
        return None
    caller = current(state, caller)
    return caller.refusal or (USER_EMPTY if caller.is_nobody else None)


def admin_refusal(state: State, caller: Caller) -> Status | None:
    """Refuse a caller without the role `root`."""
    if not needs_permission(state, caller):
        return None
    caller = current(state, caller)
    return caller.refusal or state.auth.admin_refusal(caller.user)


def read_refusal(state: State, caller: Caller, key: bytes, range_end: bytes) -> Status | None:
    """Refuse a caller without permission to read a range of keys now."""
    if not needs_permission(state, caller):
        return None
    caller = current(state, caller)
    return caller.refusal or keys_refusal(state, caller, key, range_end, is_write=False)


def refuse_if_outdated(state: State, caller: Caller, result: Sliced) -> Sliced:
    """Return a read's result, or a refusal if users or roles changed during the read.

    An anonymous caller passes: earlier checks let it through only where none was necessary.
    """
    if isinstance(result, bytes):
        return AUTH_OLD_REVISION if is_outdated(state, caller) else result
    if isinstance(result, tuple):
        return result
    # Start it at once: closing a generator that never started would not close the read in it, and
    # would leave the read's revision pinned.
    return run_first_slice(_refuse_outdated(state, caller, result))


def _refuse_outdated(state: State, caller: Caller, slices: Slices) -> Slices:
    result: Result = yield from slices
    if isinstance(result, bytes) and is_outdated(state, caller):
        return AUTH_OLD_REVISION
    return result


def is_outdated(state: State, caller: Caller) -> bool:
    """Return whether users or roles changed since the caller was identified."""
    return caller.revision not in (0, state.auth.revision)


# Checks of keys, for a caller at its revision.


def keys_refusal(
    state: State, caller: Caller, key: bytes, range_end: bytes, *, is_write: bool
) -> Status | None:
    """Refuse a caller without permission to read or write a range of keys."""
    return state.auth.keys_refusal(caller.user, caller.revision, key, range_end, is_write)


def _is_slice_over(meter: Meter) -> bool:
    """Count one more check; return whether the turn may end now."""
    meter.spent += meter.key_bytes
    if meter.spent < meter.slice_bytes:
        return False
    meter.spent = 0
    return True


def lease_refusal(
    state: State, caller: Caller, lease_id: int, meter: Meter, *, is_write: bool
) -> Checked:
    """Refuse a caller without permission to read or write every key of a lease, if any."""
    if state.auth.admin_refusal(caller.user) is None:
        return None
    for key in state.lessor.keys_of(lease_id):
        refusal = keys_refusal(state, caller, key, b"", is_write=is_write)
        if refusal is not None:
            return refusal
        if _is_slice_over(meter):
            yield
    return None


# Checks of log entries.


def put_refusal(state: State, caller: Caller, request: Put, meter: Meter) -> Checked:
    """Refuse a put that the caller has no permission for."""
    refusal = keys_refusal(state, caller, request.key, b"", is_write=True)
    if refusal is None and request.lease:
        refusal = yield from lease_refusal(state, caller, request.lease, meter, is_write=True)
    if refusal is None and request.prev_kv:
        refusal = keys_refusal(state, caller, request.key, b"", is_write=False)
    return refusal


def plain_put_refusal(state: State, caller: Caller, request: Put) -> Status | None:
    """Refuse a put without a lease; the check takes one or two look-ups."""
    refusal = keys_refusal(state, caller, request.key, b"", is_write=True)
    if refusal is None and request.prev_kv:
        refusal = keys_refusal(state, caller, request.key, b"", is_write=False)
    return refusal


def delete_refusal(state: State, caller: Caller, request: DeleteRange) -> Status | None:
    """Refuse a deletion that the caller has no permission for."""
    key, range_end = request.key, request.range_end
    refusal = keys_refusal(state, caller, key, range_end, is_write=True)
    if refusal is None and request.prev_kv:
        refusal = keys_refusal(state, caller, key, range_end, is_write=False)
    return refusal


def plain_txn_refusal(state: State, caller: Caller, request: Txn) -> Status | Checked | None:
    """Check a transaction: return None or the refusal if it is short, otherwise slices."""
    if state.auth.is_all_permitted(caller.user, caller.revision):
        return None
    success, failure = request.success, request.failure
    if max(len(request.compares), len(success), len(failure)) > PLAIN_OPERATIONS_MAX:
        return txn_refusal(state, caller, request, Meter(state.limits))
    for compare in request.compares:
        refusal = keys_refusal(state, caller, compare.key, compare.range_end, is_write=False)
        if refusal is not None:
            return refusal
    for operations in (success, failure):
        for each in operations:
            if isinstance(each, Txn) or (isinstance(each, Put) and each.lease):
                return txn_refusal(state, caller, request, Meter(state.limits))
            refusal = _operation_refusal(state, caller, each)
            if refusal is not None:
                return refusal
    return None


def txn_refusal(state: State, caller: Caller, request: Txn, meter: Meter) -> Checked:
    """Check a transaction: every compare, and both branches, whichever of them will run."""
    for compare in request.compares:
        refusal = keys_refusal(state, caller, compare.key, compare.range_end, is_write=False)
        if refusal is not None:
            return refusal
        if _is_slice_over(meter):
            yield
    for operations in (request.success, request.failure):
        refusal = yield from _branch_refusal(state, caller, operations, meter)
        if refusal is not None:
            return refusal
    return None


def _branch_refusal(
    state: State, caller: Caller, operations: Sequence[Operation], meter: Meter
) -> Checked:
    for each in operations:
        if isinstance(each, Txn):
            refusal = yield from txn_refusal(state, caller, each, meter)
        elif isinstance(each, Put) and each.lease:
            refusal = yield from put_refusal(state, caller, each, meter)
        else:
            refusal = _operation_refusal(state, caller, each)
        if refusal is not None:
            return refusal
        if _is_slice_over(meter):
            yield
    return None


def _operation_refusal(state: State, caller: Caller, each: Operation) -> Status | None:
    """Check an operation of a transaction that needs no slices."""
    if isinstance(each, Put):
        return plain_put_refusal(state, caller, each)
    if isinstance(each, Range):
        return keys_refusal(state, caller, each.key, each.range_end, is_write=False)
    if isinstance(each, DeleteRange):
        # Unlike for a lone deletion, etcd checks the read of previous values first.
        key, range_end = each.key, each.range_end
        if each.prev_kv:
            refusal = keys_refusal(state, caller, key, range_end, is_write=False)
            if refusal is not None:
                return refusal
        return keys_refusal(state, caller, key, range_end, is_write=True)
    return None
