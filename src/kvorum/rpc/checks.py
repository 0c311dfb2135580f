"""What is refused by its words alone, before anything is proposed or read.

Every function returns the status that refuses the request, or None; requests are the tuples
of `kvorum.api.requests`. The order of the checks is part of the contract: a client that makes
two mistakes is told of the same one by every server.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.requests import (
    DELETE_RANGE,
    PUT,
    RANGE,
    TXN,
    DeleteRange,
    Operation,
    Put,
    Range,
    Txn,
)
from kvorum.mvcc.slices import KEYS_PER_SLICE, Slices, run_to_end

SORT_ORDER_MAX: Final = 2
SORT_TARGET_MAX: Final = 4


def check_put(put: Put) -> Status | None:
    """Check a put, alone or in a transaction."""
    key, value, lease, _, ignore_value, ignore_lease = put
    if not key:
        return errors.EMPTY_KEY
    if ignore_value and value:
        return errors.VALUE_PROVIDED
    return errors.LEASE_PROVIDED if ignore_lease and lease else None


def check_range(request: Range) -> Status | None:
    """Check a read, alone or in a transaction."""
    if not request[0]:
        return errors.EMPTY_KEY
    if not (0 <= request[4] <= SORT_ORDER_MAX and 0 <= request[5] <= SORT_TARGET_MAX):
        return errors.INVALID_SORT_OPTION
    return None


def check_range_stream(request: Range) -> Status | None:
    """Check a read that is answered in pieces: in key order, without filters."""
    _, _, _, _, order, target, _, _, _, *bounds = request
    if (status := check_range(request)) is not None:
        return status
    if order and (order, target) != (1, 0):
        return errors.RANGE_STREAM_SORTED
    return errors.RANGE_STREAM_FILTERED if any(bounds) else None


def check_delete_range(request: DeleteRange) -> Status | None:
    """Check a deletion, alone or in a transaction."""
    return None if request[0] else errors.EMPTY_KEY


def check_txn(txn: Txn, operations_max: int) -> Status | None:
    """Check a transaction with all that is nested in it, both branches of each."""
    return run_to_end(check_txn_slices(txn, operations_max))


def check_txn_slices(txn: Txn, operations_max: int) -> Slices[Status | None]:
    """Check a transaction, in slices: there may be a hundred thousand operations in it."""
    if (status := (yield from _check_operations(txn, operations_max))) is not None:
        return status
    for operations in txn[1:]:
        # One operation does not collide with itself.
        if len(operations) > 1 or (len(operations) == 1 and operations[0][0] == TXN):
            changes = yield from _changes(operations)
            if changes is None:
                return errors.DUPLICATE_KEY
    return None


def _check_operations(txn: Txn, operations_max: int) -> Slices[Status | None]:
    compares, success, failure = txn
    count = max(len(compares), len(success), len(failure))
    if count > operations_max:
        return errors.TOO_MANY_OPS
    for compare in compares:
        if not compare[2]:
            return errors.EMPTY_KEY
    for kind, request in (*success, *failure) if failure else success:
        if kind == PUT:
            status = check_put(request)
        elif kind == RANGE:
            status = check_range(request)
        elif kind == DELETE_RANGE:
            status = check_delete_range(request)
        elif kind == TXN:
            yield
            status = yield from _check_operations(request, operations_max - count)
        else:
            status = errors.KEY_NOT_FOUND
        if status is not None:
            return status
    return None


class _Deletions:
    """Ranges of keys, merged where they overlap, so that one look-up answers for all."""

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

    def add_all(self, other: "_Deletions") -> Slices[None]:
        """Add the ranges of another, which is not used any more."""
        if len(other._starts) > len(self._starts):
            self._starts, other._starts = other._starts, self._starts
            self._ends, other._ends = other._ends, self._ends
        for number, (start, end) in enumerate(zip(other._starts, other._ends, strict=True), 1):
            self.add(start, end)
            if number % KEYS_PER_SLICE == 0:
                yield

    def holds_any(self, keys: set[bytes]) -> Slices[bool]:
        """Tell whether any of these keys is deleted."""
        if self._starts:
            for number, key in enumerate(keys, 1):
                if key in self:
                    return True
                if number % KEYS_PER_SLICE == 0:
                    yield
        return False

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._starts, key)
        return place > 0 and key < self._ends[place - 1]


def _changes(operations: Sequence[Operation]) -> Slices[tuple[set[bytes], _Deletions] | None]:
    """Collect what a branch puts and deletes; None if a key is put twice, or put and deleted.

    A branch's own deletions count for all that is nested in it. Those of a nested transaction
    count for what follows it and for the branch's own puts, but not for what precedes it. The
    two branches of one transaction never both run, so they do not collide. A range_end of a
    single zero byte is taken by its letters here: such a deletion is empty.
    """
    deletions = _Deletions()
    for kind, request in operations:
        if kind == DELETE_RANGE:
            key, range_end, _ = request
            deletions.add(key, range_end or key + b"\0")
    puts: set[bytes] = set()
    for kind, request in operations:
        if kind == TXN:
            yield
            _, success, failure = request
            then = yield from _changes(success)
            if then is None:
                return None
            nested, nested_deletions = then
            if failure:
                otherwise = yield from _changes(failure)
                if otherwise is None:
                    return None
                nested |= otherwise[0]
                yield from nested_deletions.add_all(otherwise[1])
            if not nested.isdisjoint(puts) or (yield from deletions.holds_any(nested)):
                return None
            # The shorter into the longer: what is nested deeply is added at every level.
            if len(nested) > len(puts):
                puts, nested = nested, puts
            puts |= nested
            yield from deletions.add_all(nested_deletions)
    for kind, request in operations:
        if kind == PUT:
            key = request[0]
            if key in puts or key in deletions:
                return None
            puts.add(key)
    return puts, deletions


def is_read_only(txn: Txn) -> bool:
    """Return whether both branches only read; a nested transaction counts as a write."""
    for branch in txn[1:]:
        for kind, _ in branch:
            if kind != RANGE:
                return False
    return True


def is_serializable(txn: Txn) -> bool:
    """Return whether every read of a read-only transaction allows a stale answer."""
    return all(request[6] for branch in txn[1:] for _, request in branch)
