"""Write docs/metrics.md from the table of metrics: `make metrics-page`."""

from itertools import pairwise
from pathlib import Path

from kvorum.server.telemetry.exposition import number_text
from kvorum.server.telemetry.families import GROUPS, MetricFamily

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

HEAD = """\
# Metrics

`GET /metrics` on a client listener, or on one of `--listen-metrics-urls`, shows every metric below
in Prometheus' text format, compressed for those who accept gzip. This page is made from the table
in `src/kvorum/server/telemetry/families.py` by `make metrics-page`; a test fails when it is stale.

Names, types, labels and buckets are etcd 3.7's, but for those that begin with `kvorum_`, and its
dashboards and alerts work as they are. Of etcd's, only those of Go's runtime (`go_`) are missing.
A metric with labels has no series before there is something to show. Where they mean something else
than in etcd, [divergence.md](divergence.md) says so.

No request is timed by itself. Requests that came in one turn of the loop have one start, and what
was done between two looks at the clock, which are at most 64 puts or reads apart, counts as equally
long; other entries are timed one by one. So sums and counts are exact, and buckets nearly so.

`kvorum_queue_length` tells what waits: `arrived`, requests that a turn had no time for;
`proposals`, those that are not answered; `unapplied`, entries that are committed and not applied;
`reads`, those that wait for the leader or for their turn; `jobs`, work for the disk and for helper
processes. `kvorum_memory_bytes` tells what memory is used for, about: `log`, entries kept for
members that are behind; `index`, keys and their revisions; `backend`, what waits for the disk;
`cache`, rows that were read or written lately; `watch`, events that were made and not handed over;
`edge_received` and `edge_unsent`, what came from clients and was not served, and what they have not
taken.
"""


def page() -> str:
    """Return the page's text."""
    parts = [HEAD]
    for title, metrics in GROUPS.items():
        parts += [f"\n## {title}\n\n", "| name | type | labels | buckets | meaning |\n"]
        parts.append("| --- | --- | --- | --- | --- |\n")
        parts += [_row(metric) for metric in sorted(metrics)]
    return "".join(parts)


def _row(metric: MetricFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return (
        f"| `{metric.name}` | {metric.type} | {labels} | {_buckets(metric.bounds)} "
        f"| {metric.help} |\n"
    )


def _buckets(bounds: tuple[float, ...]) -> str:
    if not bounds:
        return ""
    first, last = number_text(bounds[0]), number_text(bounds[-1])
    doubles = all(higher == 2 * lower for lower, higher in pairwise(bounds))
    if doubles:
        return f"{len(bounds)}, doubling from {first} to {last}"
    return " ".join(map(number_text, bounds))


if __name__ == "__main__":
    PAGE.write_text(page())
