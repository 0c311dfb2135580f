"""Whether a caller may do what it asks for: on arrival and before a read, and when it is applied.

What is decided here and now, a read or an operator's request, is decided for the caller as it is
now. What comes out of the log is decided for the user and the revision that the entry names, by the
state before it, so that every member decides alike. Every function returns the status that refuses,
or None; those that may take long return slices.

A lease is more than its name: whoever renews, revokes or joins it decides about all of its keys,
and so needs the right to write every one of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from kvorum.api.errors import AUTH_OLD_REVISION, USER_EMPTY, Status
from kvorum.api.requests import DeleteRange, Put, Range, Txn
from kvorum.member.identities import current
from kvorum.member.outbox import Result
from kvorum.mvcc import slices as limits
from kvorum.mvcc.slices import Meter, begun

if TYPE_CHECKING:
    from kvorum.api.requests import Operation
    from kvorum.member.callers import Caller
    from kvorum.member.member import Member
    from kvorum.member.results import Sliced, Slices

    Checked = Generator[None, None, Status | None]

PLAIN_OPERATIONS_MAX = 16
"""A transaction with at most so many compares, or operations in a branch, is checked at once."""

# Here and now.


def is_asked(member: Member, caller: Caller) -> bool:
    """Return whether a caller has to have rights: members and their own work need none."""
    return member.auth.is_enabled and caller.identifying is not None


def identity_refusal(member: Member, caller: Caller) -> Status | None:
    """Refuse a caller who does not say who it is; whether that user exists does not matter."""
    if not is_asked(member, caller):
        return None
    caller = current(member, caller)
    return caller.refusal or (USER_EMPTY if caller.is_nobody else None)


def admin_refusal(member: Member, caller: Caller) -> Status | None:
    """Refuse a caller without the role `root`."""
    if not is_asked(member, caller):
        return None
    caller = current(member, caller)
    return caller.refusal or member.auth.admin_refusal(caller.user)


def read_refusal(member: Member, caller: Caller, key: bytes, range_end: bytes) -> Status | None:
    """Refuse a caller who may not read a range of keys now."""
    if not is_asked(member, caller):
        return None
    caller = current(member, caller)
    return caller.refusal or keys_refusal(member, caller, key, range_end, is_write=False)


def still_current(member: Member, caller: Caller, result: Sliced) -> Sliced:
    """Let a result of a read pass, unless users or roles were changed while it was made.

    Nobody passes, too: it was only let through where there was nothing to check.
    """
    if isinstance(result, bytes):
        return AUTH_OLD_REVISION if is_outdated(member, caller) else result
    if isinstance(result, tuple):
        return result
    # Begun at once: closing what was never begun would not reach the read, and what it has pinned.
    return begun(_still_current(member, caller, result))


def _still_current(member: Member, caller: Caller, slices: Slices) -> Slices:
    result: Result = yield from slices
    if isinstance(result, bytes) and is_outdated(member, caller):
        return AUTH_OLD_REVISION
    return result


def is_outdated(member: Member, caller: Caller) -> bool:
    """Return whether users or roles were changed since it was found out who calls."""
    return caller.revision not in (0, member.auth.revision)


# Keys, for a caller as it is given.


def keys_refusal(
    member: Member, caller: Caller, key: bytes, range_end: bytes, *, is_write: bool
) -> Status | None:
    """Refuse a caller who may not read, or write, a range of keys."""
    return member.auth.keys_refusal(caller.user, caller.revision, key, range_end, is_write)


def _is_slice_over(meter: Meter) -> bool:
    """Count one more check; return whether the turn may end now."""
    meter.spent += limits.BYTES_PER_SLICE // limits.KEYS_PER_SLICE
    if meter.spent < limits.BYTES_PER_SLICE:
        return False
    meter.spent = 0
    return True


def lease_refusal(
    member: Member, caller: Caller, lease_id: int, meter: Meter, *, is_write: bool
) -> Checked:
    """Refuse a caller who may not read, or write, every key of a lease; a lease may have none."""
    if member.auth.admin_refusal(caller.user) is None:
        return None
    for key in member.lessor.keys_of(lease_id):
        refusal = keys_refusal(member, caller, key, b"", is_write=is_write)
        if refusal is not None:
            return refusal
        if _is_slice_over(meter):
            yield
    return None


# Out of the log.


def put_refusal(member: Member, caller: Caller, request: Put, meter: Meter) -> Checked:
    """Refuse a put."""
    refusal = keys_refusal(member, caller, request.key, b"", is_write=True)
    if refusal is None and request.lease:
        refusal = yield from lease_refusal(member, caller, request.lease, meter, is_write=True)
    if refusal is None and request.prev_kv:
        refusal = keys_refusal(member, caller, request.key, b"", is_write=False)
    return refusal


def plain_put_refusal(member: Member, caller: Caller, request: Put) -> Status | None:
    """Refuse a put without a lease, which takes one or two look-ups."""
    refusal = keys_refusal(member, caller, request.key, b"", is_write=True)
    if refusal is None and request.prev_kv:
        refusal = keys_refusal(member, caller, request.key, b"", is_write=False)
    return refusal


def delete_refusal(member: Member, caller: Caller, request: DeleteRange) -> Status | None:
    """Refuse a deletion."""
    key, range_end = request.key, request.range_end
    refusal = keys_refusal(member, caller, key, range_end, is_write=True)
    if refusal is None and request.prev_kv:
        refusal = keys_refusal(member, caller, key, range_end, is_write=False)
    return refusal


def plain_txn_refusal(member: Member, caller: Caller, request: Txn) -> Status | Checked | None:
    """Refuse a transaction, at once if it is short; otherwise return slices that do."""
    if member.auth.is_all_permitted(caller.user, caller.revision):
        return None
    success, failure = request.success, request.failure
    if max(len(request.compares), len(success), len(failure)) > PLAIN_OPERATIONS_MAX:
        return txn_refusal(member, caller, request, Meter())
    for compare in request.compares:
        refusal = keys_refusal(member, caller, compare.key, compare.range_end, is_write=False)
        if refusal is not None:
            return refusal
    for operations in (success, failure):
        for each in operations:
            if isinstance(each, Txn) or (isinstance(each, Put) and each.lease):
                return txn_refusal(member, caller, request, Meter())
            refusal = _operation_refusal(member, caller, each)
            if refusal is not None:
                return refusal
    return None


def txn_refusal(member: Member, caller: Caller, request: Txn, meter: Meter) -> Checked:
    """Refuse a transaction: every compare, and both branches, whichever of them will run."""
    for compare in request.compares:
        refusal = keys_refusal(member, caller, compare.key, compare.range_end, is_write=False)
        if refusal is not None:
            return refusal
        if _is_slice_over(meter):
            yield
    for operations in (request.success, request.failure):
        refusal = yield from _branch_refusal(member, caller, operations, meter)
        if refusal is not None:
            return refusal
    return None


def _branch_refusal(
    member: Member, caller: Caller, operations: Sequence[Operation], meter: Meter
) -> Checked:
    for each in operations:
        if isinstance(each, Txn):
            refusal = yield from txn_refusal(member, caller, each, meter)
        elif isinstance(each, Put) and each.lease:
            refusal = yield from put_refusal(member, caller, each, meter)
        else:
            refusal = _operation_refusal(member, caller, each)
        if refusal is not None:
            return refusal
        if _is_slice_over(meter):
            yield
    return None


def _operation_refusal(member: Member, caller: Caller, each: Operation) -> Status | None:
    """Refuse an operation of a transaction that needs no slices."""
    if isinstance(each, Put):
        return plain_put_refusal(member, caller, each)
    if isinstance(each, Range):
        return keys_refusal(member, caller, each.key, each.range_end, is_write=False)
    if isinstance(each, DeleteRange):
        # Unlike a deletion by itself, it is refused for what it reads first.
        key, range_end = each.key, each.range_end
        if each.prev_kv:
            refusal = keys_refusal(member, caller, key, range_end, is_write=False)
            if refusal is not None:
                return refusal
        return keys_refusal(member, caller, key, range_end, is_write=True)
    return None
