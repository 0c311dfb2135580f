"""Evaluate the compares of a transaction.

A compare of a range holds if it holds for every key of the range. All such compares of a
transaction, nested ones too, see the same state, so one sweep over their keys evaluates them
together: a thousand compares cost little more than one. The sweep compares each key with the
smallest and the largest operand of the compares whose ranges contain it, and drops a compare that
fails, so each fails once.

The first evaluation of such a compare runs the sweep. The sweep keeps no values.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from kvorum.api import requests as api
from kvorum.api.requests import Txn
from kvorum.state.lease.sorting import sorted_in_slices
from kvorum.state.mvcc.index import range_end
from kvorum.state.mvcc.keyvalue import fields_of, lease_of, value_of
from kvorum.state.mvcc.ranges import ITEM_BYTES, read_portions
from kvorum.state.mvcc.slices import Meter, Slices

if TYPE_CHECKING:
    from kvorum.api.requests import Compare
    from kvorum.state.mvcc.store import Store

_OF_ROWS: Final = (api.VALUE, api.LEASE)
"""The targets that need the stored row; the index has the others."""


class RangeCompares:
    """The range compares of one transaction, at the current state or at a revision."""

    __slots__ = ("_revision", "_store", "_swept", "_txn")

    def __init__(self, store: Store, txn: Txn, revision: int) -> None:
        self._store = store
        self._txn = txn
        self._revision = revision
        self._swept: dict[Compare, _Ranged] | None = None

    def holds(self, compare: Compare, meter: Meter) -> Slices[bool]:
        """Return whether one of these compares holds."""
        if self._swept is None:
            self._swept = yield from self._sweep(meter)
        ranged = self._swept.get(compare)
        if ranged is None or ranged.is_empty:
            return holds_for_row(compare.result, compare.target, None, compare.operand)
        return ranged.holds

    def _sweep(self, meter: Meter) -> Slices[dict[Compare, _Ranged]]:
        found: list[_Ranged] = []
        yield from _collect(self._txn, found, meter)
        limits = self._store.limits
        ordered = yield from sorted_in_slices(
            [(ranged.first, number) for number, ranged in enumerate(found)],
            limits.lease_slice_items,
        )
        waiting = [found[number] for _, number in ordered]
        spans = _merge_ranges(waiting)
        waiting.reverse()
        sweep = _Sweep(waiting)
        store = self._store
        main = store.readable(self._revision)
        store.hold(main)
        try:
            for first, end in spans:
                at: bytes | None = first
                while at is not None:
                    keys, revisions, at = store.visible(at, end, main)
                    if sweep.needs_rows:
                        start = 0
                        for kvs in read_portions(store.backend, revisions, limits):
                            for key, kv in zip(keys[start : start + len(kvs)], kvs, strict=True):
                                sweep.check_key(key, fields_in(kv, sweep.targets))
                                meter.spent += len(kv)
                            start += len(kvs)
                            if meter.spent >= meter.slice_bytes:
                                meter.spent = 0
                                yield
                    else:
                        for key, revision in zip(keys, revisions, strict=True):
                            sweep.check_key(key, _facts(store, key, revision, sweep.targets))
                    meter.spent += ITEM_BYTES * (1 + len(keys))
                    if meter.spent >= meter.slice_bytes:
                        meter.spent = 0
                        yield
        finally:
            store.release(main)
        return {ranged.compare: ranged for ranged in found}


class _Ranged:
    """A range compare, and the sweep's findings about it."""

    __slots__ = ("compare", "end", "first", "holds", "is_empty")

    def __init__(self, compare: Compare) -> None:
        self.compare = compare
        self.first = compare.key
        self.end = range_end(compare.key, compare.range_end)
        self.is_empty = True
        self.holds = True

    def has(self, key: bytes) -> bool:
        """Return whether a key that is not before the range is in it."""
        return self.end is None or key < self.end

    def fail(self, key: bytes) -> None:
        """Mark the compare as failed if its range still contains the key."""
        if self.has(key):
            self.holds = False


class _Largest:
    """A heap entry that sorts the largest operand first."""

    __slots__ = ("operand", "ranged")

    def __init__(self, ranged: _Ranged) -> None:
        self.operand: Any = ranged.compare.operand
        self.ranged = ranged

    def __lt__(self, other: _Largest) -> bool:
        return bool(self.operand > other.operand)


class _Smallest:
    """A heap entry that sorts the smallest operand first."""

    __slots__ = ("operand", "ranged")

    def __init__(self, ranged: _Ranged) -> None:
        self.operand: Any = ranged.compare.operand
        self.ranged = ranged

    def __lt__(self, other: _Smallest) -> bool:
        return bool(self.operand < other.operand)


