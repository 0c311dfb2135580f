"""Measure a member inside a program: calls without a socket, and the effect of the program's load.

The program and the member share one process and the interpreter's lock. The member does not wait
for a disk. Run it as `python -m bench.embed`.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvorum import AsyncClient, Client
from kvorum.embed import Config, ProcessServer, Server

WARM_UP_CALLS = 200
TOGETHER = 100
"""Number of concurrent calls of an asyncio client."""


def round_trips(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return the rate of sequential calls, and the microseconds of processor time per call."""
    for _ in range(WARM_UP_CALLS):
        call()
    count, began, used = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - began) < seconds:
        for _ in range(50):
            call()
        count += 50
    return count / passed, (time.process_time() - used) / count * 1e6


async def rates_on_a_loop(client: AsyncClient, seconds: float) -> tuple[float, float]:
    """Return the rates of sequential and of concurrent calls."""
    found = []
    for together in (1, TOGETHER):
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            await asyncio.gather(*(client.get("key") for _ in range(together)))
            count += together
        found.append(count / passed)
    return found[0], found[1]


def compare_clients(rounds: int, seconds: float) -> None:
    """Print rates without and with a socket, in alternation; the best round of each counts."""
    print(f"{'':28}{'in process':>12}{'network':>12}{'ratio':>7}{'cpu':>16}")
    with (
        Server(Config(ephemeral=True)) as server,
        server.client() as local,
        Client(server.client_url) as network,
    ):
        local.put("key", "value")
        calls: tuple[tuple[str, Callable[[Client], object]], ...] = (
            ("put", lambda client: client.put("key", "value")),
            ("get", lambda client: client.get("key")),
            ("get, serializable", lambda client: client.get("key", serializable=True)),
        )
        for name, call in calls:
            best: dict[Client, tuple[float, float]] = {}
            for _ in range(rounds):
                for client in (local, network):
                    found = round_trips(lambda: call(client), seconds)  # noqa: B023
                    best[client] = max(best.get(client, (0.0, 0.0)), found)
            (rate, cost), (rate_there, cost_there) = best[local], best[network]
            ratio = rate / rate_there
            cpu = f"{cost:.0f} / {cost_there:.0f} us"
            print(f"{name:28}{rate:10.0f}/s{rate_there:10.0f}/s{ratio:7.1f}{cpu:>16}")

        async def both() -> None:
            here, there = (0.0, 0.0), (0.0, 0.0)
            async with (
                server.async_client() as local_client,
                AsyncClient(server.client_url) as network_client,
            ):
                for _ in range(rounds):
                    here = max(here, await rates_on_a_loop(local_client, seconds))
                    there = max(there, await rates_on_a_loop(network_client, seconds))
            for name, place in (("get, asyncio", 0), (f"get, asyncio, {TOGETHER} at a time", 1)):
                rates = f"{here[place]:10.0f}/s{there[place]:10.0f}/s"
                print(f"{name:28}{rates}{here[place] / there[place]:7.1f}")

        asyncio.run(both())


@contextmanager
def computing(is_computing: bool) -> Iterator[None]:
    """Run a computing thread of this program within the block, if requested."""
    ends = threading.Event()

    def compute() -> None:
        while not ends.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    if is_computing:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        if is_computing:
            thread.join()


def latencies(client: Client, calls: int) -> str:
    """Measure sequential puts; return their latencies as text."""
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        client.put("key", "value")
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    mean, half, most = sum(took) / calls, took[calls // 2], took[calls * 99 // 100]
    return f"mean {mean:6.2f} ms, p50 {half:6.2f} ms, p99 {most:6.2f} ms"


def latencies_elsewhere(url: str, calls: int) -> str:
    """Measure the same latencies from another process."""
    command = [sys.executable, "-m", "bench.embed", "--at", url, "--calls", str(calls)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.strip()


def show_latencies(calls: int) -> None:
    """Print the latencies of puts while the program is idle, and while a thread computes."""
    print(f"\nputs, one after the other (switch interval {sys.getswitchinterval() * 1000:.0f} ms)")
    for kind in (Server, ProcessServer):
        with kind(Config(ephemeral=True)) as server, server.client() as client:
            for is_computing in (False, True):
                state = "computing" if is_computing else "idle"
                with computing(is_computing):
                    here = latencies(client, calls)
                    there = latencies_elsewhere(server.client_url, calls)
                print(f"{kind.__name__:14} {state:10} its own client: {here}")
                print(f"{'':25} another program: {there}")


def show_starts(count: int) -> None:
    """Print how long a fresh member takes to become ready and to end."""
    starts, ends = [], []
    for _ in range(count):
        began = time.perf_counter()
        server = Server(Config(ephemeral=True)).start()
        starts.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        server.close()
        ends.append((time.perf_counter() - began) * 1000)
    half = count // 2
    print(
        f"\na fresh member: ready after {min(starts):.1f} ms (median {sorted(starts)[half]:.1f}), "
        f"ended after {min(ends):.1f} ms (median {sorted(ends)[half]:.1f})"
    )


def show_command(count: int) -> None:
    """Print how long `kvorum --ephemeral` takes until its first line, without its first start."""
    # Installations have bytecode for all modules, and checkouts have it after the first start.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [f"{sys.prefix}/bin/kvorum", "--ephemeral", "--log-level=error"]
    took = []
    for _ in range(count + 1):
        began = time.perf_counter()
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stdout.readline()
            took.append((time.perf_counter() - began) * 1000)
    half = statistics.median(took[1:])
    print(f"the command: its first line after {min(took[1:]):.0f} ms (median {half:.0f})")


def main() -> None:
    """Run and print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--at", default="", help="only show latencies of puts at this URL")
    arguments = parser.parse_args()
    if arguments.at:
        with Client(arguments.at) as client:
            print(latencies(client, arguments.calls))
        return
    compare_clients(arguments.rounds, arguments.seconds)
    show_latencies(arguments.calls)
    show_starts(20)
    show_command(10)


if __name__ == "__main__":
    main()
