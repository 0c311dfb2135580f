"""Range: selects, filters, sorts, counts and encodes the keys of a range.

A Range uses the index as far as possible: counts, filters, every order except by value, and answers
without values read no rows. A Range reads rows last, and only the rows that it returns.

A Range reads at one main revision. While the index has nothing newer, its live keys are the answer.
Otherwise the Range looks up the revision of each key: of all keys in the range, unless their count
is known and the limit is reached. Both cases may occur in slices of one read. The caller protects
the revision from compaction until the read ends.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import merge
from itertools import compress, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from kvorum.api.codec import field_head, key_value
from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.api.responses import RANGE_KVS, range_totals, repeated
from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.index import Index, range_end
from kvorum.state.mvcc.keyvalue import value_of, without_value
from kvorum.state.mvcc.slices import Slices
from kvorum.storage.backend import Backend

UNLIMITED: Final = 1 << 62
ITEM_BYTES: Final = PRODUCTION.slice_bytes // PRODUCTION.slice_keys
"""Bytes charged per item, besides its own bytes, to a slice that is measured in bytes."""
Measured = tuple[Any, bytes, int]
"""(sort value, key or encoded KeyValue, revision)."""
Measure = Callable[[list[bytes], list[int]], list[Any]]
Item = TypeVar("Item")


class SortOrder(IntEnum):
    """The direction of a sort, numbered as in requests."""

    NONE = 0
    ASCEND = 1
    DESCEND = 2


class SortTarget(IntEnum):
    """The field to sort by, numbered as in requests."""

    KEY = 0
    VERSION = 1
    CREATE = 2
    MOD = 3
    VALUE = 4


class RangeOptions(NamedTuple):
    """The options of a Range; 0 in any number means "not set"."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0
    sort_order: int = SortOrder.NONE
    sort_target: int = SortTarget.KEY
    keys_only: bool = False
    count_only: bool = False
    min_mod_revision: int = 0
    max_mod_revision: int = 0
    min_create_revision: int = 0
    max_create_revision: int = 0

    @property
    def is_filtered(self) -> bool:
        """Whether a filter is set."""
        return bool(
            self.min_mod_revision
            or self.max_mod_revision
            or self.min_create_revision
            or self.max_create_revision
        )


@dataclass(slots=True)
class RangeResult:
    """The result of a Range."""

    kvs: list[bytes]  # encoded KeyValues
    count: int  # of all keys in the range, regardless of limit and filters
    more: bool  # whether the limit cut something off
    revision: int  # the store's revision when the read began, for the header


def reply_body(result: RangeResult) -> bytes:
    """Encode a RangeResponse without its header."""
    return repeated(RANGE_KVS, result.kvs) + range_totals(result.more, result.count)


def reply_parts(result: RangeResult, limits: WorkLimits) -> Slices[list[bytes]]:
    """Encode as `reply_body` does, in parts and in slices; empty the list of key-values."""
    parts = yield from field_parts(RANGE_KVS, result.kvs, limits)
    parts.append(range_totals(result.more, result.count))
    return parts


def field_parts(tag: bytes, kvs: list[bytes], limits: WorkLimits) -> Slices[list[bytes]]:
    """Encode key-values as a repeated field, in parts and in slices; empty the list."""
    parts: list[bytes] = []
    for some in _split_into_parts(kvs, limits.slice_keys):
        if sum(map(len, some)) <= limits.slice_bytes:
            parts.append(repeated(tag, some))
        else:
            # Do not copy large key-values: that would take long and gain nothing.
            for kv in some:
                parts += (field_head(tag, len(kv)), kv)
        if kvs:
            yield
    return parts