class _Operands:
    """The compares of one target whose ranges the sweep has reached, and that hold so far.

    A compare whose range has ended stays until a key fails its operand; then it is dropped.
    """

    __slots__ = ("equal", "greater", "less", "unequal")

    def __init__(self) -> None:
        self.equal: dict[Any, list[_Ranged]] = {}
        self.unequal: dict[Any, list[_Ranged]] = {}
        self.greater: list[_Largest] = []
        self.less: list[_Smallest] = []

    def add(self, ranged: _Ranged) -> None:
        """Add a compare whose range the sweep has reached."""
        result, operand = ranged.compare.result, ranged.compare.operand
        if result == api.EQUAL:
            self.equal.setdefault(operand, []).append(ranged)
        elif result == api.NOT_EQUAL:
            self.unequal.setdefault(operand, []).append(ranged)
        elif result == api.GREATER:
            heappush(self.greater, _Largest(ranged))
        elif result == api.LESS:
            heappush(self.less, _Smallest(ranged))

    def check_key(self, key: bytes, stored: Any) -> None:
        """Fail and drop the compares that do not hold for a key."""
        while self.greater and self.greater[0].operand >= stored:
            heappop(self.greater).ranged.fail(key)
        while self.less and self.less[0].operand <= stored:
            heappop(self.less).ranged.fail(key)
        if self.unequal:
            for ranged in self.unequal.pop(stored, ()):
                ranged.fail(key)
        if self.equal and (len(self.equal) > 1 or stored not in self.equal):
            held = self.equal.pop(stored, None)
            for others in self.equal.values():
                for ranged in others:
                    ranged.fail(key)
            self.equal = {} if held is None else {stored: held}


class _Sweep:
    """The state of a sweep: the compares that it has reached, by their targets."""

    __slots__ = ("_operands", "_waiting", "needs_rows", "targets")

    def __init__(self, waiting: list[_Ranged]) -> None:
        # In descending order, so that `pop` returns the next compare.
        self._waiting = waiting
        self.targets = sorted({each.compare.target for each in waiting})
        self.needs_rows = any(target in _OF_ROWS for target in self.targets)
        self._operands = [_Operands() for _ in self.targets]

    def check_key(self, key: bytes, stored: list[Any]) -> None:
        """Compare a key; `stored` has the stored value of each target."""
        waiting = self._waiting
        while waiting and waiting[-1].first <= key:
            ranged = waiting.pop()
            if ranged.has(key):
                ranged.is_empty = False
                self._operands[self.targets.index(ranged.compare.target)].add(ranged)
        for operands, value in zip(self._operands, stored, strict=True):
            operands.check_key(key, value)


def _collect(txn: Txn, found: list[_Ranged], meter: Meter) -> Slices[None]:
    """Collect the range compares of a transaction, and of nested ones in both branches."""
    for compare in txn.compares:
        meter.spent += ITEM_BYTES
        if compare.range_end and api.VERSION <= compare.target <= api.LEASE:
            found.append(_Ranged(compare))
    for operations in (txn.success, txn.failure):
        for each in operations:
            if isinstance(each, Txn):
                if meter.spent >= meter.slice_bytes:
                    meter.spent = 0
                    yield
                yield from _collect(each, found, meter)


def _merge_ranges(ordered: list[_Ranged]) -> list[tuple[bytes, bytes | None]]:
    """Return the ranges in order, with overlapping ones merged."""
    spans: list[tuple[bytes, bytes | None]] = []
    for each in ordered:
        if spans:
            first, end = spans[-1]
            if end is None:
                break
            if each.first <= end:
                spans[-1] = first, None if each.end is None else max(end, each.end)
                continue
        if each.end is None or each.first < each.end:
            spans.append((each.first, each.end))
    return spans


def fields_in(kv: bytes, targets: list[int]) -> list[Any]:
    """Return the value of each target in a stored row."""
    return [_stored(target, kv) for target in targets]


def _facts(store: Store, key: bytes, revision: int, targets: list[int]) -> list[Any]:
    """Return the value of each target from the index."""
    if targets == [api.MOD]:
        return [revision >> 32]
    create, _, version = store.facts_of(key, revision)
    return [
        version if each == api.VERSION else create if each == api.CREATE else revision >> 32
        for each in targets
    ]


def holds_for_row(result: int, target: int, kv: bytes | None, operand: int | bytes) -> bool:
    """Compare a stored key-value, or the absence of one, with the operand."""
    stored: Any
    if target > api.LEASE or target < 0:
        stored = operand  # etcd treats an unknown target as equal
    elif kv is not None:
        stored = _stored(target, kv)
    elif target == api.VALUE:
        return False
    else:
        stored = 0
    return fulfils(result, stored, operand)


def _stored(target: int, kv: bytes) -> Any:
    if target == api.VALUE:
        return value_of(kv)
    if target == api.LEASE:
        return lease_of(kv)
    fields = fields_of(kv)
    return (fields.version, fields.create_revision, fields.mod_revision)[target]


def fulfils(result: int, stored: Any, operand: Any) -> bool:
    """Return whether a stored field fulfils a compare's result; an unknown result always does."""
    if result == api.EQUAL:
        return bool(stored == operand)
    if result == api.GREATER:
        return bool(stored > operand)
    if result == api.LESS:
        return bool(stored < operand)
    return bool(stored != operand) if result == api.NOT_EQUAL else True
