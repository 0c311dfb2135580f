"""Measure the slowest calls under Kubernetes' load, and the activities that ran beside them.

Both servers run in turn, with one and with three members, under the same fixed-rate load: updates
of node leases beside watchers, lists in pages, compactions, one snapshot and one defragmentation,
both at the leader. Short trials first find the rate that both servers hold; if Kvorum holds a
higher one, it is measured at that rate as well. Run it as `make bench-tail`.
"""

import argparse
import gc
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.clusters import Cluster, ended_cluster
from bench.duties import Compactions, Defragment, Lists, Snapshot
from bench.kubernetes import Clients, Seen, objects
from bench.latencies import Pause, Percentiles, by_activity, by_second, pauses, percentiles
from bench.load import fill
from bench.plot import Panel, timeline
from bench.servers import opponent
from bench.table import RESULTS

LEASE_SECONDS = 10
"""How often a node renews its lease; this and the rate determine the number of leases."""
TRIAL_SECONDS = 6
WARM_UP_SECONDS = 3
HELD_SECONDS = 0.1
"""A rate is held if, in the last third of a trial, after a compaction, the median update takes no
longer, and the whole trial had no refusals."""
LOWER_MIN, LOWER_MAX = 0.5, 0.85
"""The next trial's rate is the rate that was answered, limited to these fractions of the previous
rate."""
PAUSE_SECONDS = 0.1
PAUSES_SHOWN = 8
LIST = "list"
NICENESS = -10
"""The generator must not wait for a processor that servers keep busy."""


