"""Compare the JSON gateway with etcd's, side by side: rates, latencies, events to watchers.

The requests are those of `bench.server`, as JSON over HTTP/1.1, by one client or by fifty at once.
A ratio above 1 is in Kvorum's favour. Run it as `make bench-gateway`.
"""

import argparse
import base64
import http.client
import json
import re
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.load import WARM_UP_SECONDS, fill
from bench.server import VALUE, WATCHERS, key
from bench.servers import Server, running
from bench.table import Row, compared, header, keep
from bench.watchers import RECEIVE_BYTES, measure_watchers

KEYS = 1000
LOAD_PROCESSES = 2
CONNECTIONS = 50
EVENT = b'"mod_revision"'
"""Appears once in each event, also in responses with several events."""

Json = dict[str, Any]


def text(data: bytes) -> str:
    """Encode bytes for JSON."""
    return base64.b64encode(data).decode()


def put_request(name: bytes) -> Json:
    """Return a put of 256 bytes."""
    return {"key": text(name), "value": text(VALUE)}


def linearizable(name: bytes) -> Json:
    """Return a linearizable range of one key."""
    return {"key": text(name)}


def serializable(name: bytes) -> Json:
    """Return a serializable range of one key."""
    return {"key": text(name), "serializable": True}


def txn(name: bytes) -> Json:
    """Return a transaction that compares and puts."""
    compare = {"key": text(name), "target": "VERSION", "result": "GREATER", "version": "0"}
    return {"compare": [compare], "success": [{"request_put": put_request(name)}]}


def thousand(name: bytes) -> Json:
    """Return a range of all keys; it ignores the name."""
    del name
    return {"key": text(key(0)), "range_end": text(key(KEYS))}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of request, the required content of its answer, and its goal."""

    name: str
    path: str
    request: Callable[[bytes], Json]
    answer: Json
    goal: float = 2.0
    alone: bool = False
    """Whether a single client sends each request after the last answer, and latency counts."""


ONE = {"count": "1"}
DONE = {"succeeded": True}
SCENARIOS = (
    Scenario("JSON put, 256 B", "kv/put", put_request, {}),
    Scenario("JSON txn, compare and put", "kv/txn", txn, DONE),
    Scenario("JSON linearizable range of a key", "kv/range", linearizable, ONE),
    Scenario("JSON serializable range of a key", "kv/range", serializable, ONE),
    Scenario("JSON range of 1,000 keys", "kv/range", thousand, {"count": "1000"}),
    Scenario("JSON put, one client", "kv/put", put_request, {}, goal=1.0, alone=True),
    Scenario("JSON txn, one client", "kv/txn", txn, DONE, goal=1.0, alone=True),
    Scenario("JSON range, one client", "kv/range", linearizable, ONE, goal=1.0, alone=True),
)


def check(server: Server, scenario: Scenario) -> None:
    """Make one request, and check the answer."""
    connection = http.client.HTTPConnection(server.address, timeout=30)
    try:
        body = json.dumps(scenario.request(key(0)))
        connection.request("POST", f"/v3/{scenario.path}", body)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    expected = {"header": answer.get("header"), **scenario.answer}
    assert answer["header"], f"{server.name}: {scenario.name} answered {answer}"
    assert expected.items() <= answer.items(), f"{server.name}: {scenario.name} answered {answer}"


def measure(server: Server, scenario: Scenario, seconds: int) -> float:
    """Return requests per second, or for a single client the median latency in microseconds."""
    check(server, scenario)
    processes = 1 if scenario.alone else LOAD_PROCESSES
    connections = 1 if scenario.alone else CONNECTIONS // LOAD_PROCESSES
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        started = []
        for number in range(processes):
            body = Path(directory, f"body{number}")
            body.write_text(json.dumps(scenario.request(key(number))))
            command = ["h2load", "--h1", "-c", str(connections), "-t", "1", "-D", str(seconds)]
            command += ["--warm-up-time", str(WARM_UP_SECONDS), "-d", str(body)]
            command += ["-H", "content-type: application/json"]
            if scenario.alone:
                command.append(f"--log-file={log}")
            command.append(f"http://{server.address}/v3/{scenario.path}")
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        rate = sum(requests_per_second(process.communicate()[0]) for process in started)
        if not scenario.alone:
            return rate
        return statistics.median(int(line.split("\t")[2]) for line in log.open() if line.strip())


def requests_per_second(output: str) -> float:
    """Parse the rate that h2load measured; exit if a request failed."""
    rate = re.search(r"([\d.]+) req/s", output)
    failed = re.search(r"(\d+) failed", output)
    if rate is None or failed is None or int(failed[1]):
        raise SystemExit(f"h2load had failures:\n{output}")
    return float(rate[1])


# Watchers.


def json_watchers(address: str, count: int) -> list[socket.socket]:
    """Open `count` watchers of the key that is put, each on a connection of its own."""
    return [open_watch(address) for _ in range(count)]


def open_watch(address: str) -> socket.socket:
    """Watch the key that is put; return the stream after its first line."""
    host, _, port = address.partition(":")
    stream = socket.create_connection((host, int(port)), timeout=30)
    body = json.dumps({"create_request": {"key": text(key(0))}}).encode()
    head = f"POST /v3/watch HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(body)}\r\n\r\n"
    stream.sendall(head.encode() + body)
    received = b""
    while b'"created":true' not in received:
        data = stream.recv(RECEIVE_BYTES)
        assert data, f"the watch ended: {received!r}"
        received += data
    return stream


def run(rounds: int, seconds: int) -> list[Row]:
    """Compare all scenarios on stores of a thousand keys."""
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd, ours = (stack.enter_context(running(name, directory)) for name in ("etcd", "kvorum"))
        for server in (etcd, ours):
            fill(server.address, ((key(number), VALUE) for number in range(KEYS)))
        for scenario in SCENARIOS:

            def figure(server: Server, scenario: Scenario = scenario) -> float:
                return measure(server, scenario, seconds)

            rows.append(
                compared(
                    "gateway",
                    scenario.name,
                    "us" if scenario.alone else "/s",
                    (etcd, ours),
                    rounds,
                    scenario.goal,
                    figure,
                    less_is_better=scenario.alone,
                )
            )
        rows.append(
            compared(
                "gateway",
                f"events to {WATCHERS} JSON watchers",
                "/s",
                (etcd, ours),
                rounds,
                1.5,
                lambda server: measure_watchers(
                    server.address, json_watchers, EVENT, WATCHERS, seconds
                ),
            )
        )
    return rows


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    arguments = parser.parse_args()
    header()
    keep(run(arguments.rounds, arguments.seconds), "gateway")


if __name__ == "__main__":
    main()
