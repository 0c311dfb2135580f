"""The index and its parts, against naive ones."""

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.state.mvcc import history, key_changes
from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.index import Index
from kvorum.state.mvcc.slices import run_to_end
from kvorum.state.mvcc.sortedkeys import SortedKeys

KEYS = st.binary(min_size=1, max_size=3)
Ends = st.one_of(st.none(), KEYS)


@given(data=st.data(), chunk=st.integers(2, 8))
def test_sorted_keys_are_a_sorted_list(data: st.DataObject, chunk: int) -> None:
    limits = WorkLimits(key_chunk_keys_max=chunk, key_run_single_keys_max=chunk // 3)
    naive = sorted(data.draw(st.sets(KEYS)))
    keys = SortedKeys(limits, naive)
    for _ in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(["add", "remove", "add_run", "remove_run", "ask"]))
        if action == "add":
            key = data.draw(KEYS)
            if key not in naive:
                insort(naive, key)
                keys.add(key)
        elif action == "remove" and naive:
            key = data.draw(st.sampled_from(naive))
            naive.remove(key)
            assert keys.remove(key) == key
        elif action == "add_run":
            run = sorted(data.draw(st.sets(KEYS)) - set(naive))
            naive = sorted(naive + run)
            keys.add_run(run)
        elif action == "remove_run" and naive:
            start = data.draw(st.integers(0, len(naive)))
            stop = data.draw(st.integers(start, len(naive)))
            step = data.draw(st.integers(1, 3))
            run = naive[start:stop:step]
            naive = [key for key in naive if key not in set(run)]
            keys.remove_run(run)
        first, end = data.draw(KEYS), data.draw(Ends)
        within = [key for key in naive if first <= key and (end is None or key < end)]
        limit = data.draw(st.integers(1, 10))
        assert len(keys) == len(naive)
        assert keys.run(first, end, limit) == within[:limit]
        assert keys.run_down(first, end, limit) == within[::-1][:limit]
        if action == "ask":
            assert keys.count(first, end) == len(within)
    assert keys.run(b"", None, 1000) == naive


class NaiveHistory:
    """Revisions of a key with what a put at each would have said."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int]] = []  # revision, create, version

    def add(self, revision: int) -> tuple[int, int, int]:
        last, create, version = self.records[-1] if self.records else (1, 0, 0)
        if last & 1:
            create, version = revision >> 32, 0
        self.records.append((revision, create, version + 1))
        return create, version + 1, last

    def at(self, limit: int) -> tuple[int, int, int] | None:
        found = [record for record in self.records if record[0] <= limit]
        return found[-1] if found and not found[-1][0] & 1 else None

    def compact(self, main: int) -> list[int]:
        upto = [record for record in self.records if record[0] <= bound(main)]
        if not upto:
            return []
        is_lost = upto[-1][0] & 1 and upto[-1][0] >> 32 < main
        dropped = upto if is_lost else upto[:-1]
        self.records = self.records[len(dropped) :]
        return [revision for revision, _, _ in dropped]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "put", "delete", "compact"]), st.integers(0, 40)),
        max_size=60,
    ),
    long=st.integers(30, 200),
)
def test_a_packed_history_is_a_list_of_revisions(steps: list[tuple[str, int]], long: int) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(history, "_BYTEARRAY_FROM_BYTES", long)
        naive = NaiveHistory()
        entry: history.Entry | None = None
        revision = 2 << 32
        for action, number in steps:
            if action == "compact":
                if entry is not None:
                    main = max(0, (revision >> 32) - number)
                    entry, dropped = history.compact_entry(entry, main)
                    assert history.unpack_revisions(dropped) == naive.compact(main)
                    assert (entry is None) == (not naive.records)
            else:
                is_delete = action == "delete"
                if is_delete and (entry is None or history.newest(entry) & 1):
                    continue
                # A number of 0 stays within the same transaction.
                revision = (revision + 2 if not number else ((revision >> 32) + number) << 32) & ~1
                revision |= is_delete
                create, version, last = naive.add(revision)
                if entry is None:
                    entry = history.make_entry(revision, create, version)
                else:
                    entry, *facts = history.appended(entry, revision)
                    if is_delete:
                        facts[:2] = create, version
                    assert facts == [create, version, last]
            if entry is not None:
                assert history.newest(entry) == naive.records[-1][0]
                for limit in [each[0] for each in naive.records] + [0, revision - 2, revision]:
                    found = naive.at(limit)
                    assert history.at(entry, limit) == (found[0] if found else 0)
                    known = history.facts(entry, limit)
                    assert (known is None) == (found is None)
                    if known is not None and found is not None:
                        assert known == (found[1], found[0], found[2])


@given(data=st.data(), kept=st.integers(1, 12), keys_per_slice=st.integers(1, 3))
def test_the_count_at_a_revision_is_that_of_the_keys_which_were_live(
    data: st.DataObject, kept: int, keys_per_slice: int
) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(key_changes, "KEPT", kept)
        limits = WorkLimits(slice_keys=keys_per_slice)
        index = Index(limits)
        for main in range(2, data.draw(st.integers(2, 30))):
            if data.draw(st.booleans()):
                index.put(data.draw(KEYS), main << 32)
            else:
                run = index.live.run(data.draw(KEYS), data.draw(Ends), data.draw(st.integers(1, 4)))
                if run:
                    index.delete_run(run, main << 32 | 1)
            first, end = data.draw(KEYS), data.draw(Ends)
            limit = bound(data.draw(st.integers(1, main)))
            count = run_to_end(index.count_at(first, end, limit))
            within = index.run(first, end, 1000)
            expected = sum(1 for key in within if index.at(key, limit))
            assert count in (expected, -1)
            # As many changes as are kept are always known.
            assert (
                index.key_changes.changes_after(limit) >= kept or limit >= index.key_changes.since
            )
            restored = Index(limits)
            restored.entries, restored.newest_revision = index.entries, index.newest_revision
            restored.build_sets()
            is_newest = index.newest_revision <= limit
            assert run_to_end(restored.count_at(first, end, limit)) == (
                expected if is_newest else -1
            )


def test_long_keys_that_are_gone_are_not_kept_for_counts() -> None:
    index = Index(PRODUCTION)
    for main in range(2, 102, 2):
        key = b"%d" % main + bytes(key_changes.KEPT_BYTES_MAX // 10)
        index.put(key, main << 32)
        index.delete_run([key], (main + 1) << 32 | 1)
        assert sum(map(len, index.key_changes._keys)) <= key_changes.KEPT_BYTES_MAX
        assert run_to_end(index.count_at(b"", None, bound(main))) == 1
        assert index.key_changes.since < main << 32


def test_a_key_written_often_is_not_copied_each_time() -> None:
    index = Index(PRODUCTION)
    for main in range(2, 300):
        index.put(b"k", main << 32)
    entry = index.entries[b"k"]
    index.put(b"k", 300 << 32)
    assert isinstance(entry, bytearray)
    assert index.entries[b"k"] is entry
    index.delete_run([b"k"], 301 << 32 | 1)
    index.put(b"k", 302 << 32)
    assert index.entries[b"k"] is entry


def test_a_key_is_one_object_however_often_it_comes_back() -> None:
    index = Index(PRODUCTION)
    index.put(bytes([107]), 2 << 32)
    index.delete_run(index.live.run(b"", None, 9), 3 << 32 | 1)
    index.put(b"k" + b"", 4 << 32)
    (held,) = index.entries
    assert index.live.run(b"", None, 9)[0] is held
