"""Compare three members with three of etcd's on this machine, side by side, in one table of ratios.

Both clusters run at the same time, with the same timeouts; the load goes to one, then to the other,
round by round. Besides rates and latencies, the table shows how long a cluster accepts no writes
after its leader is killed or its host falls silent, how long a member takes to catch up, the memory
of all members, and their processor time without load. Run it as `make bench NODES=3` or `make
bench-cluster`; silent hosts need root.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.clusters import Cluster, running_cluster, wait_for_index
from bench.hosts import can_be_made, running_hosts
from bench.load import WARM_UP_SECONDS, Load, channel, fill
from bench.server import (
    LOAD_PROCESSES,
    PUT,
    RANGE,
    TXN,
    VALUE,
    Scenario,
    check,
    key,
    linearizable,
    measure,
    put,
    serializable,
    txn,
)
from bench.servers import Server
from bench.table import Row, as_row, compared, header, keep, show

SIZE = 3
STATE = "three members"
ATTEMPT_SECONDS = 0.01
"""Interval between a client's writes to each survivor after the leader was killed."""
PARTS = ("rates", "latencies", "memory", "idle", "failover", "silence", "catch-up")

Choice = Callable[[Cluster], Server]
Act = Callable[[Server], None]


def _leader(cluster: Cluster) -> Server:
    return cluster.leader()


def _follower(cluster: Cluster) -> Server:
    return cluster.followers()[0]


SCENARIOS: tuple[tuple[Scenario, Choice], ...] = (
    (Scenario("put, 256 B", PUT, put, 1.5), _leader),
    (Scenario("put through a follower", PUT, put, 1.5), _follower),
    (Scenario("txn, compare and put", TXN, txn, 1.5), _leader),
    (Scenario("linearizable range", RANGE, linearizable, 1.5), _leader),
    (Scenario("the same through a follower", RANGE, linearizable, 1.5), _follower),
    (Scenario("serializable, by a follower", RANGE, serializable, 1.5), _follower),
    (Scenario("put, one client", PUT, put, 1.0, alone=True), _leader),
    (Scenario("put, one client, follower", PUT, put, 1.0, alone=True), _follower),
    (Scenario("txn, one client", TXN, txn, 1.0, alone=True), _leader),
    (Scenario("linearizable, one client", RANGE, linearizable, 1.0, alone=True), _leader),
    (Scenario("the same, follower", RANGE, linearizable, 1.0, alone=True), _follower),
)


def failover_seconds(cluster: Cluster, lose: Act, mend: Act) -> float:
    """Lose the leader; return the time until another member has acknowledged a write."""
    leader = cluster.leader()
    survivors = [member for member in cluster.members if member is not leader]
    acknowledged = threading.Event()
    answered_at: list[float] = []

    def answer(call: Any) -> None:
        if not call.cancelled() and call.exception() is None:
            answered_at.append(time.monotonic())
            acknowledged.set()

    with ExitStack() as stack:
        channels = [stack.enter_context(channel(each.address)) for each in survivors]
        puts = [each.unary_unary(PUT) for each in channels]
        for each in puts:
            each(put(key(0)), timeout=10)
        lost_at = time.monotonic()
        lose(leader)
        # A write may get stuck waiting for the lost leader, so the client keeps sending new ones.
        while not acknowledged.wait(ATTEMPT_SECONDS):
            for each in puts:
                each.future(put(key(0)), timeout=2).add_done_callback(answer)
        found = min(answered_at) - lost_at
    mend(leader)
    leader.wait_until_healthy()
    cluster.settle()
    return found


def _silence(server: Server) -> None:
    assert server.host is not None, "it runs among all others"
    server.host.silence()


def _let_speak(server: Server) -> None:
    assert server.host is not None, "it runs among all others"
    server.host.speak()


def catch_up_seconds(cluster: Cluster, writes: int) -> float:
    """Return how long a restarted member takes to apply the entries it missed."""
    follower = _follower(cluster)
    follower.stop()
    messages = [put(key(number)) for number in range(LOAD_PROCESSES)]
    Load(
        cluster.leader().address,
        PUT,
        messages,
        connections=20 // LOAD_PROCESSES,
        streams=50,
        requests=writes // LOAD_PROCESSES,
    ).finish()
    target = cluster.applied()
    began = time.monotonic()
    follower.launch()
    wait_for_index(follower, target)
    return time.monotonic() - began


def rates(both: tuple[Cluster, Cluster], rounds: int, seconds: int, *, alone: bool) -> list[Row]:
    """Compare request rates and processor costs, or the latency of one client."""
    rows = []
    for scenario, choose in SCENARIOS:
        if scenario.alone != alone:
            continue
        costs: dict[Cluster, list[float]] = {cluster: [] for cluster in both}

        def figure(
            cluster: Cluster,
            scenario: Scenario = scenario,
            choose: Choice = choose,
            costs: dict[Cluster, list[float]] = costs,
        ) -> float:
            target = choose(cluster)
            began = cluster.processor_seconds()
            value = measure(target, scenario, seconds)
            if scenario.alone:
                return value * 1e6
            requests = value * (seconds + WARM_UP_SECONDS)
            costs[cluster].append((cluster.processor_seconds() - began) / requests * 1e6)
            return value

        rows.append(
            compared(
                STATE,
                scenario.name,
                "us" if alone else "/s",
                both,
                rounds,
                scenario.goal,
                figure,
                less_is_better=alone,
            )
        )
        if not alone:
            # The cost of all members together; other load on the machine hardly changes it.
            name = f"{scenario.name}: cost"
            theirs, ours = (costs[cluster] for cluster in both)
            rows.append(
                as_row(STATE, name, "us", both, theirs, ours, scenario.goal, less_is_better=True)
            )
    return rows


