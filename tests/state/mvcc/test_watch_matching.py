"""Matching by tables is the same as comparing with every range."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.ranges import prefix_end
from kvorum.state.mvcc.watch import intervals
from kvorum.state.mvcc.watch.matching import NormalRange, RangeKind, WatchedRanges, key_range

T = TypeVar("T")

# Few letters, so that ranges meet; the ends of the alphabet, because carries are there.
letters = st.sampled_from([0x00, 0x01, 0x61, 0x62, 0xFE, 0xFF])
texts = st.lists(letters, max_size=4).map(bytes)
keys = st.lists(letters, min_size=1, max_size=5).map(bytes)
prefix_ranges = texts.map(lambda prefix: (prefix or b"\0", prefix_end(prefix)))
ranges = st.one_of(
    st.tuples(texts, texts),
    st.tuples(texts, st.just(b"")),
    st.tuples(texts, st.just(b"\0")),
    prefix_ranges,
    texts.map(lambda key: (key, key + b"\0")),
)


def is_in(key: bytes, begin: bytes, range_end: bytes) -> bool:
    """What a range means, word by word."""
    begin = begin or b"\0"
    if not range_end:
        return key == begin
    return begin <= key and (range_end == b"\0" or key < range_end)


def is_refused(begin: bytes, range_end: bytes) -> bool:
    return range_end not in (b"", b"\0") and (begin or b"\0") >= range_end


@given(st.lists(ranges, max_size=40), st.lists(keys, min_size=1), st.data())
def test_tables_match_as_comparing_does(
    wanted: list[tuple[bytes, bytes]], asked: list[bytes], data: st.DataObject
) -> None:
    tables: WatchedRanges[int] = WatchedRanges()
    forms: dict[int, NormalRange] = {}
    for watcher, (begin, range_end) in enumerate(wanted):
        form = key_range(begin, range_end)
        assert (form is None) == is_refused(begin, range_end)
        if form is not None:
            forms[watcher] = form
            tables.add(form, watcher)
    gone = data.draw(st.sets(st.sampled_from(sorted(forms)))) if forms else set()
    for watcher in sorted(gone):
        tables.remove(forms.pop(watcher), watcher)

    for key in asked:
        found = [watcher for entry in tables.matching(key) for watcher in entry.watchers]
        assert sorted(found) == [w for w in forms if is_in(key, *wanted[w])]
    assert tables.count == len(forms)
    assert sorted(w for entry in tables.entries() for w in entry.watchers) == sorted(forms)
    assert tables.has_wide == any(form.kind is not RangeKind.KEY for form in forms.values())


@given(st.lists(ranges, unique=True))
def test_one_range_is_one_entry(wanted: list[tuple[bytes, bytes]]) -> None:
    forms = [form for form in (key_range(*pair) for pair in wanted) if form is not None]
    tables: WatchedRanges[int] = WatchedRanges()
    for watcher, form in enumerate(forms + forms):
        tables.add(form, watcher)
    assert len(tables.entries()) == len(set(forms))


@given(texts, keys)
def test_the_end_of_a_prefix(prefix: bytes, key: bytes) -> None:
    assert is_in(key, prefix, prefix_end(prefix)) == key.startswith(prefix)


@pytest.mark.parametrize(
    ("key", "range_end", "form"),
    [
        (b"", b"", NormalRange(RangeKind.KEY, b"\0")),
        (b"a", b"a\0", NormalRange(RangeKind.KEY, b"a")),
        (b"", b"\0", NormalRange(RangeKind.PREFIX, b"")),
        (b"\0", b"\0", NormalRange(RangeKind.PREFIX, b"")),
        (b"a/", b"a0", NormalRange(RangeKind.PREFIX, b"a/")),
        (b"a\xff", b"b", NormalRange(RangeKind.PREFIX, b"a\xff")),
        (b"\xff\xff", b"\0", NormalRange(RangeKind.PREFIX, b"\xff\xff")),
        (b"a", b"\0", NormalRange(RangeKind.INTERVAL, b"a")),
        (b"a", b"c", NormalRange(RangeKind.INTERVAL, b"a", b"c")),
        (b"a", b"a", None),
        (b"b", b"a", None),
    ],
)
def test_the_simplest_form(key: bytes, range_end: bytes, form: NormalRange | None) -> None:
    assert key_range(key, range_end) == form


def heights(tree: intervals.Tree[T]) -> int:
    """Check the whole tree; return its height."""
    if tree is None:
        return 0
    left, right = heights(tree.left), heights(tree.right)
    assert abs(left - right) <= 1
    assert tree.height == 1 + max(left, right)
    return tree.height


def naive_holding(pairs: Iterable[tuple[bytes, bytes]], key: bytes) -> list[tuple[bytes, bytes]]:
    return [(b, e) for b, e in sorted(pairs) if b <= key and (not e or key < e)]


@given(st.lists(st.tuples(st.booleans(), texts, texts), max_size=80), keys)
def test_the_tree_stays_balanced_and_finds_what_holds_a_key(
    changes: list[tuple[bool, bytes, bytes]], key: bytes
) -> None:
    tree: intervals.Tree[tuple[bytes, bytes]] = None
    there: list[tuple[bytes, bytes]] = []
    for is_insertion, begin, end in changes:
        if is_insertion and (begin, end) not in there:
            tree = intervals.insert(tree, begin, end, (begin, end))
            there.insert(bisect_left(there, (begin, end)), (begin, end))
        elif there:
            victim = there.pop(bisect_left(there, (begin, end)) % len(there))
            tree = intervals.remove(tree, *victim)
        heights(tree)
        found: list[tuple[bytes, bytes]] = []
        intervals.holding(tree, key, found)
        assert found == naive_holding(there, key)
        assert all(intervals.find(tree, *pair) == pair for pair in there)
        assert intervals.find(tree, b"\xff" * 9, b"") is None


def test_many_intervals_in_order_make_a_low_tree() -> None:
    tree: intervals.Tree[int] = None
    for number in range(4096):
        tree = intervals.insert(tree, b"%06d" % number, b"%06d" % (number + 2), number)
    assert heights(tree) <= 13
    found: list[int] = []
    intervals.holding(tree, b"002000x", found)
    assert found == [1999, 2000]
