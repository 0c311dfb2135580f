"""Compare the server with etcd, side by side, in one table of ratios and a plot of them.

All servers of a comparison run at the same time; the load goes to one, then to the other, round by
round, so that other load on the machine affects both. A ratio above 1 is in Kvorum's favour: more
requests, more events, less time, less memory. Run it as `make bench-server`.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.load import Load, call, fill, first_answer
from bench.servers import Server, running, single_client_etcd
from bench.table import Row, compared, header, keep
from kvorum.api.codec import key_value, put_event
from kvorum.api.pb.etcdserverpb import (
    Compare,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    PutRequest,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
    WatchCreateRequest,
    WatchRequest,
)

VALUE = b"x" * 256
PUT, RANGE, TXN = (f"/etcdserverpb.KV/{name}" for name in ("Put", "Range", "Txn"))
WATCH = "/etcdserverpb.Watch/Watch"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
GRANT = "/etcdserverpb.Lease/LeaseGrant"
LOAD_PROCESSES = 4
LEASE = 7587
WATCHERS = 100


def key(number: int) -> bytes:
    """Return one of the keys that the load uses."""
    return b"/bench/%08d" % number


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of request, and its goal."""

    name: str
    path: str
    message: Callable[[bytes], bytes]
    goal: float
    alone: bool = False
    """Whether a single client sends each request after the last answer, and latency counts;
    otherwise a thousand requests run at once."""


def put(name: bytes) -> bytes:
    """Return a put of 256 bytes."""
    return PutRequest(key=name, value=VALUE).SerializeToString()


def linearizable(name: bytes) -> bytes:
    """Return a linearizable range of one key."""
    return RangeRequest(key=name).SerializeToString()


def serializable(name: bytes) -> bytes:
    """Return a serializable range of one key."""
    return RangeRequest(key=name, serializable=True).SerializeToString()


def txn(name: bytes) -> bytes:
    """Return a transaction that compares and puts."""
    compare = Compare(key=name, target=Compare.VERSION, result=Compare.GREATER, version=0)
    put = RequestOp(request_put=PutRequest(key=name, value=VALUE))
    return TxnRequest(compare=[compare], success=[put]).SerializeToString()


def _thousand(name: bytes) -> bytes:
    # The range ignores the name, so that all processes read the same thousand keys.
    del name
    return RangeRequest(key=key(0), range_end=key(1000)).SerializeToString()


def _keep_alive(name: bytes) -> bytes:
    del name
    return LeaseKeepAliveRequest(ID=LEASE).SerializeToString()


SCENARIOS = (
    Scenario("put, 256 B", PUT, put, 2.0),
    Scenario("txn, compare and put", TXN, txn, 2.5),
    Scenario("linearizable range of a key", RANGE, linearizable, 2.0),
    Scenario("serializable range of a key", RANGE, serializable, 2.0),
    Scenario("range of 1,000 keys", RANGE, _thousand, 1.0),
    Scenario("lease keep-alive", KEEP_ALIVE, _keep_alive, 2.0),
    Scenario("put, one client", PUT, put, 1.0, alone=True),
    Scenario("linearizable range, one client", RANGE, linearizable, 1.0, alone=True),
    Scenario("serializable range, one client", RANGE, serializable, 1.0, alone=True),
    Scenario("txn, one client", TXN, txn, 1.0, alone=True),
)


def check(server: Server, scenario: Scenario) -> None:
    """Make one request as a real client, and check the answer."""
    message = scenario.message(key(0))
    if scenario.path == KEEP_ALIVE:
        answer = LeaseKeepAliveResponse.FromString(
            first_answer(server.address, KEEP_ALIVE, message)
        )
        assert answer.TTL > 0, f"{server.name}: {scenario.name} answered {answer}"
        return
    reply = call(server.address, scenario.path, message)
    if scenario.path == RANGE:
        found = RangeResponse.FromString(reply)
        expected = 1000 if scenario.message is _thousand else 1
        assert len(found.kvs) == expected, f"{server.name}: {scenario.name} found {found.count}"
    if scenario.path == TXN:
        assert TxnResponse.FromString(reply).succeeded, f"{server.name}: the compare failed"


def measure(server: Server, scenario: Scenario, seconds: int) -> float:
    """Return requests per second, or for a single client the median latency in seconds."""
    if scenario.alone:
        load = Load(
            server.address,
            scenario.path,
            [scenario.message(key(0))],
            connections=1,
            streams=1,
            seconds=seconds,
            latencies=True,
        )
        return load.finish().median_seconds
    messages = [scenario.message(key(number)) for number in range(LOAD_PROCESSES)]
    load = Load(
        server.address,
        scenario.path,
        messages,
        connections=20 // LOAD_PROCESSES,
        streams=50,
        seconds=seconds,
    )
    return load.finish().requests_per_second


