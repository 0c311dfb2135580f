"""Permitted ranges against a set of keys: what is permitted is what every asked key is in."""

from itertools import pairwise
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.state.auth.ranges import OPEN_END, KeyRanges
from tests.state.auth.model import KEYS, Pair, is_permitted

keys = st.sampled_from(KEYS)
ends = st.one_of(keys, st.just(b""), st.just(OPEN_END))
permissions = st.lists(st.tuples(keys, ends), max_size=8)


@given(permissions, keys, ends)
def test_as_a_set_of_keys(permitted: list[Pair], key: bytes, range_end: bytes) -> None:
    expected = is_permitted(permitted, key, range_end)
    assert KeyRanges(permitted).permits(key, range_end) == expected


@given(permissions, st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_matters(permitted: list[Pair], random: object) -> None:
    again = permitted * 2
    random.shuffle(again)  # type: ignore[attr-defined]
    one, other = KeyRanges(permitted), KeyRanges(again)
    for key in KEYS:
        for end in (b"", *KEYS):
            assert one.permits(key, end) == other.permits(key, end)


@given(permissions, permissions)
def test_a_grant_takes_nothing_away(some: list[Pair], more: list[Pair]) -> None:
    few, many = KeyRanges(some), KeyRanges(some + more)
    for key in KEYS:
        for end in (b"", *KEYS):
            assert many.permits(key, end) or not few.permits(key, end)


@pytest.mark.parametrize(
    ("permitted", "asked", "expected"),
    [
        ([], (b"a", b""), False),
        ([(b"a", b"")], (b"a", b""), True),
        ([(b"a", b"")], (b"a", b"a\0"), True),
        ([(b"a", b"")], (b"a", b"a\0\0"), False),
        ([(b"a", b""), (b"a\0", b"b")], (b"a", b"b"), True),
        ([(b"a", b"b"), (b"b", b"c")], (b"a", b"c"), True),
        ([(b"a", b"b"), (b"b\0", b"c")], (b"a", b"c"), False),
        ([(b"a", b"d"), (b"b", b"c")], (b"a", b"d"), True),
        ([(b"a", b"c"), (b"b", b"d")], (b"a", b"d"), True),
        ([(b"a", OPEN_END)], (b"b", OPEN_END), True),
        ([(b"a", OPEN_END)], (b"\0", OPEN_END), False),
        ([(b"a", b"\xff\xff")], (b"b", OPEN_END), False),
        ([(b"a", b"m"), (b"m", OPEN_END)], (b"a", OPEN_END), True),
        ([(b"\0", OPEN_END)], (b"\0", OPEN_END), True),
        # Inverted and empty: as if only the key were asked for.
        ([(b"b", b"c"), (b"x", b"")], (b"b", b"a"), True),
        ([(b"b", b"c"), (b"x", b"")], (b"b", b"b"), True),
        ([(b"b", b"c"), (b"x", b"")], (b"c", b"a"), False),
        # Stored by older etcds; permits nothing.
        ([(b"c", b"a")], (b"c", b""), False),
    ],
)
def test_examples(permitted: list[Pair], asked: Pair, expected: bool) -> None:
    assert KeyRanges(permitted).permits(*asked) is expected


class Counted(bytes):
    """A key that counts how often keys are compared with it."""

    comparisons = 0

    def __lt__(self, other: bytes) -> bool:
        Counted.comparisons += 1
        return bytes(self) < bytes(other)

    def __le__(self, other: bytes) -> bool:
        Counted.comparisons += 1
        return bytes(self) <= bytes(other)

    def __gt__(self, other: bytes) -> bool:
        Counted.comparisons += 1
        return bytes(self) > bytes(other)

    def __ge__(self, other: bytes) -> bool:
        Counted.comparisons += 1
        return bytes(self) >= bytes(other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("count", [1, 10, 1000, 30_000])
@pytest.mark.parametrize("shape", ["points", "ranges", "touching", "nested"])
def test_a_look_up_takes_few_comparisons(count: int, shape: str) -> None:
    """As many as halving takes, however many grants there are and whatever is asked."""
    names = [b"%08d" % number for number in range(2 * count + 1)]
    permitted = {
        "points": [(name, b"") for name in names[::2]],
        "ranges": list(zip(names[::2], names[1::2], strict=False)),
        "touching": list(pairwise(names)),
        "nested": [(name, names[-1 - place]) for place, name in enumerate(names[:count])],
    }[shape]
    ranges = KeyRanges(permitted)
    total = 0
    for key in (names[0], names[count // 2], names[-1], b"", b"~"):
        for end in (b"", OPEN_END, key + b"\0", b"~~", b"0"):
            Counted.comparisons = 0
            ranges.permits(Counted(key), end)
            assert Counted.comparisons <= ceil(log2(count + 1)) + 4
            total += Counted.comparisons
    assert total
