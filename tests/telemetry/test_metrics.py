"""Names, types, labels and values of metrics, against the reference and against a real etcd's."""

import gzip
import http.client
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

from kvorum.process.endpoints import PAGE_SECONDS, PAGES_PER_PERIOD, Page
from kvorum.telemetry.counting import (
    OTHER_VERSION,
    VERSION_CHARACTERS_MAX,
    VERSIONS_MAX,
    CallCounts,
)
from kvorum.telemetry.exposition import Family, Histogram, Sample, exponential, text
from tests.clients.etcdctl import run as etcdctl
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "ops-metrics.md"

# What a real etcd shows and this server does not, and why.
NOT_SHOWN = {
    r"go_.*": "there is no Go here",
    r"promhttp_.*": "of Go's library for metrics",
    r"process_virtual_memory_max_bytes": "a limit nobody sets",
    r"etcd_grpc_proxy_.*": "of the proxy, 0 in every server",
    r"etcd_debugging_store_.*": "of the v2 store, which never was here",
    r"etcd_debugging_disk_backend_commit_.*": "phases of bbolt's commit",
    r"etcd_.*(apply_duration|snapshot_apply|learner_promote).*": "not kept yet",
    r"etcd_server_slow_read_indexes_total": "not kept yet",
    r"etcd_debugging_(mvcc_.*(pause|duration|put_size|events|compaction_last)).*": "not kept yet",
    r"etcd_debugging_(lease_ttl_total|server_lease_expired_total|snap_save_marsh.*)": "not kept",
    r"etcd_(snap_.*|disk_backend_snapshot_duration_seconds)": "not kept yet",
    r"etcd_mvcc_(db_open_read_transactions|hash_duration_seconds)": "not kept yet",
}
NOT_SHOWN_OF_3_5 = {r"etcd_debugging_mvcc_range_total": "removed in etcd 3.7"}
NOT_SHOWN_OF_3_7 = {
    r"process_network_.*_bytes_total": "of all processes of a machine's network namespace",
    r"etcd_disk_wal_write_duration_seconds": "not kept yet",
    r"etcd_server_(range|request)_duration_seconds": "not kept yet",
    r"etcd_debugging_server_watch_send_loop_.*_seconds": "not kept yet",
}


def scrape(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def types(page: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))


def values(page: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


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
            for command in (
                ["put", "a", "1"],
                ["put", "b", "2"],
                ["put", "c", "3"],
                ["get", "a"],
                ["get", "a", "--prefix"],
                ["del", "b"],
                ["del", "none"],
                ["lease", "grant", "100"],
                ["compaction", "3"],
                ["role", "add", "r"],
                ["role", "grant-permission", "r", "read", "a"],
                ["user", "add", "u", "--no-password"],
            ):
                assert etcdctl(address, *command).code == 0, command
            put_both = 'value("a") = "1"\n\nput a 5\nput d 6\n\n\n'
            assert etcdctl(address, "txn", text=put_both).code == 0
            assert etcdctl(address, "lease", "revoke", "1234").code != 0
            found.append(scrape(address))
        yield Pages(*found)


def test_the_text_is_what_prometheus_reads(pages: Pages) -> None:
    families = {family.name: family for family in text_string_to_metric_families(pages.ours)}
    fsync = families["etcd_disk_wal_fsync_duration_seconds"]
    assert fsync.type == "histogram"
    assert pages.ours.endswith("\n")


def test_every_name_and_type_is_etcds(pages: Pages) -> None:
    ours, theirs = types(pages.ours), types(pages.theirs)
    both = ours.keys() & theirs.keys()
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}
    patterns = NOT_SHOWN | (NOT_SHOWN_OF_3_7 if is_target() else NOT_SHOWN_OF_3_5)
    missing = {
        name
        for name in theirs.keys() - ours.keys()
        if not any(re.fullmatch(pattern, name) for pattern in patterns)
    }
    assert missing == set()
    useless = [pattern for pattern in patterns if not any(re.fullmatch(pattern, n) for n in theirs)]
    assert useless == []


def test_names_types_and_labels_are_those_of_the_reference(pages: Pages) -> None:
    if not REFERENCE.exists():
        pytest.skip("no reference beside the repository")
    rows = re.findall(r"^\| (\w+) \| (\w+) \| ([^|]*) \|", REFERENCE.read_text(), re.M)
    known = {name: (kind, labels) for name, kind, labels in rows}
    for series in values(pages.ours):
        sample, _, rest = series.partition("{")
        name = sample if sample in known else re.sub(r"_(bucket|sum|count)$", "", sample)
        if name.startswith(("process_", "grpc_", "kvorum_")):
            continue
        kind, labels = known[name]
        assert types(pages.ours)[name] == kind
        expected = {label.strip() for label in labels.split(",")} - {"—"}
        assert set(re.findall(r'(\w+)="', rest)) - {"le"} == expected, name


