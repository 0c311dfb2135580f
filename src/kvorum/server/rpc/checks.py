"""Validate requests by their content alone, before the member proposes or reads anything.

Every `check_` function takes a request of `kvorum.api.requests` and returns the status that refuses
it, or None. The order of the checks is part of the contract: of two mistakes in a request, every
server reports the same one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.limits import PRODUCTION
from kvorum.api.requests import DeleteRange, Operation, Put, Range, Txn
from kvorum.state.mvcc.ranges import SortOrder, SortTarget
from kvorum.state.mvcc.slices import Slices, run_to_end

SORT_ORDER_MAX: Final = 2
SORT_TARGET_MAX: Final = 4


def check_put(put: Put) -> Status | None:
    """Check a put, alone or in a transaction."""
    if not put.key:
        return errors.EMPTY_KEY
    if put.ignore_value and put.value:
        return errors.VALUE_PROVIDED
    return errors.LEASE_PROVIDED if put.ignore_lease and put.lease else None


def check_range(request: Range) -> Status | None:
    """Check a read, alone or in a transaction."""
    if not request.key:
        return errors.EMPTY_KEY
    order, target = request.sort_order, request.sort_target
    if not (0 <= order <= SORT_ORDER_MAX and 0 <= target <= SORT_TARGET_MAX):
        return errors.INVALID_SORT_OPTION
    return None


def check_range_stream(request: Range) -> Status | None:
    """Check a RangeStream request, which allows only key order and no filters."""
    if (status := check_range(request)) is not None:
        return status
    order, target = request.sort_order, request.sort_target
    if order and (order, target) != (SortOrder.ASCEND, SortTarget.KEY):
        return errors.RANGE_STREAM_SORTED
    is_filtered = (
        request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    )
    return errors.RANGE_STREAM_FILTERED if is_filtered else None


def check_delete_range(request: DeleteRange) -> Status | None:
    """Check a deletion, alone or in a transaction."""
    return None if request.key else errors.EMPTY_KEY


def check_txn(txn: Txn, operations_max: int) -> Status | None:
    """Check a transaction and its nested transactions, both branches of each."""
    success = txn.success
    if len(success) == 1 and not txn.failure and len(txn.compares) <= operations_max:
        only = success[0]
        # Most transactions have one put: nothing collides, and the check needs no slices.
        if isinstance(only, Put) and operations_max:
            for compare in txn.compares:
                if not compare.key:
                    return errors.EMPTY_KEY
            return check_put(only)
    # The length of the slices does not matter, because all of them run now.
    return run_to_end(check_txn_slices(txn, operations_max, PRODUCTION.slice_keys))


def check_txn_slices(txn: Txn, operations_max: int, slice_keys: int) -> Slices[Status | None]:
    """Check a transaction in slices: it may have a hundred thousand operations."""
    if (status := (yield from _check_operations(txn, operations_max))) is not None:
        return status
    for operations in (txn.success, txn.failure):
        # One operation does not collide with itself.
        if len(operations) > 1 or (len(operations) == 1 and isinstance(operations[0], Txn)):
            changes = yield from _changes(operations, slice_keys)
            if changes is None:
                return errors.DUPLICATE_KEY
    return None


def _check_operations(txn: Txn, operations_max: int) -> Slices[Status | None]:
    success, failure = txn.success, txn.failure
    count = max(len(txn.compares), len(success), len(failure))
    if count > operations_max:
        return errors.TOO_MANY_OPS
    for compare in txn.compares:
        if not compare.key:
            return errors.EMPTY_KEY
    for request in (*success, *failure) if failure else success:
        if isinstance(request, Put):
            status = check_put(request)
        elif isinstance(request, Range):
            status = check_range(request)
        elif isinstance(request, DeleteRange):
            status = check_delete_range(request)
        elif isinstance(request, Txn):
            yield
            status = yield from _check_operations(request, operations_max - count)
        else:
            status = errors.KEY_NOT_FOUND
        if status is not None:
            return status
    return None


class _Deletions:
    """Ranges of keys, merged where they overlap, so that one lookup covers all of them."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []

    def add(self, start: bytes, end: bytes) -> None:
        """Add [start, end); a range that ends before it starts is empty."""
        if end <= start:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def add_all(self, other: "_Deletions", slice_keys: int) -> Slices[None]:
        """Add the ranges of `other`, which must not be used afterwards."""
        if len(other._starts) > len(self._starts):
            self._starts, other._starts = other._starts, self._starts
            self._ends, other._ends = other._ends, self._ends
        for number, (start, end) in enumerate(zip(other._starts, other._ends, strict=True), 1):
            self.add(start, end)
            if number % slice_keys == 0:
                yield

    def holds_any(self, keys: set[bytes], slice_keys: int) -> Slices[bool]:
        """Return whether a deletion covers any of these keys."""
        if self._starts:
            for number, key in enumerate(keys, 1):
                if key in self:
                    return True
                if number % slice_keys == 0:
                    yield
        return False

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._starts, key)
        return place > 0 and key < self._ends[place - 1]


def _changes(
    operations: Sequence[Operation], slice_keys: int
) -> Slices[tuple[set[bytes], _Deletions] | None]:
    """Collect a branch's puts and deletions; None if it puts a key twice, or puts and deletes it.

    A branch's own deletions collide with puts in every transaction nested in it. The deletions of
    a nested transaction collide with later nested transactions and with the branch's own puts, but
    not with earlier nested transactions. The two branches of one transaction never both run, so
    they do not collide. A range_end of a single zero byte is taken literally here: such a deletion
    is empty.
    """
    deletions = _Deletions()
    for request in operations:
        if isinstance(request, DeleteRange):
            deletions.add(request.key, request.range_end or request.key + b"\0")
    puts: set[bytes] = set()
    for request in operations:
        if isinstance(request, Txn):
            yield
            then = yield from _changes(request.success, slice_keys)
            if then is None:
                return None
            nested, nested_deletions = then
            if request.failure:
                otherwise = yield from _changes(request.failure, slice_keys)
                if otherwise is None:
                    return None
                nested |= otherwise[0]
                yield from nested_deletions.add_all(otherwise[1], slice_keys)
            if not nested.isdisjoint(puts):
                return None
            if (yield from deletions.holds_any(nested, slice_keys)):
                return None
            # Merge the smaller set into the larger: deeply nested keys are merged at every level.
            if len(nested) > len(puts):
                puts, nested = nested, puts
            puts |= nested
            yield from deletions.add_all(nested_deletions, slice_keys)
    for request in operations:
        if isinstance(request, Put):
            key = request.key
            if key in puts or key in deletions:
                return None
            puts.add(key)
    return puts, deletions


def is_read_only(txn: Txn) -> bool:
    """Return whether both branches only read; a nested transaction counts as a write."""
    for branch in (txn.success, txn.failure):
        for request in branch:
            if not isinstance(request, Range):
                return False
    return True


def is_serializable(txn: Txn) -> bool:
    """Return whether every read of a read-only transaction allows a stale answer."""
    for branch in (txn.success, txn.failure):
        for request in branch:
            assert isinstance(request, Range), request
            if not request.serializable:
                return False
    return True
