"""`check`: put a load on the cluster, and judge whether the cluster bears it."""

import asyncio
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.aio.client import AsyncClient
from kvorum.client.credentials import contexts
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import KvorumError
from kvorum.client.keys import key_range
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_FEATURE, GENERAL, INVALID_INPUT, CommandError
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.cli.text import quoted
from kvorum.tools.ctl.connecting import connect_all, endpoints_of, secrets_of
from kvorum.tools.ctl.failures import error_text
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes

PERF_SECONDS = 60.0
CLEANUP_SECONDS_MAX = 30.0
CLIENTS_PER_CONNECTION = 50
"""Clients are tasks; this many tasks share one connection."""
THROUGHPUT_SHARE_MIN = 0.9
SLOWEST_SECONDS_MAX = 0.5
DEVIATION_SECONDS_MAX = 0.1
MEMORY_METRIC = "process_resident_memory_bytes"
NAMES = {
    **{name: name for name in ("s", "m", "l", "xl")},
    "small": "s",
    "medium": "m",
    "large": "l",
    "xLarge": "xl",
}


class Load(NamedTuple):
    """The writes per second or in total, and the number of concurrent clients."""

    writes: int
    clients: int


PERF_LOADS = {
    "s": Load(150, 50),
    "m": Load(1_000, 200),
    "l": Load(8_000, 500),
    "xl": Load(15_000, 1_000),
}
DATASCALE_LOADS = {
    "s": Load(10_000, 50),
    "m": Load(100_000, 200),
    "l": Load(1_000_000, 500),
    "xl": Load(3_000_000, 1_000),
}


