"""Long work in slices: the same result for every budget; and nothing left for the collector."""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.ranges import RangeOptions, reply_body, reply_parts
from kvorum.state.mvcc.restore import restore_store
from kvorum.state.mvcc.slices import Slices, run_to_end
from kvorum.state.mvcc.store import Store
from tests.database import Database
from tests.state.mvcc.machine import Recorder, answer, set_slice, small_slices

KEYS_PER_SLICE, BYTES_PER_SLICE = PRODUCTION.slice_keys, PRODUCTION.slice_bytes
KEYS = 3 * KEYS_PER_SLICE + 17
WHOLE = RangeOptions(b"k", b"l")


def filled(database: Database, limits: WorkLimits = PRODUCTION) -> Store:
    lessor = Lessor(database.backend, PRODUCTION)
    lessor.restore()
    store = restore_store(database.backend, lessor, Recorder(), limits)
    for number in range(KEYS):
        store.put(b"k%04d" % (number * 7919 % KEYS), b"%d" % (number % 13), 0)
    for number in range(0, KEYS, 3):
        store.put(b"k%04d" % number, b"again", 0)
    return store


def slices_of(work: Slices[object]) -> int:
    count = 1
    try:
        while True:
            next(work)
            count += 1
    except StopIteration:
        return count


def test_long_work_is_sliced_and_short_work_is_not() -> None:
    database = Database()
    store = filled(database)
    at_least = KEYS // KEYS_PER_SLICE
    assert slices_of(store.range_slices(WHOLE)) >= at_least
    for target in range(5):
        options = WHOLE._replace(sort_target=target, sort_order=2)
        assert slices_of(store.range_slices(options)) >= at_least
    assert slices_of(store.range_slices(WHOLE._replace(count_only=True))) == 1
    for options in (WHOLE._replace(limit=10), WHOLE._replace(limit=10, sort_order=2)):
        assert slices_of(store.range_slices(options)) == 1
    before = WHOLE._replace(revision=store.revision - 1, count_only=True)
    assert slices_of(store.range_slices(before)) == 1
    write = store.begin()
    assert slices_of(write.delete_range_slices(b"k", b"l")) >= at_least
    # Others still see the state before.
    counting = WHOLE._replace(count_only=True)
    assert slices_of(store.range_slices(counting)) == 1
    assert store.range(counting).count == store.range(WHOLE).count == KEYS
    # It takes them longer where it is not known which keys came and went.
    store._index.key_changes.since = store._index.newest_revision
    assert slices_of(store.range_slices(counting)) >= at_least
    assert store.range(counting).count == store.range(WHOLE).count == KEYS
    write.commit()
    assert store.range(WHOLE).count == 0
    store.compact(store.revision - 1)
    steps = 0
    while store.compaction.is_pending:
        job = store.compaction.step()
        if job is not None:
            store.compaction.take_hash(job, None)
        steps += 1
    assert steps > at_least / 2
    database.close()


@pytest.mark.parametrize(
    "wanted",
    [WHOLE, WHOLE._replace(sort_target=4, sort_order=2), WHOLE._replace(limit=20)],
    ids=["all", "by value", "limited"],
)
def test_large_rows_are_read_few_at_a_time(wanted: RangeOptions) -> None:
    database = Database()
    lessor = Lessor(database.backend, PRODUCTION)
    lessor.restore()
    store = restore_store(database.backend, lessor, Recorder(), PRODUCTION)
    value = b"v" * (BYTES_PER_SLICE // 4)
    for number in range(40):
        store.put(b"k%04d" % number, b"%04d" % number + value, 0)
    whole = answer(store.range(wanted))
    found = []

    def read() -> Slices[None]:
        found.append((yield from store.range_slices(wanted)))

    # Beyond the first ones, which nobody knows to be large, four of them fill a slice.
    assert slices_of(read()) >= 20 // 4 - 2
    assert answer(found[0]) == whole
    parts = reply_parts(found[0], PRODUCTION)
    body = reply_body(found[0])
    assert b"".join(run_to_end(parts)) == body
    database.close()


@settings(max_examples=25, deadline=None)
@given(budget=st.integers(1, 600), order=st.integers(0, 2), target=st.integers(0, 4))
def test_every_budget_gives_the_same(
    expectation: tuple[Store, dict[tuple[int, int], object]], budget: int, order: int, target: int
) -> None:
    store, expected = expectation
    set_slice(store, budget)
    options = WHOLE._replace(sort_order=order, sort_target=target)
    assert answer(store.range(options)) == expected[order, target]
    database = Database()
    other = filled(database, small_slices(budget))
    write = other.begin()
    deleted = run_to_end(write.delete_range_slices(b"k01", b"k09"))
    assert deleted == expected[-1, -1]
    write.commit()
    database.close()


@pytest.fixture(scope="module", name="expectation")
def _expectation() -> tuple[Store, dict[tuple[int, int], object]]:
    store = filled(Database())
    expected: dict[tuple[int, int], object] = {}
    for order in range(3):
        for target in range(5):
            options = WHOLE._replace(sort_order=order, sort_target=target)
            expected[order, target] = answer(store.range(options))
    write = filled(Database()).begin()
    expected[-1, -1] = write.delete_range(b"k01", b"k09")
    return store, expected


def test_no_cycles_are_left_behind() -> None:
    database = Database()
    store = filled(database)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for number in range(50):
            store.put(b"k%04d" % number, b"", 0)
            write = store.begin()
            write.delete_range(b"k00", b"k01")
            write.put(b"k0000", b"", 0)
            write.range(WHOLE)
            write.commit()
            for target in range(5):
                store.range(WHOLE._replace(sort_target=target, keys_only=bool(number % 2)))
                abandoned = store.range_slices(WHOLE._replace(sort_target=target))
                next(abandoned)
                abandoned.close()
            del write, abandoned
            store.compact(store.revision)
            while store.compaction.is_pending:
                job = store.compaction.step()
                if job is not None:
                    store.compaction.take_hash(job, None)
                del job
        gc.collect()
        left = [type(each).__name__ for each in gc.garbage]
        assert left == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        database.close()


@pytest.mark.parametrize("target", range(5))
@pytest.mark.parametrize("order", [1, 2])
def test_a_small_limit_of_a_sorted_range_is_the_beginning_of_all(target: int, order: int) -> None:
    database = Database()
    store = filled(database)
    whole = WHOLE._replace(
        sort_target=target, sort_order=order, max_create_revision=KEYS - 5, min_mod_revision=3
    )
    every = store.range(whole).kvs
    assert KEYS_PER_SLICE < len(every) < KEYS
    for limit in (1, 7, KEYS_PER_SLICE - 1, KEYS_PER_SLICE, len(every) - 1, len(every)):
        found = store.range(whole._replace(limit=limit))
        assert (found.kvs, found.more) == (every[:limit], limit < len(every))
        assert found.count == KEYS
    database.close()


def test_a_sorted_range_with_a_small_limit_keeps_no_more_than_that() -> None:
    database = Database()
    store = filled(database)
    for number in range(10 * KEYS_PER_SLICE - KEYS):
        store.put(b"kk%04d" % number, b"", 0)
    options = WHOLE._replace(sort_target=2, sort_order=2, limit=1, max_create_revision=100_000)
    # Keys are found, filtered and ordered, ten slices each; nothing is left to be freed after that.
    assert slices_of(store.range_slices(options)) <= 3 * 10 + 3
    database.close()