def measure_watch(server: Server, seconds: int) -> float:
    """Return how many events per second reach a hundred watchers of a key that is put."""
    name = key(0)
    create = WatchRequest(create_request=WatchCreateRequest(key=name)).SerializeToString()
    watchers = Load(
        server.address, WATCH, [create], connections=10, streams=WATCHERS // 10, seconds=seconds
    )
    writers = Load(server.address, PUT, [put(name)], connections=2, streams=10, seconds=seconds)
    data = watchers.finish().data_bytes
    writers.finish()
    # Events in one response share a frame and a header; these few bytes are neglected.
    event = len(put_event(key_value(name, 1 << 20, 1 << 20, 1 << 20, VALUE, 0))) + 3
    return data / event / seconds


def measure_puts_watched(server: Server, seconds: int) -> float:
    """Return the fraction of the put rate that remains when a hundred watchers follow the key.

    The reference is the put rate beside as many watchers of another key.
    """
    rates = []
    for name, watched in ((key(1), key(0)), (key(0), key(0))):
        create = WatchRequest(create_request=WatchCreateRequest(key=watched)).SerializeToString()
        watchers = Load(
            server.address, WATCH, [create], connections=10, streams=WATCHERS // 10, seconds=seconds
        )
        writers = Load(server.address, PUT, [put(name)], connections=2, streams=10, seconds=seconds)
        rates.append(writers.finish().requests_per_second)
        watchers.finish()
    return rates[1] / rates[0]


def prepare(servers: Iterable[Server], keys: int) -> None:
    """Put the same keys and the lease into every server, and check all scenarios."""
    for server in servers:
        fill(server.address, ((key(number), VALUE) for number in range(keys)))
        grant = LeaseGrantRequest(ID=LEASE, TTL=3600).SerializeToString()
        granted = LeaseGrantResponse.FromString(call(server.address, GRANT, grant))
        assert granted.ID == LEASE, f"{server.name} granted {granted}"
        for scenario in SCENARIOS:
            check(server, scenario)


def run(state: str, keys: int, rounds: int, seconds: int, only: Sequence[str]) -> list[Row]:
    """Compare on stores of `keys` keys; with `only`, measure only rows named with its words."""
    rows: list[Row] = []

    def add(
        name: str,
        unit: str,
        servers: tuple[Server, Server],
        goal: float,
        figure: Callable[[Server], float],
    ) -> None:
        if not only or any(word in name for word in only):
            times = 1 if unit == "MiB" else rounds
            is_less = unit in ("us", "ms", "MiB")
            rows.append(
                compared(state, name, unit, servers, times, goal, figure, less_is_better=is_less)
            )

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd, ours = (stack.enter_context(running(name, directory)) for name in ("etcd", "kvorum"))
        alone = etcd
        if single_client_etcd() != etcd.name:
            alone = stack.enter_context(running(single_client_etcd(), directory))
        prepare({etcd.name: etcd, alone.name: alone, ours.name: ours}.values(), keys)
        both = (etcd, ours)
        for scenario in SCENARIOS:

            def figure(server: Server, scenario: Scenario = scenario) -> float:
                value = measure(server, scenario, seconds)
                return value * 1e6 if scenario.alone else value

            servers = (alone, ours) if scenario.alone else both
            unit = "us" if scenario.alone else "/s"
            add(scenario.name, unit, servers, scenario.goal, figure)

        def watched(server: Server) -> float:
            return measure_watch(server, seconds)

        def left(server: Server) -> float:
            return 100 * measure_puts_watched(server, seconds)

        def memory(server: Server) -> float:
            return server.anonymous_bytes() / (1 << 20)

        def start_milliseconds(server: Server) -> float:
            server.restart()
            return server.start_seconds * 1e3

        add(f"events to {WATCHERS} watchers", "/s", both, 2.0, watched)
        add(f"put rate left by {WATCHERS} watchers", "%", both, 1.0, left)
        add("anonymous memory after the run", "MiB", both, 1.0, memory)
        add("start-up", "ms", both, 1.0, start_milliseconds)
    return rows


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    parser.add_argument(
        "--keys", type=int, default=1_000_000, help="of the store that is not empty; 0: none"
    )
    parser.add_argument("--only", nargs="+", default=(), help="words in the names of the rows")
    arguments = parser.parse_args()
    header()
    how = arguments.rounds, arguments.seconds, arguments.only
    rows = run("empty", 1000, *how)
    if arguments.keys:
        rows += run(f"{arguments.keys:,} keys", arguments.keys, *how)
    keep(rows, "server")


if __name__ == "__main__":
    main()