class Results:
    """The durations and errors of the writes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """The duration of each successful write."""
        self.errors: Counter[str] = Counter()
        self.total_seconds = 0.0

    @property
    def per_second(self) -> float:
        """The number of successful writes per second."""
        return len(self.seconds) / max(self.total_seconds, 1e-9)

    @property
    def slowest(self) -> float:
        """The duration of the slowest write."""
        return max(self.seconds, default=0.0)

    @property
    def deviation(self) -> float:
        """The standard deviation of the durations."""
        if not self.seconds:
            return 0.0
        mean = math.fsum(self.seconds) / len(self.seconds)
        return math.sqrt(math.fsum((each - mean) ** 2 for each in self.seconds) / len(self.seconds))


class Pace:
    """Paces the writes of clients: at a rate for a time, or up to a total number."""

    def __init__(
        self, *, rate: float = math.inf, seconds: float = math.inf, count: float = math.inf
    ) -> None:
        self._rate = rate
        self._next_at = time.monotonic()
        self._end_at = self._next_at + seconds
        self._left = count
        self._is_stopped = False

    def stop(self) -> None:
        """Let no client write any more."""
        self._is_stopped = True

    async def wait_turn(self) -> bool:
        """Wait for the time of the next write; return False when the load is over.

        If no client was free at that time, the later writes do not catch up.
        """
        now = time.monotonic()
        at = max(self._next_at, now)
        if at >= self._end_at or self._left <= 0:
            return False
        self._next_at = at + 1 / self._rate
        self._left -= 1
        if at > now:
            await asyncio.sleep(at - now)
        return not self._is_stopped


def perf(invocation: CtlInvocation) -> None:
    """Write at a rate for a minute; report whether the cluster kept up, and how steadily."""
    load = _load(invocation, PERF_LOADS)
    prefix = invocation.text("prefix")
    with invocation.client() as client:
        _refuse_keys(invocation, client, f"'{invocation.root.name} del --prefix {prefix}'")
        pace = Pace(rate=load.writes, seconds=PERF_SECONDS)
        total = int(load.writes * PERF_SECONDS)
        results = _drive(invocation, load, pace, total=total, key_bytes=256, value_bytes=1024)
        try:
            revision = _delete(client, prefix)
        except KvorumError as error:
            invocation.output_line(
                f"FAIL: Cleanup failed during key deletion: ERROR({error_text(error)})"
            )
        else:
            _tidy(invocation, client, revision)
    if not _judge(invocation, load, results):
        invocation.output_line("FAIL")
        raise SystemExit(GENERAL)
    invocation.output_line("PASS")


def datascale(invocation: CtlInvocation) -> None:
    """Write the keys of a load; report how much memory an endpoint took for them."""
    load = _load(invocation, DATASCALE_LOADS)
    prefix = invocation.text("prefix")
    with invocation.client() as client:
        _refuse_keys(invocation, client, f"{invocation.root.name} del --prefix {prefix}")
        before = _memory(invocation, "before")
        invocation.output_line(
            f"Start data scale check for work load [{load.writes} key-value pairs, 1024 bytes per "
            f"key-value, {load.clients} concurrent clients]."
        )
        pace = Pace(count=load.writes)
        total = load.writes
        results = _drive(invocation, load, pace, total=total, key_bytes=512, value_bytes=512)
        after = _memory(invocation, "after")
        _tidy(invocation, client, _delete(client, prefix))
    if _print_errors(invocation, results):
        raise SystemExit(GENERAL)
    used = (after - before) / (1 << 20)
    invocation.output_line(f"PASS: Approximate system memory used : {used:.2f} MB.")


def _load(invocation: CtlInvocation, loads: dict[str, Load]) -> Load:
    name = NAMES.get(invocation.text("load"))
    if name is None:
        raise CommandError(f"unknown load option {invocation.text('load')}", BAD_FEATURE)
    return loads[name]


def _refuse_keys(invocation: CtlInvocation, client: Client, advice: str) -> None:
    """Refuse a prefix with keys, because the check deletes the whole prefix at the end."""
    prefix = invocation.text("prefix")
    key, end = key_range(prefix=as_bytes(prefix))
    request = pb.RangeRequest(key=key, range_end=end, limit=1)
    found = invocation.ask(client, rpcs.RANGE, request, pb.RangeResponse)
    if found.kvs:
        raise CommandError(
            f"prefix {quoted(prefix)} has keys. Delete with {advice} first", INVALID_INPUT
        )


def _drive(
    invocation: CtlInvocation,
    load: Load,
    pace: Pace,
    *,
    total: int,
    key_bytes: int,
    value_bytes: int,
) -> Results:
    """Write until the load is over, or until SIGINT arrives."""
    prefix, value = as_bytes(invocation.text("prefix")), bytes(value_bytes)
    timeout = invocation.seconds("command-timeout")
    results = Results()

    async def write(client: AsyncClient, progress: ProgressLine) -> None:
        while await pace.wait_turn():
            progress.add(1)
            key = prefix + os.urandom(8).ljust(key_bytes, b"\0")
            started_at = time.monotonic()
            try:
                await client.put(key, value, timeout=timeout)
            except KvorumError as error:
                results.errors[error_text(error)] += 1
            else:
                results.seconds.append(time.monotonic() - started_at)

    async def write_all() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, pace.stop)
        count = math.ceil(load.clients / CLIENTS_PER_CONNECTION)
        clients = connect_all(invocation, AsyncClient, count)
        try:
            started_at = time.monotonic()
            with ProgressLine("writing", total, human_count) as progress:
                writers = (write(clients[at % count], progress) for at in range(load.clients))
                await asyncio.gather(*writers)
            results.total_seconds = time.monotonic() - started_at
        finally:
            for client in clients:
                await client.close()

    asyncio.run(write_all())
    return results


def _delete(client: Client, prefix: str) -> int:
    """Delete the written keys; return the revision of the deletion."""
    return client.delete(prefix=as_bytes(prefix), timeout=CLEANUP_SECONDS_MAX).revision


def _tidy(invocation: CtlInvocation, client: Client, revision: int) -> None:
    if invocation.switch("auto-compact"):
        invocation.output_line(f"Compacting with revision {revision}")
        client.compact(revision, physical=True, timeout=CLEANUP_SECONDS_MAX)
        invocation.output_line(f"Compacted with revision {revision}")
    if invocation.switch("auto-defrag"):
        for endpoint in endpoints_of(invocation):
            invocation.output_line(f"Defragmenting {quoted(endpoint)}")
            with invocation.client([endpoint]) as one:
                one.maintenance.defragment(timeout=CLEANUP_SECONDS_MAX)
            invocation.output_line(f"Defragmented {quoted(endpoint)}")


def _print_errors(invocation: CtlInvocation, results: Results) -> bool:
    if results.errors:
        invocation.output_line("FAIL: too many errors")
        for text, count in results.errors.items():
            invocation.output_line(f"FAIL: ERROR({text}) -> {count}")
    return bool(results.errors)


def _judge(invocation: CtlInvocation, load: Load, results: Results) -> bool:
    """Print a verdict on each measure; return whether all of them passed."""
    print_line: Callable[[str], None] = invocation.output_line
    is_good = not _print_errors(invocation, results)
    rate = int(results.per_second) + 1
    if results.per_second / load.writes <= THROUGHPUT_SHARE_MIN:
        print_line(f"FAIL: Throughput too low: {rate} writes/s")
        is_good = False
    else:
        print_line(f"PASS: Throughput is {rate} writes/s")
    if results.slowest > SLOWEST_SECONDS_MAX:
        print_line(f"Slowest request took too long: {results.slowest:f}s")
        is_good = False
    else:
        print_line(f"PASS: Slowest request took {results.slowest:f}s")
    if results.deviation > DEVIATION_SECONDS_MAX:
        print_line(f"Stddev too high: {results.deviation:f}s")
        is_good = False
    else:
        print_line(f"PASS: Stddev is {results.deviation:f}s")
    return is_good


def _memory(invocation: CtlInvocation, moment: str) -> float:
    """Return the resident memory of the first endpoint, from its metrics."""
    endpoint = endpoints_of(invocation)[0]
    try:
        return _metric(invocation, endpoint)
    except (OSError, HTTPException, ValueError) as error:
        invocation.output_line(f"fetch error: {endpoint}/metrics: {error}")
        invocation.output_line(f"FAIL: Could not read {MEMORY_METRIC} {moment} the put operations.")
        raise SystemExit(GENERAL) from None


def _metric(invocation: CtlInvocation, endpoint: str) -> float:
    address = parse_endpoint(endpoint)
    seconds = invocation.seconds("command-timeout")
    context = contexts(secrets_of(invocation).tls)(address)
    if address.port is None:
        raise ValueError("metrics are not read from a socket that is a file")
    connection: HTTPConnection
    if context is None:
        connection = HTTPConnection(address.host, address.port, timeout=seconds)
    else:
        context.set_alpn_protocols(["http/1.1"])
        connection = HTTPSConnection(address.host, address.port, timeout=seconds, context=context)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    for line in lines:
        name, _, value = line.partition(" ")
        if name == MEMORY_METRIC:
            return float(value)
    raise ValueError(f"could not find: {MEMORY_METRIC}")