@dataclass(frozen=True, slots=True)
class Options:
    """The parameters of a run."""

    objects: int
    rate: int
    seconds: int
    pages: int
    compact: int

    @property
    def leases(self) -> int:
        """How many of the objects are leases."""
        return min(self.rate * LEASE_SECONDS, self.objects // 2)


def is_held(seen: Seen) -> bool:
    """Return whether a trial's rate was held, so that its calls did not queue up."""
    last = seen.updates[-len(seen.updates) // 3 :]
    return not seen.refusals and percentiles(last).median <= HELD_SECONDS


def held_rate(clients: Clients, options: Options, leader: int) -> int:
    """Try falling rates, beside lists and a compaction; return the first that is held."""
    rate = options.rate
    while True:
        duties = [Compactions(clients, TRIAL_SECONDS / 2, leader).step]
        if options.pages:
            duties.append(Lists(clients, options.pages, leader).step)
        seen = clients.offer(rate, TRIAL_SECONDS, duties)
        print(
            f"    {rate:,}/s: {shown(percentiles(seen.updates))};"
            f" the generator took {seen.processors:.2f} processors",
            flush=True,
        )
        if is_held(seen):
            return rate
        answered = len(seen.updates) / max(map(sum, zip(seen.dues(), seen.updates, strict=True)))
        rate = int(min(max(answered, rate * LOWER_MIN), rate * LOWER_MAX))


def measure(cluster: Cluster, clients: Clients, rate: int, options: Options) -> Seen:
    """Offer the load with all its duties, and return the observations."""
    leader = cluster.members.index(cluster.leader())
    seconds = options.seconds
    duties = [
        Compactions(clients, options.compact, leader).step,
        Snapshot(clients, seconds * 0.3, cluster.members[leader].address).step,
        Defragment(clients, seconds * 0.7, leader).step,
    ]
    if options.pages:
        duties.append(Lists(clients, options.pages, leader).step)
    before, stolen_before = cluster.processor_seconds(), stolen_seconds()
    seen = clients.offer(rate, seconds, duties)
    spent, stolen = cluster.processor_seconds() - before, stolen_seconds() - stolen_before
    print(
        f"  {cluster.name}, {len(cluster.members)} of them, {rate:,}/s for {seconds} s:"
        f" {spent / seconds:.2f} processors, the generator {seen.processors:.2f} and late by"
        f" {seen.late_seconds * 1e3:.0f} ms at most, {stolen / seconds:.2f} gone to the host's"
        f" other guests; {seen.conflicts} conflicts, refused {dict(seen.refusals)}"
    )
    return seen


def stolen_seconds() -> float:
    """Return for how long in all this machine's processors waited for the host's processors."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def milliseconds(seconds: float) -> str:
    """Format a time for the table."""
    return f"{seconds * 1e3:,.1f}"


def shown(found: Percentiles) -> str:
    """Format the percentiles on one line."""
    counters = (found.median, found.p99, found.p999, found.longest)
    names = ("p50", "p99", "p99.9", "max")
    told = (f"{name} {milliseconds(each):>9}" for name, each in zip(names, counters, strict=True))
    return f"{'  '.join(told)} ms of {found.count:,}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run, for the table and the plot."""

    server: str
    members: int
    rate: int
    parts: dict[str, Percentiles]
    pauses: list[Pause]
    """The longest pauses."""
    pauses_over: int
    """How many pauses exceeded `PAUSE_SECONDS`."""
    late_seconds: float
    refusals: dict[str, int]
    conflicts: int
    seconds: list[Percentiles]
    """Summaries of the updates due in each second."""
    spans: list[tuple[str, float, float]]


def judged(server: str, members: int, seconds: int, seen: Seen) -> Outcome:
    """Summarize a run's observations, and print them."""
    dues = seen.dues()
    updates = percentiles(seen.updates)
    parts = {"updates": updates}
    rare = [each for each in seen.activities if each.name != LIST]
    for name, latencies in sorted(by_activity(dues, seen.updates, rare).items()):
        parts[f"updates, {name or 'nothing'} beside"] = percentiles(latencies)
    parts["events"] = percentiles(seen.events)
    parts["pages of lists"] = percentiles(seen.pages)
    limit = min(PAUSE_SECONDS, updates.p999)
    found = pauses(dues, seen.updates, limit, seen.activities)
    over = sum(each.longest > PAUSE_SECONDS for each in found)
    for name, each in parts.items():
        print(f"    {name:<32} {shown(each)}")
    print(f"    {over} pauses over {milliseconds(PAUSE_SECONDS)} ms; the longest stretches:")
    for pause in found[:PAUSES_SHOWN]:
        print(
            f"      at {pause.begin:7.2f} s, {milliseconds(pause.longest):>9} ms,"
            f" {pause.calls:>7,} calls: {', '.join(pause.meanwhile) or 'nothing beside'}"
        )
    for name, begin, end in ((each.name, each.begin, each.end) for each in rare):
        print(f"      {name} from {begin:.2f} to {end:.2f} s")
    return Outcome(
        server,
        members,
        seen.per_second,
        parts,
        found[:PAUSES_SHOWN],
        over,
        seen.late_seconds,
        dict(seen.refusals),
        seen.conflicts,
        by_second(dues, seen.updates, seconds),
        [(each.name, each.begin, each.end) for each in rare],
    )


def run(members: int, options: Options) -> Iterator[Outcome]:
    """Compare clusters of `members` members, one of which runs at a time."""
    with tempfile.TemporaryDirectory() as directory:
        names = ("etcd", "kvorum")
        clusters = [Cluster(name, Path(directory, name), members) for name in names]
        with ended_cluster(clusters[0]), ended_cluster(clusters[1]):
            rates = [trials(cluster, options) for cluster in clusters]
            for cluster in clusters:
                yield judged_run(cluster, min(rates), options)
            if rates[1] > min(rates):
                yield judged_run(clusters[1], rates[1], options)


def trials(cluster: Cluster, options: Options) -> int:
    """Fill a new cluster; return the rate that it holds."""
    cluster.start()
    print(f"  {cluster.name}, {len(cluster.members)} of them: {options.objects:,} objects")
    fill(cluster.leader().address, objects(options.objects, options.leases))
    with clients_of(cluster, options) as clients:
        rate = held_rate(clients, options, cluster.members.index(cluster.leader()))
    stop(cluster)
    return rate


def judged_run(cluster: Cluster, rate: int, options: Options) -> Outcome:
    """Restart a cluster on its data, measure it and stop it."""
    cluster.start()
    with clients_of(cluster, options) as clients:
        clients.offer(rate, WARM_UP_SECONDS)
        seen = measure(cluster, clients, rate, options)
    stop(cluster)
    return judged(cluster.name, len(cluster.members), options.seconds, seen)


@contextmanager
def clients_of(cluster: Cluster, options: Options) -> Iterator[Clients]:
    """Connect clients within the block."""
    clients = Clients([each.address for each in cluster.members], options.leases)
    try:
        yield clients
    finally:
        clients.close()


def stop(cluster: Cluster) -> None:
    """Terminate all members, as an operator would."""
    for member in cluster.members:
        member.stop()


def keep(outcomes: Sequence[Outcome], options: Options, name: str) -> None:
    """Store the figures as a file and as a plot."""
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{name}.json"
    facts = {"etcd": str(opponent()), **asdict(options)}
    rows = [asdict(each) for each in outcomes]
    for row in rows:
        del row["seconds"]
    kept.write_text(json.dumps({**facts, "runs": rows}, indent=1) + "\n")
    panels = [
        Panel(
            f"{each.server}, {each.members} of them, {each.rate:,}/s",
            {
                "median": [second.median for second in each.seconds],
                "p99": [second.p99 for second in each.seconds],
                "longest": [second.longest for second in each.seconds],
            },
            each.spans,
        )
        for each in outcomes
    ]
    timeline(panels, RESULTS / f"{name}.svg")
    print(f"kept in {kept}")


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000, help="of 1 KiB each")
    parser.add_argument("--rate", type=int, default=13_000, help="updates a second wanted")
    parser.add_argument("--seconds", type=int, default=600, help="length of a run")
    parser.add_argument("--members", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--pages", type=int, default=2, help="of lists a second")
    parser.add_argument("--compact", type=int, default=60, help="seconds between compactions")
    parser.add_argument("--name", default="tail", help="of the files that keep the results")
    given = parser.parse_args()
    options = Options(given.objects, given.rate, given.seconds, given.pages, given.compact)
    if os.geteuid() == 0:
        os.nice(NICENESS)
    gc.disable()
    print(f"etcd {opponent()}")
    outcomes: list[Outcome] = []
    for members in given.members:
        for outcome in run(members, options):
            outcomes.append(outcome)
            # Stored after each run, because all runs together take nearly an hour.
            keep(outcomes, options, given.name)


if __name__ == "__main__":
    main()