def read_range(
    index: Index, backend: Backend, options: RangeOptions, main: int, limits: WorkLimits
) -> Slices[tuple[list[bytes], int, bool]]:
    """Return the encoded key-values, the count, and whether the limit cut off more."""
    end = range_end(options.key, options.range_end)
    target = options.sort_target
    limit = options.limit if options.limit > 0 else UNLIMITED
    enough = UNLIMITED if _reads_all(options) else limit + 1
    if options.count_only:
        enough = 0
    is_current = index.newest_revision <= bound(main)
    if is_current and limit < limits.slice_keys and _is_from_the_end(options):
        keys = index.live.run_down(options.key, end, limit + 1)
        revisions = index.newest_of(keys)
        count = index.live.count(options.key, end)
    else:
        is_ordered_by_index = _is_sorted(options) and target != SortTarget.VALUE
        with_keys = options.is_filtered or options.keys_only or is_ordered_by_index
        keys, revisions, count = yield from _visible(
            index, options.key, end, main, enough, limits.slice_keys, with_keys=with_keys
        )
        if options.count_only:
            return [], count, False
        if options.is_filtered:
            keys, revisions = yield from _filtered(
                index, options, keys, revisions, main, limits.slice_keys
            )
        if target == SortTarget.VALUE:
            return (yield from _by_value(backend, options, revisions, count, limit, limits))
        if _is_sorted(options):
            measure = _measure(index, target, main)
            keys, revisions = yield from _sort_in_slices(
                keys, revisions, measure, options, limit + 1, limits
            )
    more = len(revisions) > limit
    if more:
        del keys[limit:]
        del revisions[limit:]
    if options.keys_only:
        latest = bound(main)

        def from_index(key: bytes) -> bytes:
            facts = index.facts(key, latest)
            assert facts is not None, f"{key!r} vanished at revision {main}"
            create, revision, version = facts
            return key_value(key, create, revision >> 32, version, b"", 0)

        return (yield from _map_in_slices(keys, from_index, limits)), count, more
    return (yield from rows_in_slices(backend, revisions, limits)), count, more


def _reads_all(options: RangeOptions) -> bool:
    """Return whether filters or sorting precede the limit, so that all keys are needed."""
    is_key_order = options.sort_order == SortOrder.NONE or (
        options.sort_order == SortOrder.ASCEND and options.sort_target == SortTarget.KEY
    )
    return options.limit <= 0 or options.is_filtered or not is_key_order


def _is_sorted(options: RangeOptions) -> bool:
    """Return whether the answer needs an order other than ascending keys."""
    return options.sort_target != SortTarget.KEY or options.sort_order == SortOrder.DESCEND


def _is_from_the_end(options: RangeOptions) -> bool:
    """Return whether the answer consists of the last keys, so that others need not be read."""
    return (
        options.sort_order == SortOrder.DESCEND
        and options.sort_target == SortTarget.KEY
        and not options.is_filtered
        and not options.count_only
    )


def _visible(
    index: Index,
    first: bytes,
    end: bytes | None,
    main: int,
    enough: int,
    slice_keys: int,
    *,
    with_keys: bool,
) -> Slices[tuple[list[bytes], list[int], int]]:
    """Return the first keys that exist at a main revision, their revisions, and the count.

    Without `with_keys` the list of keys is empty.
    """
    latest = bound(main)
    keys: list[bytes] = []
    revisions: list[int] = []
    count = yield from index.count_at(first, end, latest)
    counted = looked_at = 0
    while count < 0 or len(revisions) < min(enough, count):
        if looked_at:
            yield
        want = slice_keys
        if count >= 0 and index.newest_revision <= latest:
            want = min(want, enough - len(revisions))
        visible, found, following = visible_run(index, first, end, latest, want)
        looked_at += want
        counted += len(visible)
        if len(revisions) < enough:
            if with_keys:
                keys += visible[: enough - len(revisions)]
            revisions += found[: enough - len(revisions)]
        if following is None:
            break
        first = following
    return keys, revisions, counted if count < 0 else count


def visible_run(
    index: Index, first: bytes, end: bytes | None, latest: int, limit: int
) -> tuple[list[bytes], list[int], bytes | None]:
    """Check the first keys of a range, at most `limit`, against a revision.

    Returns the keys that a read at the revision sees, their revisions, and the start of the rest of
    the range, None if nothing is left.
    """
    if index.newest_revision <= latest:
        run = visible = index.live.run(first, end, limit)
        found = index.newest_of(run)
    else:
        run = index.run(first, end, limit)
        found = [index.at(key, latest) for key in run]
        visible = [key for key, revision in zip(run, found, strict=True) if revision]
        found = [revision for revision in found if revision]
    return visible, found, run[-1] + b"\0" if len(run) == limit else None


