"""The proxy's own metrics, under etcd's names where etcd has them."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kvorum.api.errors import Code
from kvorum.proxy.cache import Cache
from kvorum.proxy.counters import ProxyCounters
from kvorum.proxy.routes import Routes
from kvorum.server.rpc.table import NUMBERS, RPCS
from kvorum.server.telemetry.exposition import Family, Sample
from kvorum.server.telemetry.metrics import code_name

_PREFIX: Final = "etcd_grpc_proxy_"


def families(counters: ProxyCounters, routes: Routes, cache: Cache | None) -> Iterator[Family]:
    """Return the proxy's metrics, without those of its process."""
    yield _single(
        "watchers_coalescing_total",
        "gauge",
        "Watchers that share a watch at a member with an earlier watcher.",
        counters.watchers_coalesced,
    )
    yield _single(
        "events_coalescing_total",
        "counter",
        "Deliveries of event messages to watchers beyond the first of a shared watch.",
        counters.events_coalesced,
    )
    yield _single(
        "cache_keys_total", "gauge", "Answers in the cache.", 0 if cache is None else len(cache)
    )
    yield _single(
        "cache_hits_total",
        "gauge",
        "Reads that the cache answered.",
        0 if cache is None else cache.hits,
    )
    yield _single(
        "cache_misses_total",
        "gauge",
        "Serializable reads that the cache could not answer.",
        0 if cache is None else cache.misses,
    )
    started, in_flight = list(counters.started), routes.paths_in_flight()
    failed = {(NUMBERS[path], code): number for (path, code), number in routes.failures.items()}
    ended = Counter(failed) + counters.streams_ended
    if routes.relay is not None:
        for number, started_count, going in routes.relay.tallies():
            started[number] += started_count
            in_flight[RPCS[number].path] += going
        for number, code, failures in routes.relay.failures():
            ended[number, Code(code)] += failures
    handled = Counter(ended)
    for number, rpc in enumerate(RPCS):
        if not rpc.is_stream:
            failures = sum(ended[number, code] for code in Code)
            going = in_flight[rpc.path]
            handled[number, Code.OK] += max(started[number] - failures - going, 0)
    shown = [number for number, count in enumerate(started) if count]
    labels = [rpc.labels for rpc in RPCS]
    yield Family(
        "grpc_server_started_total",
        "counter",
        "Started RPCs.",
        [Sample(started[number], labels[number]) for number in shown],
    )
    yield Family(
        "grpc_server_handled_total",
        "counter",
        "Completed RPCs, by code.",
        [
            Sample(count, {"grpc_code": code_name(code), **labels[number]})
            for (number, code), count in handled.items()
            if count
        ],
    )


def _single(name: str, kind: str, text: str, value: float) -> Family:
    return Family(_PREFIX + name, kind, text, [Sample(value)])
