"""Measure the cost of the pytest plugin: loading it, the first and later stores, and clusters.

Another process makes stores ahead of time, so the wait of a test depends on the duration of the
test before: `--tests` are such durations, in milliseconds. Run it as `make bench-testing`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from kvorum.testing.cluster import start_cluster
from kvorum.testing.options import StoreOptions
from kvorum.testing.store import Stores
from kvorum.testing.worker_process import WorkerProcess

IMPORT = """
import time
import pytest
begun = time.perf_counter()
import kvorum.testing.plugin
print(time.perf_counter() - begun)
"""


def import_seconds() -> float:
    """Return how long loading the plugin takes."""
    command = [sys.executable, "-c", IMPORT]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def first_seconds(module: str, make: Callable[[WorkerProcess], object]) -> float:
    """Return how long a new worker takes to make its first store or cluster."""
    begun = time.perf_counter()
    worker = WorkerProcess(module)
    try:
        make(worker)
        return time.perf_counter() - begun
    finally:
        worker.stop()


def store_seconds(stores: Stores, count: int, test_seconds: float) -> list[float]:
    """Return how long each of `count` tests waits for its store to start and to end."""
    found = []
    for number in range(count):
        begun = time.perf_counter()
        store = stores.take(StoreOptions(), None)
        waited = time.perf_counter() - begun
        with store.client() as client:
            assert client.put("key", "value").revision == 2, number
        time.sleep(test_seconds)
        begun = time.perf_counter()
        store.end()
        found.append(waited + time.perf_counter() - begun)
    return found


def show(what: str, seconds: list[float]) -> None:
    """Print the best, the median, the 90th percentile and the worst of several times."""
    ordered = [f"{1000 * each:8.1f}" for each in _marks(seconds)]
    print(f"{what:44} {' '.join(ordered)} ms")


def _marks(seconds: list[float]) -> tuple[float, ...]:
    ninth = sorted(seconds)[len(seconds) * 9 // 10]
    return min(seconds), statistics.median(seconds), ninth, max(seconds)


def main() -> None:
    """Run and print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stores", type=int, default=100)
    parser.add_argument("--tests", type=float, nargs="*", default=[0.0, 5.0, 20.0])
    asked = parser.parse_args()
    # Installations have bytecode for all modules, and checkouts have it after the first start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'':44} {'best':>8} {'median':>8} {'9 of 10':>8} {'worst':>8}")
    rounds = range(asked.rounds)
    show("loading the plugin, if nothing uses it", [import_seconds() for _ in rounds])
    store_module, cluster_module = "kvorum.testing.store_pool", "kvorum.testing.cluster_runner"
    firsts = [
        first_seconds(store_module, lambda it: Stores(it).take(StoreOptions(), None))
        for _ in range(asked.rounds + 1)
    ]
    show("the first store", firsts[1:])
    worker = WorkerProcess(store_module)
    try:
        stores = Stores(worker)
        stores.take(StoreOptions(), None).end()
        for each in asked.tests:
            show(
                f"a store, after tests of {each:g} ms and a put",
                store_seconds(stores, asked.stores, each / 1000),
            )
    finally:
        worker.stop()
    firsts = [
        first_seconds(cluster_module, lambda it: start_cluster(it, StoreOptions(), None))
        for _ in rounds
    ]
    show("the first cluster", firsts)
    worker = WorkerProcess(cluster_module)
    try:
        start_cluster(worker, StoreOptions(), None).end()
        found = []
        for _ in rounds:
            begun = time.perf_counter()
            cluster = start_cluster(worker, StoreOptions(), None)
            found.append(time.perf_counter() - begun)
            cluster.end()
        show("a cluster", found)
    finally:
        worker.stop()


if __name__ == "__main__":
    main()