SAME = [
    "etcd_debugging_auth_revision",
    "etcd_mvcc_put_total",
    "etcd_mvcc_delete_total",
    "etcd_mvcc_txn_total",
    "etcd_debugging_mvcc_current_revision",
    "etcd_debugging_mvcc_compact_revision",
    "etcd_debugging_mvcc_keys_total",
    "etcd_debugging_mvcc_watcher_total",
    "etcd_debugging_lease_granted_total",
    "etcd_debugging_lease_revoked_total",
    "etcd_server_has_leader",
    "etcd_server_is_leader",
    "etcd_server_is_learner",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_failed_total",
    "etcd_server_proposals_pending",
    "etcd_server_quota_backend_bytes",
    "etcd_server_read_indexes_failed_total",
]


@pytest.mark.parametrize("name", SAME)
def test_values_are_etcds_after_the_same_calls(pages: Pages, name: str) -> None:
    assert values(pages.ours)[name] == values(pages.theirs)[name]


def test_calls_are_counted_as_etcd_counts_them(pages: Pages) -> None:
    def grpc_lines(page: str) -> dict[str, float]:
        # All labels of these services are equal; an older etcd lacks some methods of 3.7.
        wanted = re.compile(r'grpc_server_\w+\{.*grpc_service="etcdserverpb\.(KV|Lease|Watch)"')
        return {name: value for name, value in values(page).items() if wanted.match(name)}

    ours, theirs = grpc_lines(pages.ours), grpc_lines(pages.theirs)
    if not is_target():
        # Before 3.7 a refusal does not count as a message.
        refused = 'grpc_server_msg_sent_total{grpc_method="LeaseRevoke"'
        ours, theirs = (
            {name: value for name, value in each.items() if not name.startswith(refused)}
            for each in (ours, theirs)
        )
    assert ours.items() >= theirs.items()
    assert all("RangeStream" in name for name in ours.keys() - theirs.keys())


def test_extensive_metrics_time_every_call(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "ours", "--metrics=extensive") as kvorum,
        running_etcd(tmp_path / "theirs", "--metrics=extensive") as etcd,
    ):
        found = []
        for address in (kvorum.address, etcd.address):
            assert etcdctl(address, "put", "a", "1").code == 0
            assert etcdctl(address, "get", "a").code == 0
            found.append(values(scrape(address)))
    ours, theirs = found
    wanted = re.compile(r'grpc_server_handling_seconds_\w+\{.*"etcdserverpb\.(KV|Lease|Watch)"')
    names = {name for name in theirs if wanted.match(name)}
    assert names and names <= ours.keys()
    for name in names:
        if "_count{" in name:
            assert ours[name] == theirs[name], name


def test_buckets_are_etcds(pages: Pages) -> None:
    ours, theirs = values(pages.ours), values(pages.theirs)
    for name in theirs:
        family = re.sub(r"_bucket\{.*", "", name)
        if "_bucket{" in name and f"{family}_count" in ours and not name.startswith("grpc"):
            assert name in ours


observations = st.lists(st.floats(0, 100, allow_nan=False), max_size=50)


@given(observations)
def test_histograms_count_as_the_library_does(observed: list[float]) -> None:
    bounds = exponential(0.001, 14)
    registry = CollectorRegistry()
    theirs = TheirHistogram("h", "text", buckets=bounds, registry=registry)
    ours = Histogram(bounds)
    for value in observed:
        theirs.observe(value)
        ours.observe(value)
    page = text([Family("h", "histogram", "text", ours.samples())]).decode()
    library = generate_latest(registry).decode()
    expected = {name: value for name, value in values(library).items() if "_created" not in name}
    assert values(page) == pytest.approx(expected)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_label_survives(label: str) -> None:
    page = text([Family("g", "gauge", "text", [Sample(1, {"name": label})])]).decode()
    (family,) = text_string_to_metric_families(page)
    assert family.samples[0].labels == {"name": label}


def test_a_page_is_written_a_few_times_a_second() -> None:
    now, written = 0.0, 0

    def write() -> bytes:
        nonlocal written
        written += 1
        return b"%d" % written

    page = Page(write, lambda: now)
    first = [page.text() for _ in range(PAGES_PER_PERIOD)]
    assert first == [b"%d" % number for number in range(1, PAGES_PER_PERIOD + 1)]
    # More frequent requests get the last page written, compressed or not.
    assert {page.text() for _ in range(100)} == {first[-1]}
    assert {gzip.decompress(page.compressed()) for _ in range(100)} == {first[-1]}
    assert written == PAGES_PER_PERIOD
    now = PAGE_SECONDS
    assert page.text() == b"%d" % (PAGES_PER_PERIOD + 1)
    assert gzip.decompress(page.compressed()) == b"%d" % (PAGES_PER_PERIOD + 2)


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
