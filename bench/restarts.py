"""Measure how long a killed member takes to serve again, and where the slowest restarts spent time.

Three members serve clients that put keys with leases, delete them and revoke the leases. The
benchmark kills and restarts one member after another, beside processes that keep all processors
busy, and divides each restart by the lines of the member's log. Run it as `make bench-restarts`.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bench.clusters import Cluster, running_cluster
from bench.latencies import percentile
from bench.servers import Server
from kvorum import Client
from kvorum.client import KvorumError

SIZE = 3
CLIENTS = 4
KEYS = 10
LEASE_SECONDS = 60
SLOWEST = 10
STAGES = {
    "Running": "imports",
    "recovered": "recovery",
    "published local member": "joining",
    "ready to serve client requests": "listening",
}
"""The stage that the member has completed when it logs a line with this beginning."""


class Restart(NamedTuple):
    """The duration of one restart, in total and by stage."""

    seconds: float
    processor_seconds: float
    stages: dict[str, float]


def _traffic(cluster: Cluster, seed: int, is_over: threading.Event) -> None:
    draw = random.Random(seed)
    with Client([member.address for member in cluster.members]) as client:
        while not is_over.wait(draw.random() / 20):
            with suppress(KvorumError):
                key, kind = f"key{draw.randrange(KEYS)}", draw.random()
                if kind < 0.4:
                    client.delete(key)
                    continue
                lease = client.lease(LEASE_SECONDS)
                client.put(key, "value", lease=lease.id)
                if kind < 0.6:
                    lease.revoke()


@contextmanager
def _traffic_on(cluster: Cluster) -> Iterator[None]:
    is_over = threading.Event()
    threads = [
        threading.Thread(target=_traffic, args=(cluster, seed, is_over)) for seed in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def restart(member: Server) -> Restart:
    """Kill a member and restart it; return the durations."""
    logged = member.log.stat().st_size
    member.kill()
    began = time.time()
    member.launch()
    member.wait_until_healthy()
    stages: dict[str, float] = {}
    last = 0.0
    for line in member.log.read_bytes()[logged:].splitlines():
        with suppress(ValueError, StopIteration):
            entry = json.loads(line)
            name = next(STAGES[each] for each in STAGES if entry["msg"].startswith(each))
            ended = datetime.fromisoformat(entry["ts"]).timestamp() - began
            stages.setdefault(name, ended - last)
            last = ended
    stages["first linearizable read"] = member.start_seconds - last
    return Restart(member.start_seconds, member.processor_seconds(), stages)


def _text(each: Restart) -> str:
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.stages.items())
    return f"{each.seconds:6.2f} s, processor {each.processor_seconds:.2f} s: {stages}"


def main() -> None:
    """Kill and restart members, and print the durations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="processes beside it")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    found: list[Restart] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster("kvorum", Path(directory), SIZE) as cluster,
        _busy_processes(arguments.busy),
        _traffic_on(cluster),
    ):
        for _ in range(arguments.kills):
            time.sleep(draw.random())
            found.append(restart(draw.choice(cluster.members)))
    found.sort(key=lambda each: each.seconds)
    seconds = [each.seconds for each in found]
    print(
        f"{len(found)} kills beside {arguments.busy} busy processes, seconds to the first "
        f"linearizable read: median {statistics.median(seconds):.2f}, "
        f"p90 {percentile(seconds, 9000):.2f}, p99 {percentile(seconds, 9900):.2f}, "
        f"longest {seconds[-1]:.2f}"
    )
    print("The slowest:")
    for each in reversed(found[-SLOWEST:]):
        print(_text(each))


if __name__ == "__main__":
    main()
