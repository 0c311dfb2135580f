"""Run etcd's own `benchmark` against both servers, and print its rates and p99 as ratios.

`make oracle` builds the tool. Both clusters run at the same time; each command runs against one,
then against the other, round by round, on the same processors as the servers. Rates count for
commands without a rate limit, and latencies for commands that measure single calls or events. Run
it as `make bench-etcd`.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.clusters import Cluster, running_cluster
from bench.load import fill
from bench.servers import opponent
from bench.table import Row, as_row, header, keep

GOAL = 1.0
KEYS = 10_000
KEY = b"/bench/%08d"
VALUE = b"x" * 256
MANY = ("--clients=200", "--conns=20")
TOOL_SECONDS_MAX = 120


@dataclass(frozen=True, slots=True)
class Summary:
    """The tool's result for one kind of calls or events."""

    per_second: float
    p99: float
    """In seconds; the slowest request's, if the tool had too few for a percentile."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that count in one summary of a command."""

    summary: int = 0
    of: str = ""
    """The subject of the summary, for commands that print several."""
    rate: bool = True
    p99: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """A command of the tool, and the figures of it that count."""

    name: str
    arguments: tuple[str, ...]
    counters: tuple[Figures, ...] = (Figures(),)


FIXED_RATE = (Figures(1, rate=False),)
LATENCY = ("watch-latency", "--put-rate=200", "--put-total=400")
LARGE = ("watch-latency", "--put-rate=20", "--put-total=60", "--val-size=262144")
FEW_WATCHERS = ("--streams=5", "--watchers-per-stream=2")
WATCHERS = ("--streams=10", "--watch-per-stream=100", "--watched-key-total=10")
PUT = ("put", "--val-size=256", "--key-size=16", "--key-space-size=10000")
TXN = ("txn-put", "--val-size=256", "--key-size=16", "--key-space-size=10000")
ONE_KEY = ("range", (KEY % 0).decode())
MIXED = ("txn-mixed", (KEY % 0).decode(), "--limit=10", "--val-size=256", "--key-size=16")
THOUSAND = ("range", "/bench/", "/bench0", "--limit=1000")
CASES = (
    Case("put, one client", (*PUT, "--total=1500")),
    Case("put", (*PUT, *MANY, "--total=30000")),
    Case("range, one client", (*ONE_KEY, "--total=2500")),
    Case("range", (*ONE_KEY, *MANY, "--total=30000")),
    Case("range, serializable", (*ONE_KEY, *MANY, "--consistency=s", "--total=30000")),
    Case("range of 1,000 keys", (*THOUSAND, "--clients=20", "--conns=5", "--total=400")),
    Case("txn-put, 10 puts", (*TXN, *MANY, "--txn-ops=10", "--total=4000")),
    Case(
        "txn-mixed", (*MIXED, *MANY, "--total=20000"), (Figures(0, "reads"), Figures(1, "writes"))
    ),
    Case(
        "watch",
        ("watch", *MANY, *WATCHERS, "--put-total=1000"),
        (Figures(0, "creation"), Figures(1, "events", p99=False)),
    ),
    Case("watch-get", ("watch-get", "--watchers=2000", "--streams=10")),
    Case("watch-latency", LATENCY, FIXED_RATE),
    Case("watch-latency, prevkv", (*LATENCY, "--prevkv"), FIXED_RATE),
    Case("watch-latency, 256 KiB", (*LARGE, *FEW_WATCHERS), FIXED_RATE),
    Case("watch-latency, 256 KiB, prevkv", (*LARGE, *FEW_WATCHERS, "--prevkv"), FIXED_RATE),
    Case("lease-keepalive", ("lease-keepalive", *MANY, "--total=30000")),
    Case("lease-keepalive, one client", ("lease-keepalive", "--total=2500")),
    Case("stm", ("stm", *MANY, "--keys=1000", "--keys-per-txn=2", "--total=5000")),
)


def summaries(output: str) -> list[Summary]:
    """Parse the tool's output."""
    found = []
    for part in output.split("Summary:")[1:]:
        rate = re.search(r"Requests/sec:\s+(\S+)", part)
        slowest = re.search(r"Slowest:\s+(\S+) secs", part)
        p99 = re.search(r"^ *99% in (\S+) secs", part, re.MULTILINE) or slowest
        assert rate is not None and p99 is not None, output
        found.append(Summary(float(rate[1]), float(p99[1])))
    return found


def measure(tool: Path, cluster: Cluster, case: Case) -> list[Summary]:
    """Run a command against a cluster and parse its results."""
    endpoints = ",".join(member.address for member in cluster.members)
    command = [str(tool), f"--endpoints={endpoints}", "--precise", *case.arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TOOL_SECONDS_MAX
    )
    found = summaries(done.stdout)
    if done.returncode or not found or "Error distribution" in done.stdout:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr[-2_000:]}")
    return found


def compare(
    tool: Path, clusters: tuple[Cluster, Cluster], cases: list[Case], rounds: int
) -> list[Row]:
    """Run all cases against both clusters; return a row for each figure that counts."""
    rows = []
    size = len(clusters[0].members)
    state = "one member" if size == 1 else f"{size} members"
    for case in cases:
        theirs, ours = zip(
            *[[measure(tool, cluster, case) for cluster in clusters] for _ in range(rounds)],
            strict=True,
        )
        for each in case.counters:
            name = f"{case.name}, {each.of}" if each.of else case.name
            sides = [[found[each.summary] for found in side] for side in (theirs, ours)]
            if each.rate:
                rates = [[found.per_second for found in side] for side in sides]
                rows.append(_row(state, name, "/s", clusters, rates))
            if each.p99:
                times = [[found.p99 * 1e3 for found in side] for side in sides]
                rows.append(_row(state, f"{name}: p99", "ms", clusters, times))
    return rows


def _row(
    state: str,
    name: str,
    unit: str,
    clusters: tuple[Cluster, Cluster],
    counters: Iterable[Sequence[float]],
) -> Row:
    theirs, ours = counters
    less = unit == "ms"
    return as_row(state, name, unit, clusters, theirs, ours, GOAL, less_is_better=less)


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="cases whose name has one of these in it")
    given = parser.parse_args()
    tool = opponent().programs / "benchmark"
    if not tool.exists():
        raise SystemExit("etcd's benchmark is not here; 'make oracle' builds it where there is Go")
    wanted = given.only or [""]
    cases = [case for case in CASES if any(part in case.name for part in wanted)]
    header()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd, ours = (
            stack.enter_context(running_cluster(name, directory, given.members))
            for name in ("etcd", "kvorum")
        )
        for cluster in (etcd, ours):
            fill(cluster.leader().address, ((KEY % number, VALUE) for number in range(KEYS)))
        rows = compare(tool, (etcd, ours), cases, given.rounds)
    keep(rows, f"benchmark-tool-{given.members}")


if __name__ == "__main__":
    main()
