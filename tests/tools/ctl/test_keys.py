"""`get`, `put`, `del` and `compaction` beside etcdctl's."""

import itertools
import json

import pytest

from tests.etcd import is_target
from tests.tools.ctl.duel import Duel
from tests.tools.ctl.store import Store

FORMATS = ("simple", "fields", "json", "protobuf", "table", "nonsense")
PLAIN_FORMATS = ("simple", "fields", "json")
BYTES = "\udcff\udcfe"
"""Two bytes that are no text, as a shell passes them."""


@pytest.mark.parametrize("form", PLAIN_FORMATS)
@pytest.mark.parametrize("hexadecimal", ["--hex=false", "--hex"])
def test_keys_look_the_same(duel: Duel, form: str, hexadecimal: str) -> None:
    options = ("-w", form, hexadecimal)
    for key, value in (
        ("a", "1"),
        ("b", "<&>\u2028 ü"),
        ("c", ""),
        ("d", 'quo"te\\\n\x01'),
        ("e", BYTES),
    ):
        duel.compare("put", f"look/{key}", value, *options)
    duel.compare("put", "look/a", "2", "--prev-kv", *options)
    duel.compare("get", "look/a", *options)
    duel.compare("get", "look/none", *options)
    duel.compare("get", "--prefix", "look/", *options)
    duel.compare("get", "--prefix", "look/", "--keys-only", *options)
    duel.compare("get", "--prefix", "look/", "--limit", "2", *options)
    duel.compare("get", "--prefix", "look/", "--count-only", *options)
    duel.compare("get", "--prefix", "look/", "--print-value-only", *options)
    duel.compare("get", "look/b", "look/d", *options)
    duel.compare("get", "--from-key", "look/c", *options)
    duel.compare("del", "look/a", "--prev-kv", *options)
    duel.compare("del", "look/a", *options)
    duel.compare("del", "--prefix", "look/", "--prev-kv", *options)


@pytest.mark.parametrize("form", ["protobuf", "table", "nonsense", ""])
def test_formats_that_are_refused_are_refused_after_the_work(duel: Duel, form: str) -> None:
    # A message in protobuf has ids of its cluster, which differ.
    for words in (("put", "odd", form), ("get", "odd"), ("del", "odd")):
        duel.compare(*words, "-w", form, change=lambda data: b"" if form == "protobuf" else data)
    duel.compare("get", "odd")


@pytest.mark.parametrize(
    "options",
    [
        ("--order", "descend"),
        ("--order=ASCEND",),
        ("--sort-by", "version"),
        ("--sort-by=MODIFY", "--order=DESCEND"),
        ("--sort-by=VALUE",),
        ("--sort-by=CREATE", "--limit=1"),
        ("--consistency=s",),
        ("--consistency=x",),
        ("--order=sideways",),
        ("--sort-by=size",),
        ("--min-create-rev=3",),
        ("--min-mod-rev=5", "--max-mod-rev=6"),
        ("--max-create-rev=3", "--min-create-rev=5"),
        ("--max-mod-rev=3", "--min-mod-rev=5"),
        ("--rev=-1",),
        ("--rev=3",),
        ("--rev=100000",),
        ("--from-key",),
        ("--keys-only", "--count-only"),
        ("--limit=x",),
        ("--limit=0x2",),
        ("--limit",),
        ("--nosuch",),
        ("-z",),
        ("extra",),
        ("--stream",),
        ("--stream", "--limit=2"),
        ("--stream", "--sort-by=CREATE"),
        ("--stream", "--sort-by=VALUE"),
        ("--stream", "--sort-by=VALUE", "--order=DESCEND"),
    ],
)
def test_options_of_get(duel: Duel, options: tuple[str, ...]) -> None:
    for key in ("x", "z", "y", "x"):
        duel.compare("put", f"options/{key}", key * 3)
    duel.compare("get", "--prefix", "options/", "-w", "fields", *options, change=_without_usage)


SORTS = ("", "KEY", "CREATE", "MODIFY", "VALUE", "VERSION", "nothing")
ORDERS = ("", "ASCEND", "DESCEND")
REST: tuple[tuple[str, ...], ...] = (
    (),
    ("--keys-only",),
    ("--count-only",),
    ("--print-value-only",),
    ("--limit=2",),
    ("--limit=2", "--consistency=s"),
    ("--limit=-1",),
    ("--rev=4",),
    ("--rev=100000",),
    ("--min-mod-rev=3",),
    ("--max-create-rev=3",),
)


