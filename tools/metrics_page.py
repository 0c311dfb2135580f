"""Write docs/metrics.md from the table of metrics: `make metrics-page`."""

from itertools import pairwise
from pathlib import Path

from kvorum.server.telemetry.exposition import number_text
from kvorum.server.telemetry.families import GROUPS, MetricFamily

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

HEAD = """\
# Metrics

`GET /metrics` on a client listener, or on one of `--listen-metrics-urls`, returns every metric
below in Prometheus' text format, compressed if the client accepts gzip. `make metrics-page` writes
this page from the table in `src/kvorum/server/telemetry/families.py`; a test fails when the page is
stale.

Names, types, labels and buckets are those of etcd 3.7, except for metrics that begin with
`kvorum_`, so etcd's dashboards and alerts work unchanged. Of etcd's metrics, only those of the Go
runtime (`go_`) are missing. A metric with labels has no series until the server has a value for it.
[divergence.md](divergence.md) lists the metrics that mean something else than in etcd.

The server does not time most requests individually. All requests that arrive in one turn of the
loop share one start time. The server reads the clock at least once every 64 puts or reads, and
gives everything between two readings an equal duration; it times other entries individually. Sums
and counts are therefore exact, and buckets nearly so.

| `queue` of `kvorum_queue_length` | what waits |
| --- | --- |
| `arrived` | requests that no turn has served yet |
| `proposals` | proposals without an answer |
| `unapplied` | committed entries that are not applied |
| `reads` | reads that wait for the leader or for their turn |
| `jobs` | work for the disk and for helper processes |

| `room` of `kvorum_memory_bytes` | what the memory holds, by estimate |
| --- | --- |
| `log` | entries kept for lagging members |
| `index` | keys and their revisions |
| `backend` | writes that wait for the disk |
| `cache` | rows that the server recently read or wrote |
| `watch` | watch events that the server has not handed to the network yet |
| `edge_received` | data from clients that the server has not served yet |
| `edge_unsent` | data that clients have not read yet |
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
