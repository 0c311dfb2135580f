"""`bench`: the calls that were asked for are made, and reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.tools.ctl.reports import ROWS, Timings, as_json, as_lines, histogram, report
from tests.tools.ctl.duel import run_here
from tests.tools.ctl.store import Store

PREFIX = b"kvorumctl-bench/"


@pytest.fixture(autouse=True)
def empty(store: Store) -> None:
    store.clear()


def test_puts(store: Store) -> None:
    words = ("--total=30", "--clients=5", "--conns=2", "--sequential-keys", "--key-space-size=7")
    before = store.revision
    (told,) = store.lines("bench", "put", *words, "--key-size=3", "--val-size=5", "-w", "json")
    assert told["put"]["count"] == 30 and told["put"]["failed"] == 0
    assert store.revision == before + 30
    found = store.content(PREFIX)
    assert sorted(found) == [PREFIX + b"%03d" % number for number in range(7)]
    assert {len(value) for value in found.values()} == {5}


def test_transactions(store: Store) -> None:
    before = store.revision
    words = ("--txn-ops=3", "--key-space-size=5", "--total=4", "--sequential-keys")
    (told,) = store.lines("bench", "txn", *words, "-w", "json")
    assert told["txn"]["count"] == 4
    assert store.revision == before + 4
    assert len(store.content(PREFIX)) == 5


def test_ranges(store: Store) -> None:
    for words in (("key",), ("a", "z", "--limit=1", "--consistency=s")):
        (told,) = store.lines("bench", "range", *words, "--total=20", "-w", "json")
        assert told["range"]["count"] == 20


def test_a_rate_gives_every_call_its_moment(store: Store) -> None:
    words = ("--total=11", "--rate=40", "--clients=3", "-w", "json")
    (told,) = store.lines("bench", "range", "key", *words)
    assert told["range"]["count"] == 11
    assert told["range"]["took_seconds"] >= 10 / 40


def test_reads_and_writes(store: Store) -> None:
    before = store.revision
    words = ("--read-percent=30", "--total=20", "--clients=3", "-w", "json")
    (told,) = store.lines("bench", "mixed", *words)
    assert (told["range"]["count"], told["put"]["count"]) == (6, 14)
    assert store.revision == before + 14


def test_watchers(store: Store) -> None:
    words = ("--watchers=3", "--conns=2", "--total=10", "-w", "json", "--command-timeout=60s")
    (told,) = store.lines("bench", "watch", *words)
    assert told["put"]["count"] == 10
    assert told["watch"]["count"] == 30 and told["watch"]["failed"] == 0


def test_a_report_for_people(store: Store) -> None:
    out = store.run("bench", "put", "--total=20").out.decode()
    assert out.startswith("put: 20 in ") and "0 failed" in out
    for name in ("fastest", "average", "p50", "p99.9", "slowest", "█"):
        assert name in out


def test_failures_are_reported() -> None:
    words = ["--endpoints=127.0.0.1:1", "--command-timeout=100ms", "bench", "put", "--total=2"]
    done = run_here(words)
    assert done.code == 1
    assert b"2 times: context deadline exceeded" in done.out
    assert b"no call succeeded" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("put", "--clients=0"), b"--clients 0"),
        (("put", "--total=-1"), b"--total -1"),
        (("put", "--rate=-1"), b"--rate"),
        (("range",), b"needs one argument"),
        (("range", "k", "--consistency=x"), b"unknown consistency"),
        (("mixed", "--read-percent=101"), b"--read-percent 101"),
        (("txn", "--txn-ops=2"), b"cannot set a key twice"),
        (("watch", "--watchers=0"), b"--watchers 0"),
    ],
)
def test_misuse_is_reported(store: Store, words: tuple[str, ...], told: bytes) -> None:
    assert told in store.run("bench", *words, code=128).err


TIMES = st.lists(st.floats(1e-7, 100.0), min_size=1, max_size=200)


@given(TIMES)
def test_reports_hold_what_was_timed(seconds: list[float]) -> None:
    timings = Timings()
    timings.seconds = seconds
    made = report("x", 2.0, timings)
    assert made.rate == len(seconds) / 2
    for percent in (50.0, 99.0, 99.9):
        limit = made.percentile(percent)
        assert sum(each <= limit for each in seconds) >= len(seconds) * percent / 100
        assert sum(each < limit for each in seconds) < len(seconds) * percent / 100
    assert as_json(made)["p50_seconds"] == made.percentile(50)
    assert as_lines(made)
    rows = histogram(made.seconds)
    assert len(rows) == ROWS
    assert sum(int(row.split(" ms")[1].split()[0].replace(",", "")) for row in rows) == len(seconds)