@pytest.mark.long
@pytest.mark.parametrize("by", SORTS)
def test_streams_take_every_combination_of_options(duel: Duel, by: str) -> None:
    # Fewer keys than make a piece of etcd's answers, whose servers sort each piece by itself. All
    # values and versions differ, since the order of equal ones is open.
    for count, key in enumerate("zxyw", 1):
        for number in range(count):
            duel.compare("put", f"{by}s/{key}", f"{(7 * count + number) % 5}{number}")
    for order, rest, form in itertools.product(ORDERS, REST, ("simple", "fields", "json")):
        if by not in ("", "KEY", "nothing") and not order and "--limit=2" in rest:
            # A difference that is meant: etcdctl takes the first keys by name, and sorts those.
            continue
        options = ["--stream", *rest]
        options += [f"--sort-by={by}"] if by else []
        options += [f"--order={order}"] if order else []
        duel.compare("get", "--prefix", f"{by}s/", "-w", form, *options, change=_without_usage)


@pytest.mark.parametrize("by", [sort for sort in SORTS if sort not in ("", "nothing")])
def test_a_sorted_stream_is_a_sorted_range(
    store: Store, by: str, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["store"] == "etcd" and not is_target():
        pytest.skip("etcd 3.5.1 streams no ranges")
    # Enough keys for several pieces, put in another order than that of their names and values.
    for number in range(40):
        store.client.put(f"{by}/{number * 7 % 40:02}", f"{number * 11 % 40:02}")
        if by == "VERSION":
            for _ in range(number * 3 % 5):
                store.client.put(f"{by}/{number * 7 % 40:02}", f"{number * 11 % 40:02}")
    words = ("get", "--prefix", f"{by}/", f"--sort-by={by}", "-w", "json")
    for limit in (0, 1, 25, 40, 41):
        ranged, streamed = (
            json.loads(store.run(*words, f"--limit={limit}", *more).out)
            for more in ((), ("--stream",))
        )
        assert ranged.get("count") == streamed.get("count") == 40
        assert ranged.get("more") == streamed.get("more")
        if by == "VERSION":
            # The order of keys with equal versions is open.
            versions = [[kv["version"] for kv in each["kvs"]] for each in (ranged, streamed)]
            assert versions[0] == versions[1]
        else:
            assert ranged["kvs"] == streamed["kvs"]


@pytest.mark.parametrize(
    "words",
    [
        ("get",),
        ("get", ""),
        ("get", "a", "b", "c"),
        ("get", "a", "b", "--prefix"),
        ("put",),
        ("put", ""),
        ("put", "", "v"),
        ("put", "a", "b", "c"),
        ("put", "a", "b", "--ignore-value"),
        ("put", "nokey", "--ignore-value"),
        ("put", "nokey", "v", "--ignore-lease"),
        ("put", "a", "b", "--lease=xyz"),
        ("put", "a", "b", "--lease=1234"),
        ("put", "a", "b", "--lease=-1"),
        ("put", "a", "--", "-v"),
        ("del",),
        ("del", ""),
        ("del", "a", "b", "--prefix"),
        ("del", "a", "--prefix", "--from-key"),
        ("del", "ra", "rb", "--range"),
        ("compaction",),
        ("compaction", "x"),
        ("compaction", "100000"),
        ("compaction", "0x1"),
        ("compaction", "1", "2"),
        ("compact", "-1"),
    ],
)
def test_what_is_refused(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare(*words, change=_without_usage)


def test_values_come_from_the_standard_input(duel: Duel) -> None:
    duel.compare("put", "stdin", stdin=b"one\ntwo\n\xff")
    duel.compare("get", "stdin")


@pytest.mark.long
def test_a_range_is_deleted_after_a_warning(duel: Duel) -> None:
    duel.compare("put", "ra", "1")
    duel.compare("del", "ra", "rb")


def test_compacted_revisions_are_refused(duel: Duel) -> None:
    duel.compare("put", "old", "1")
    duel.compare("put", "old", "2")
    duel.compare("compaction", "3", "--physical")
    duel.compare("compaction", "3")
    duel.compare("get", "old", "--rev", "2")


def _without_usage(data: bytes) -> bytes:
    """Leave the help out that follows an error: it is in our own words."""
    return data.partition(b"Usage:")[0]
