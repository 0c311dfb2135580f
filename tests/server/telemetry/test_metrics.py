"""Names, types, labels, buckets and values of metrics: a real etcd's after the same calls."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as TheirHistogram
from prometheus_client.parser import text_string_to_metric_families

from kvorum.api.histograms import Histogram, exponential
from kvorum.process.endpoints import PAGE_SECONDS, PAGES_PER_PERIOD, RenderedPage
from kvorum.server.telemetry.counting import (
    OTHER_VERSION,
    VERSION_CHARACTERS_MAX,
    VERSIONS_MAX,
    CallCounts,
)
from kvorum.server.telemetry.exposition import Family, Sample, histogram_samples, number_text, text
from kvorum.server.telemetry.families import METRICS
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.server.telemetry.traffic import get, make_calls, scrape, types, values
from tests.waiting import until
from tools.metrics_page import PAGE, page

# What a real etcd shows and this server does not, and why.
NOT_SHOWN = {r"go_.*": "there is no Go here"}
NOT_SHOWN_OF_3_5 = {
    r"etcd_debugging_mvcc_range_total": "removed in etcd 3.7",
    r"etcd_debugging_store_(reads|writes)_total": "of the store of API v2",
}
# Shown only when something has happened that the calls here do not bring about.
NOT_HERE = (
    "etcd_network_",
    "etcd_server_learner_promote_failures",
    "etcd_debugging_server_alarms",
    "grpc_server_handling_seconds",
    "kvorum_network_peer_dropped_messages_total",
    "kvorum_backup_",
)


class Pages(NamedTuple):
    ours: str
    theirs: str


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Metrics of our server and of a real etcd after the same calls."""
    directory = tmp_path_factory.mktemp("pair")
    with (
        running_kvorum(directory / "ours") as kvorum,
        running_etcd(directory / "theirs") as etcd,
    ):
        found = []
        for address in (kvorum.address, etcd.address):
            make_calls(address)
            for target in ("/health", "/livez", "/readyz", "/readyz?exclude=non_learner"):
                get(address, target)
            found.append(page_after_streams(address))
        yield Pages(*found)


ENDED = re.compile(r'^grpc_server_handled_total\{grpc_code="Canceled".*Watch.* 1$', re.M)


def page_after_streams(address: str) -> str:
    """Return the metrics as soon as the end of the watch stream is counted."""

    def page_with_the_end() -> str | None:
        found = scrape(address)
        return found if ENDED.search(found) else None

    return until("the end of the watch stream is counted", page_with_the_end)


def name_of(series: str) -> str:
    """Return the metric of a series."""
    sample = series.partition("{")[0]
    return sample if sample in METRICS else re.sub(r"_(bucket|sum|count)$", "", sample)


def test_the_text_is_what_prometheus_reads(pages: Pages) -> None:
    families = {family.name: family for family in text_string_to_metric_families(pages.ours)}
    fsync = families["etcd_disk_wal_fsync_duration_seconds"]
    assert fsync.type == "histogram"
    assert pages.ours.endswith("\n")


def test_every_name_and_type_is_etcds(pages: Pages) -> None:
    ours, theirs = types(pages.ours), types(pages.theirs)
    both = ours.keys() & theirs.keys()
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}
    patterns = NOT_SHOWN | ({} if is_target() else NOT_SHOWN_OF_3_5)
    missing = {
        name
        for name in theirs.keys() - ours.keys()
        if not any(re.fullmatch(pattern, name) for pattern in patterns)
    }
    assert missing == set()
    if is_target():
        assert {name for name in ours.keys() - theirs.keys() if METRICS[name].is_etcds} == set()


def test_every_series_and_bucket_is_etcds(pages: Pages) -> None:
    if not is_target():
        pytest.skip("of etcd 3.7")

    def shape(page: str) -> set[str]:
        # Of these, the values of labels tell what serves.
        return {
            series
            for series in values(page)
            if METRICS.get(name_of(series), METRICS["os_fd_used"]).is_etcds
            and not series.startswith(("etcd_server_go_version", "go_"))
        }

    assert shape(pages.ours) == shape(pages.theirs)


def test_what_is_shown_is_what_the_table_says(pages: Pages) -> None:
    shown = values(pages.ours)
    for name, kind in types(pages.ours).items():
        assert METRICS[name].type == kind
    for series in shown:
        metric = METRICS[name_of(series)]
        labels = dict(re.findall(r'(\w+)="([^"]*)"', series))
        labels.pop("le", None)
        assert tuple(sorted(labels)) == tuple(sorted(metric.labels)), series
        if "_bucket" in series and metric.bounds:
            assert re.findall(r'le="([^"]*)"', series)[0] in {
                *map(number_text, metric.bounds),
                "+Inf",
            }
    hidden = {name for name in METRICS if name not in types(pages.ours)}
    assert all(name.startswith(NOT_HERE) for name in hidden), hidden


# Values that no call determines: sizes, times, what the disk or the runtime does.
FREE = (
    r"(go|process|os|kvorum)_.*",
    r".*_sum(\{.*)?",
    r".*_bucket\{.*",
    r"etcd_(disk|debugging_disk|snap|debugging_snap)_.*",
    r"etcd_mvcc_db_.*",
    r"etcd_debugging_mvcc_db_compaction_(last|pause_.*)",
    r"etcd_network_client_grpc_.*",
    r"promhttp_metric_handler_requests_total\{.*",
    r"etcd_server_(version|go_version|heartbeat_send_failures_total|slow_apply_total).*",
    # A server that stands still during a read counts that it was slow.
    r"etcd_server_slow_read_indexes_total",
    # The hash check at compactions is on here, and off in etcd.
    r"etcd_server_feature_enabled\{.*",
)