def _filtered(
    index: Index,
    options: RangeOptions,
    keys: list[bytes],
    revisions: list[int],
    main: int,
    slice_keys: int,
) -> Slices[tuple[list[bytes], list[int]]]:
    """Return the keys that pass the filters, and their revisions."""
    latest = bound(main)
    min_mod, max_mod = options.min_mod_revision, options.max_mod_revision or UNLIMITED
    min_create, max_create = options.min_create_revision, options.max_create_revision or UNLIMITED
    needs_creates = bool(options.min_create_revision or options.max_create_revision)
    passed_keys: list[bytes] = []
    passed_revisions: list[int] = []
    for some_keys, some_revisions in zip(
        _split_into_parts(keys, slice_keys), _split_into_parts(revisions, slice_keys), strict=True
    ):
        mods = [revision >> 32 for revision in some_revisions]
        passing = [min_mod <= mod <= max_mod for mod in mods]
        if needs_creates:
            creates = index.create_revisions_of(some_keys, latest)
            passing = [
                passes and min_create <= create <= max_create
                for passes, create in zip(passing, creates, strict=True)
            ]
        passed_keys += compress(some_keys, passing)
        passed_revisions += compress(some_revisions, passing)
        if keys:
            yield
    return passed_keys, passed_revisions


def _by_value(
    backend: Backend,
    options: RangeOptions,
    revisions: list[int],
    count: int,
    limit: int,
    limits: WorkLimits,
) -> Slices[tuple[list[bytes], int, bool]]:
    kvs = yield from rows_in_slices(backend, revisions[:], limits)

    def measure(kvs: list[bytes], _: list[int]) -> list[Any]:
        return list(map(value_of, kvs))

    kvs, _ = yield from _sort_in_slices(kvs, revisions, measure, options, limit + 1, limits)
    more = len(kvs) > limit
    if more:
        del kvs[limit:]
    if options.keys_only:
        kvs = yield from _map_in_slices(kvs, without_value, limits)
    return kvs, count, more


def _measure(index: Index, target: int, main: int) -> Measure:
    """Return the function that maps keys and revisions to sort values."""
    latest = bound(main)

    def measure(keys: list[bytes], revisions: list[int]) -> list[Any]:
        if target == SortTarget.KEY:
            return keys
        if target == SortTarget.MOD:
            return [revision >> 32 for revision in revisions]
        if target == SortTarget.VERSION:
            return index.versions_of(keys, latest)
        return index.create_revisions_of(keys, latest)

    return measure


def _sort_in_slices(
    items: list[bytes],
    revisions: list[int],
    measure: Measure,
    options: RangeOptions,
    enough: int,
    limits: WorkLimits,
) -> Slices[tuple[list[bytes], list[int]]]:
    """Return the first items of a stable sort: sorted runs, then one merge, all in slices."""
    is_reverse = options.sort_order == SortOrder.DESCEND
    slice_keys, slice_bytes = limits.slice_keys, limits.slice_bytes
    runs: list[list[Measured]] = []
    revisions.reverse()
    for some_items in _split_by_bytes(items, limits):
        if runs:
            yield
        some_revisions = revisions[: -len(some_items) - 1 : -1]
        del revisions[-len(some_items) :]
        measured = measure(some_items, some_revisions)
        run = list(zip(measured, some_items, some_revisions, strict=True))
        if runs and enough <= slice_keys:
            # Keep only the few wanted items, as for clients that queue for a lock.
            run = runs.pop() + run
        run.sort(key=itemgetter(0), reverse=is_reverse)
        runs.append(run[:enough])
    runs_max = limits.range_merge_runs_max
    while len(runs) > runs_max:
        # Merge few runs at a time, because the start of a merge visits each of its runs.
        longer = []
        for start in range(0, len(runs), runs_max):
            group = runs[start : start + runs_max]
            merged = yield from _merge_runs(group, enough, slice_keys, is_reverse=is_reverse)
            longer.append(merged)
        runs = longer
    ordered: list[bytes] = []
    ordered_revisions: list[int] = []
    last = yield from _merge_runs(runs, enough, slice_keys, is_reverse=is_reverse)
    yield from _free_runs(runs, slice_bytes)
    last.reverse()
    size = 0
    while last:
        # Free each item's sort value here, in slices: it may be large.
        _, item, revision = last.pop()
        ordered.append(item)
        ordered_revisions.append(revision)
        size += ITEM_BYTES + len(item)
        if size >= slice_bytes:
            size = 0
            yield
    return ordered, ordered_revisions


