"""`top`: a table on a terminal until q is pressed, lines of JSON elsewhere."""

import urllib.request
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvorum.tools.cli.parsing import parse
from kvorum.tools.ctl import top
from kvorum.tools.ctl.commands import ROOT
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.samples import GAUGES, LATENCIES, RATES, Sampler
from kvorum.tools.ctl.scraping import parse_samples, quantile, rate, total
from kvorum.tools.ctl.top import ENTER, LEAVE, iterate_samples
from tests.etcd import is_target
from tests.tools.ctl.store import Store
from tests.tools.ctl.terminal import kvorumctl
from tests.waiting import WAIT_SECONDS_MAX, until


def test_each_look_is_a_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy member may take longer to answer.
    monkeypatch.setattr(top, "ANSWER_SECONDS_MIN", WAIT_SECONDS_MAX)
    first, second = store.lines("top", "--count=2", "--interval=1ms")
    (member,) = second["members"]
    assert member["is_up"] and member["is_leader"]
    assert member["endpoint"] == store.address
    assert second["leader"] == member["member"]
    assert second["revision"] == member["revision"] == store.revision
    assert member["raft_lag"] == 0
    assert member["database_bytes"] >= member["database_bytes_used"] > 0
    assert member["watchers"] is not None and member["memory_bytes"] > 0
    assert all(first["members"][0][f"{name}_per_second"] is None for name in RATES)


def test_rates_and_latencies_are_of_the_time_between_looks(store: Store) -> None:
    given = parse(ROOT, ["--endpoints", store.address, "top"])
    looker = Sampler(CtlInvocation(ROOT, given), store.client, [store.address], WAIT_SECONDS_MAX)
    looks = iterate_samples(looker)
    next(looks)

    def counted() -> Mapping[str, float] | None:
        for _ in range(10):
            store.client.put("top", "x")
        (member,) = next(looks)["members"]
        return member if member["puts_per_second"] else None

    # A page of metrics may be as old as a second.
    member = until("a look tells of the puts", counted)
    assert member["calls_per_second"] > 0
    if is_target():
        assert member["request_p99_seconds"] >= member["request_p50_seconds"] > 0


def test_what_is_counted_is_what_the_member_tells(store: Store) -> None:
    with urllib.request.urlopen(f"http://{store.address}/metrics") as answer:
        page = answer.read().decode()
    samples = parse_samples(page)
    wanted = [
        sample for family in text_string_to_metric_families(page) for sample in family.samples
    ]
    for name in {*RATES.values(), *GAUGES.values()}:
        values = [each.value for each in wanted if each.name == name]
        assert total(samples, name) == pytest.approx(sum(values))
    for name in LATENCIES.values():
        buckets = [each for each in wanted if each.name == f"{name}_bucket"]
        assert {key for key in samples if key[0] == f"{name}_bucket"} or not buckets


def test_quantiles_lie_in_their_bucket() -> None:
    def page(*counts: int) -> dict[tuple[str, str], float]:
        bounds = ("0.1", "0.2", "+Inf")
        return {
            ("t_bucket", f'kind="x",le="{bound}"'): float(count)
            for bound, count in zip(bounds, counts, strict=True)
        }

    assert quantile(page(0, 0, 0), page(10, 10, 10), "t", 0.5) == pytest.approx(0.05)
    assert quantile(page(5, 5, 5), page(5, 15, 15), "t", 0.5) == pytest.approx(0.15)
    assert quantile(page(0, 0, 0), page(0, 0, 4), "t", 0.99) == pytest.approx(0.2)
    assert quantile(page(5, 5, 5), page(5, 5, 5), "t", 0.5) is None
    assert rate({("n", ""): 5.0}, {("n", ""): 15.0}, "n", 2.0) == 5.0
    assert rate({("n", ""): 5.0}, {("n", ""): 2.0}, "n", 2.0) == 1.0
    assert rate({}, {("n", ""): 2.0}, "n", 2.0) is None


def test_a_member_that_does_not_answer_is_reported(store: Store) -> None:
    words = ("--endpoints=127.0.0.1:1", "--command-timeout=300ms", "top", "--count=1")

    def answers() -> bool:
        (look,) = store.lines(*words)
        up, down = look["members"]
        assert not down["is_up"] and down["problem"]
        return bool(up["is_up"])

    # The one that nobody serves is tried until the time is over, in which the other one may not
    # answer if it is busy.
    until("the member that answers is told of", answers)


def test_the_table_is_drawn_until_q_is_pressed(store: Store) -> None:
    words = ("--endpoints=127.0.0.1:1", "--command-timeout=2s", "top", "--interval=50ms")
    with kvorumctl(store.address, *words) as terminal:
        terminal.wait_for(b"\x1b\\[\\?1049h")
        for _ in range(2):
            terminal.wait_for("kvorumctl top")
            terminal.wait_for("ENDPOINT")
            terminal.wait_for(f"{store.address}  leader")
            terminal.wait_for(r"127\.0\.0\.1:1: ")
        terminal.type("xq")
        assert terminal.end() == 0
    assert terminal.seen.startswith(ENTER.encode())
    assert terminal.seen.endswith(LEAVE.encode())


def test_misuse_is_reported(store: Store) -> None:
    assert b"no arguments" in store.run("top", "x", code=128).err
    assert b"--interval" in store.run("top", "--interval=0s", code=128).err
    assert b"not supported" in store.run("top", "-w", "table", code=4).err