def test_values_are_etcds_after_the_same_calls(pages: Pages) -> None:
    ours, theirs = values(pages.ours), values(pages.theirs)
    compared = {
        name
        for name in ours.keys() & theirs.keys()
        if not any(re.fullmatch(pattern, name) for pattern in FREE)
    }
    if not is_target():
        # Before 3.7 refusals and the ends of streams are no messages, and ranges count otherwise.
        compared = {
            name
            for name in compared
            if not name.startswith(("grpc_server_msg_", "etcd_mvcc_range", "etcd_mvcc_txn"))
            and not name.startswith(("etcd_server_client", "etcd_server_apply", "grpc_server"))
        }
    assert len(compared) > 40
    different = {n: (ours[n], theirs[n]) for n in sorted(compared) if ours[n] != theirs[n]}
    assert different == {}


def test_the_ttls_of_leases_are_in_etcds_buckets(pages: Pages) -> None:
    ours, theirs = (
        {n: v for n, v in values(each).items() if n.startswith("etcd_debugging_lease_ttl_total")}
        for each in pages
    )
    assert ours == theirs


def test_durations_are_measured(pages: Pages) -> None:
    """Whatever was observed took time."""
    ours = values(pages.ours)
    # There is no such phase; and what a stream sends may take less than the clock shows.
    free = "etcd_debugging_disk_backend_commit_rebalance"
    for series, count in ours.items():
        name = name_of(series)
        if series.startswith(f"{name}_count") and count and not name.startswith(free):
            assert ours[series.replace("_count", "_sum")] > 0, series


def test_metrics_that_are_all_there_are_on_the_page() -> None:
    assert PAGE.read_text() == page(), "run 'make metrics-page'"


def test_extensive_metrics_time_every_call(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "ours", "--metrics=extensive") as kvorum,
        running_etcd(tmp_path / "theirs", "--metrics=extensive") as etcd,
    ):
        found = []
        for address in (kvorum.address, etcd.address):
            make_calls(address)
            found.append(values(page_after_streams(address)))
    ours, theirs = found
    wanted = re.compile(r'grpc_server_handling_seconds_\w+\{.*"etcdserverpb\.(KV|Lease|Watch)"')
    names = {name for name in theirs if wanted.match(name)}
    assert names and names <= ours.keys()
    for name in names:
        if "_count{" in name:
            assert ours[name] == theirs[name], name


# How many of each, and the values; most are within the first bucket.
observations = st.lists(
    st.tuples(st.floats(0, 100, allow_nan=False) | st.floats(0, 0.01), st.integers(1, 5)),
    max_size=50,
)


@given(observations)
def test_histograms_count_as_the_library_does(observed: list[tuple[float, int]]) -> None:
    bounds = exponential(0.001, 14)
    registry = CollectorRegistry()
    theirs = TheirHistogram("h", "text", buckets=bounds, registry=registry)
    ours = Histogram(bounds)
    for value, count in observed:
        ours.observe(value, count)
        for _ in range(count):
            theirs.observe(value)
    shown = text([Family("h", "histogram", "text", histogram_samples(ours))]).decode()
    library = generate_latest(registry).decode()
    expected = {name: value for name, value in values(library).items() if "_created" not in name}
    assert values(shown) == pytest.approx(expected)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_label_survives(label: str) -> None:
    shown = text([Family("g", "gauge", "text", [Sample(1, {"name": label})])]).decode()
    (family,) = text_string_to_metric_families(shown)
    assert family.samples[0].labels == {"name": label}


def test_a_page_is_written_a_few_times_a_second() -> None:
    now, written = 0.0, 0

    def write() -> bytes:
        nonlocal written
        written += 1
        return b"%d" % written

    shown = RenderedPage(write, lambda: now)
    first = [shown.text() for _ in range(PAGES_PER_PERIOD)]
    assert first == [b"%d" % number for number in range(1, PAGES_PER_PERIOD + 1)]
    # More frequent requests get the last page written, compressed or not.
    assert {shown.text() for _ in range(100)} == {first[-1]}
    assert {gzip.decompress(shown.compressed()) for _ in range(100)} == {first[-1]}
    assert written == PAGES_PER_PERIOD
    now = PAGE_SECONDS
    assert shown.text() == b"%d" % (PAGES_PER_PERIOD + 1)
    assert gzip.decompress(shown.compressed()) == b"%d" % (PAGES_PER_PERIOD + 2)


def test_versions_that_clients_invent_are_counted_as_one() -> None:
    counts = CallCounts(1)
    told = [b"%d" % number for number in range(3 * VERSIONS_MAX)]
    told += [b"x" * (VERSION_CHARACTERS_MAX + 1), b"y" * 900_000, b"x" * VERSION_CHARACTERS_MAX]
    for version in told:
        counts.count_version("unary", {"client-api-version": version})
    kept = [version for _, version in counts.versions]
    assert VERSIONS_MAX <= len(kept) <= VERSIONS_MAX + 1
    assert max(map(len, kept)) <= VERSION_CHARACTERS_MAX
    assert sum(counts.versions.values()) == len(told)
    assert counts.versions["unary", OTHER_VERSION] == len(told) - VERSIONS_MAX