def _merge_runs(
    runs: list[list[Measured]], enough: int, slice_keys: int, *, is_reverse: bool
) -> Slices[list[Measured]]:
    """Merge up to `enough` items out of the runs, which lose them."""
    merging = merge(*map(_drain_run, runs), key=itemgetter(0), reverse=is_reverse)
    merged: list[Measured] = []
    while len(merged) < enough:
        want = min(slice_keys, enough - len(merged))
        part = list(islice(merging, want))
        merged += part
        if len(part) < want:
            break
        yield
    return merged


def _free_runs(runs: list[list[Measured]], slice_bytes: int) -> Slices[None]:
    """Free in slices the items that a limit left in the runs."""
    size = 0
    for run in runs:
        while run:
            size += ITEM_BYTES + len(run.pop()[1])
            if size >= slice_bytes:
                size = 0
                yield


def _drain_run(run: list[Item]) -> Iterator[Item]:
    run.reverse()
    while run:
        yield run.pop()


def _split_into_parts(items: list[Item], slice_keys: int) -> Iterator[list[Item]]:
    """Yield a list in parts and empty it: freeing a list at once may outlast many turns."""
    items.reverse()
    while items:
        part = items[: -slice_keys - 1 : -1]
        del items[-slice_keys:]
        yield part


def _split_by_bytes(items: list[bytes], limits: WorkLimits) -> Iterator[list[bytes]]:
    """Yield a list in parts of at most `slice_bytes` or of one item, and empty the list."""
    slice_bytes = limits.slice_bytes
    for part in _split_into_parts(items, limits.slice_keys):
        if sum(map(len, part)) <= slice_bytes:
            yield part
            continue
        portion: list[bytes] = []
        size = 0
        for item in part:
            if portion and size + len(item) > slice_bytes:
                yield portion
                portion, size = [], 0
            portion.append(item)
            size += len(item)
        yield portion


def rows_in_slices(
    backend: Backend, revisions: list[int], limits: WorkLimits
) -> Slices[list[bytes]]:
    """Read rows in slices, and empty the list of their revisions."""
    slice_keys, slice_bytes = limits.slice_keys, limits.slice_bytes
    kvs: list[bytes] = []
    revisions.reverse()
    # Rows and bytes since the last yield.
    rows = size = 0
    want = limits.range_first_read_rows
    while revisions:
        want = min(want, slice_keys)
        found = backend.rows(revisions[: -want - 1 : -1])
        del revisions[-want:]
        kvs += found
        read = sum(map(len, found))
        rows += len(found)
        size += read
        want = 2 * want if 4 * read < slice_bytes else max(1, want // 2)
        if revisions and (rows + want > slice_keys or size >= slice_bytes):
            yield
            rows = size = 0
    return kvs


def read_portions(
    backend: Backend, revisions: list[int], limits: WorkLimits
) -> Iterator[list[bytes]]:
    """Yield rows in portions of at most a slice's keys, and of fewer where rows are large."""
    slice_keys, slice_bytes = limits.slice_keys, limits.slice_bytes
    at, want = 0, limits.range_first_read_rows
    while at < len(revisions):
        found = backend.rows(revisions[at : at + min(want, slice_keys)])
        at += len(found)
        want = 2 * want if 4 * sum(map(len, found)) < slice_bytes else max(1, want // 2)
        yield found


def _map_in_slices(
    items: list[bytes], function: Callable[[bytes], bytes], limits: WorkLimits
) -> Slices[list[bytes]]:
    mapped: list[bytes] = []
    for part in _split_by_bytes(items, limits):
        if mapped:
            yield
        mapped += map(function, part)
    return mapped