def failovers(
    both: tuple[Cluster, Cluster], times: int, name: str, goal: float, lose: Act, mend: Act
) -> Row:
    """Compare the median time without a leader over many losses."""
    theirs, ours = [], []
    for _ in range(times):
        theirs.append(failover_seconds(both[0], lose, mend) * 1e3)
        ours.append(failover_seconds(both[1], lose, mend) * 1e3)
    medians = statistics.median(theirs), statistics.median(ours)
    # Timeouts are random, so rounds cannot be compared: show ratios of best, mean and worst.
    others = [f(theirs) / f(ours) for f in (min, statistics.mean, max)]
    ratio = medians[0] / medians[1]
    row = Row(STATE, name, "ms", both[0].name, *medians, ratio, others, goal)
    show(row)
    for kind, found in ((both[0].name, theirs), (both[1].name, ours)):
        print(f"    {kind}: {', '.join(f'{each:.0f}' for each in sorted(found))}", flush=True)
    return row


def idling(both: tuple[Cluster, Cluster], seconds: int) -> Row:
    """Compare the members' processor time without any load."""
    began = [cluster.processor_seconds() for cluster in both]
    time.sleep(seconds)
    theirs, ours = (
        (cluster.processor_seconds() - before) / seconds * 1e3
        for cluster, before in zip(both, began, strict=True)
    )
    name = "idle, all members"
    return as_row(STATE, name, "ms/s", both, [theirs], [ours], 1.0, less_is_better=True)


@contextmanager
def running_both(
    against: str, size: int = SIZE, *, on_hosts: bool = False
) -> Iterator[tuple[Cluster, Cluster]]:
    """Run a cluster of each kind within the block."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(running_hosts(2 * size)) if on_hosts else None
        first, second = (
            stack.enter_context(
                running_cluster(
                    kind,
                    directory / f"{number}",
                    size,
                    hosts and hosts[number * size : (number + 1) * size],
                )
            )
            for number, kind in enumerate(("etcd", against))
        )
        for cluster in (first, second):
            fill(cluster.leader().address, ((key(number), VALUE) for number in range(1000)))
            cluster.settle()
        yield first, second


def run(arguments: argparse.Namespace) -> list[Row]:
    """Run the requested parts of the comparison."""
    parts = arguments.only or PARTS
    rows: list[Row] = []
    if set(parts) - {"silence", "catch-up"}:
        rows += serving(arguments, parts)
    if "silence" in parts and can_be_made():
        with running_both(arguments.against, on_hosts=True) as both:
            name = f"failover, {arguments.kills} silent hosts"
            rows.append(failovers(both, arguments.kills, name, 1.0, _silence, _let_speak))
    if "catch-up" in parts:
        # Separate clusters: in the others, the faster one has received more writes by now.
        with running_both(arguments.against) as both:
            rows.append(
                compared(
                    STATE,
                    f"catch-up, {arguments.writes:,} writes",
                    "s",
                    both,
                    1,
                    1.0,
                    lambda cluster: catch_up_seconds(cluster, arguments.writes),
                    less_is_better=True,
                )
            )
    return rows


def serving(arguments: argparse.Namespace, parts: Sequence[str]) -> list[Row]:
    """Compare the parts that need both clusters to serve clients."""
    rows: list[Row] = []
    with running_both(arguments.against) as both:
        for cluster in both:
            for scenario, choose in SCENARIOS:
                check(choose(cluster), scenario)
        if "rates" in parts:
            rows += rates(both, arguments.rounds, arguments.seconds, alone=False)
        if "latencies" in parts:
            rows += rates(both, arguments.rounds, arguments.seconds, alone=True)
        if "memory" in parts:
            rows.append(
                compared(
                    STATE,
                    "anonymous memory of all",
                    "MiB",
                    both,
                    1,
                    1.0,
                    lambda cluster: cluster.anonymous_bytes() / (1 << 20),
                    less_is_better=True,
                )
            )
        if "idle" in parts:
            rows.append(idling(both, arguments.idle_seconds))
        if "failover" in parts:
            name = f"failover, {arguments.kills} kills"
            rows.append(failovers(both, arguments.kills, name, 1.0, Server.kill, Server.launch))
    return rows


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    parser.add_argument("--kills", type=int, default=20, help="of each cluster's leader")
    parser.add_argument("--idle-seconds", type=int, default=20, help="that nobody asks anything")
    parser.add_argument("--writes", type=int, default=1_000_000, help="that a member misses")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts of the comparison")
    parser.add_argument("--against", default="kvorum", help="`etcd` shows the noise")
    arguments = parser.parse_args()
    header()
    rows = run(arguments)
    if not arguments.only:
        keep(rows, "cluster")


if __name__ == "__main__":
    main()
