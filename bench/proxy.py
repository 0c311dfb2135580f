"""Compare the gRPC proxy with etcd's, side by side: rates, events to watchers, added latency.

First both proxies stand in front of a real etcd each, so that only the proxies differ; then each
stands in front of its own server. On a small machine, members and load take most of the processors,
so the table also shows the proxy's processor time per call or event. A ratio above 1 is in Kvorum's
favour. Run it as `make bench-proxy`.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.load import WARM_UP_SECONDS, fill
from bench.server import (
    PUT,
    RANGE,
    VALUE,
    Scenario,
    check,
    key,
    linearizable,
    measure,
    put,
    serializable,
)
from bench.servers import Proxy, Server, serving
from bench.table import Row, as_row, header, keep
from bench.watchers import grpc_watchers, measure_watchers

KEYS = 1000
WATCHERS = (100, 1000)
GOAL = 2.0
SCENARIOS = (
    Scenario("put", PUT, put, GOAL),
    Scenario("linearizable range", RANGE, linearizable, GOAL),
    Scenario("cached range", RANGE, serializable, GOAL),
)
ALONE = (
    Scenario("put, one client", PUT, put, 1.0, alone=True),
    Scenario("range, one client", RANGE, linearizable, 1.0, alone=True),
)

Proxies = tuple[Proxy, Proxy]
Figures = tuple[list[tuple[float, float]], list[tuple[float, float]]]


def _row_pair(
    state: str,
    proxies: Proxies,
    names: tuple[str, str],
    units: tuple[str, str],
    goals: tuple[float, float],
    found: Figures,
) -> list[Row]:
    """Make two rows from pairs of figures, of etcd's proxy and of ours, round by round."""
    theirs, ours = ([list(each) for each in zip(*counters, strict=True)] for counters in found)
    return [
        as_row(
            state,
            names[place],
            units[place],
            proxies,
            theirs[place],
            ours[place],
            goals[place],
            less_is_better=units[place] == "us",
        )
        for place in (0, 1)
    ]


def rates(
    state: str,
    proxies: Proxies,
    name: str,
    rate_of: Callable[[Proxy], float],
    rounds: int,
    seconds: int,
) -> list[Row]:
    """Compare the rates of an operation, and its processor time in the proxies."""
    found: Figures = ([], [])
    for _ in range(rounds):
        for proxy, counters in zip(proxies, found, strict=True):
            before = proxy.processor_seconds()
            rate = rate_of(proxy)
            used = proxy.processor_seconds() - before
            counters.append((rate, used / rate / (seconds + WARM_UP_SECONDS) * 1e6))
    names = name, f"{name}: its time"
    return _row_pair(state, proxies, names, ("/s", "us"), (GOAL, GOAL), found)


def latencies(
    state: str, proxies: Proxies, scenario: Scenario, rounds: int, seconds: int
) -> list[Row]:
    """Compare a single client's median latency, and the part of it that the proxies add."""
    found: Figures = ([], [])
    for _ in range(rounds):
        for proxy, counters in zip(proxies, found, strict=True):
            direct = measure(proxy.member, scenario, seconds) * 1e6
            proxied = measure(proxy, scenario, seconds) * 1e6
            # Where the disk dominates, the difference may vanish.
            counters.append((proxied, max(proxied - direct, 1.0)))
    names = scenario.name, f"{scenario.name}: added"
    return _row_pair(state, proxies, names, ("us", "us"), (1.0, 1.0), found)


def prepare(proxies: Proxies) -> None:
    """Put the same keys into every member, and make each kind of request through each proxy."""
    for proxy in proxies:
        fill(proxy.address, ((key(number), VALUE) for number in range(KEYS)))
        for scenario in (*SCENARIOS, *ALONE):
            check(proxy, scenario)


def run(
    state: str, members: tuple[str, str], rounds: int, seconds: int, only: Sequence[str]
) -> list[Row]:
    """Compare the proxies, etcd's in front of the first member and ours in front of the second.

    With `only`, measure only rows whose names contain one of its words.
    """

    def is_wanted(name: str) -> bool:
        return not only or any(word in name for word in only)

    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def proxy(name: str, member: str) -> Proxy:
            behind = stack.enter_context(serving(Server(member, directory / f"behind-{name}")))
            return stack.enter_context(serving(Proxy(name, directory / name, behind)))

        proxies = proxy("etcd", members[0]), proxy("kvorum", members[1])
        prepare(proxies)
        for scenario in SCENARIOS:
            if not is_wanted(scenario.name):
                continue

            def calls(proxy: Proxy, scenario: Scenario = scenario) -> float:
                return measure(proxy, scenario, seconds)

            rows += rates(state, proxies, scenario.name, calls, rounds, seconds)
        for count in WATCHERS:
            if not is_wanted(f"{count:,} watchers"):
                continue

            def events(proxy: Proxy, count: int = count) -> float:
                return measure_watchers(proxy.address, grpc_watchers, key(0), count, seconds)

            rows += rates(state, proxies, f"{count:,} watchers", events, rounds, seconds)
        for scenario in filter(lambda scenario: is_wanted(scenario.name), ALONE):
            rows += latencies(state, proxies, scenario, rounds, seconds)
    return rows


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement")
    parser.add_argument("--only", nargs="+", default=(), help="words in the names of the rows")
    arguments = parser.parse_args()
    header()
    how = arguments.rounds, arguments.seconds, arguments.only
    rows = run("before etcd", ("etcd", "etcd"), *how)
    rows += run("before its own", ("etcd", "kvorum"), *how)
    keep(rows, "proxy")


if __name__ == "__main__":
    main()
