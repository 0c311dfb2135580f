"""Compare the edge with etcd: a constant answer through `poll` and `reply`, and etcd's range.

Both servers run at the same time; h2load calls one, then the other, round by round, so that other
load on the machine affects both. Run it as `make bench-edge`.
"""

import argparse
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load import Load, fill
from bench.servers import opponent, running
from kvorum.api.codec import HeaderEncoder, key_value, length_delimited
from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.network.edge import TlsSettings, edge_name, open_edge
from kvorum.network.tls.certificates import self_signed

RANGE = "/etcdserverpb.KV/Range"
KEY, VALUE = b"/bench/key", b"x" * 256
LOADS = {"20 connections, 50 streams each": (20, 50), "one client at a time": (1, 1)}


def serve_constant(tls: TlsSettings | None) -> None:
    """Answer every request with the bytes of etcd's answer for the key, until terminated."""
    kv = key_value(KEY, 2, 2, 1, VALUE, 0)
    header = HeaderEncoder(cluster_id=1 << 62, member_id=1 << 62, raft_term=2).field(2)
    answer = header + length_delimited(b"\x12", kv) + b"\x20\x01"
    edge = open_edge([(RANGE, False)], ["token", "authorization", "hasleader"])
    print(edge.listen("127.0.0.1:0", tls)[1], flush=True)
    poller = select.poll()
    poller.register(edge.fileno(), select.POLLIN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    while True:
        requests, _ = edge.poll(1000, 4 << 20)
        if requests:
            edge.reply([(call, answer) for call, _, _, _ in requests])
        elif edge.announce_sleep():
            poller.poll()
            edge.awake()


@contextmanager
def serving(*flags: str) -> Iterator[str]:
    """Serve the constant from a process of its own; yield its address."""
    command = [sys.executable, "-m", "bench.edge", "--serve", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def rate(url: str, connections: int, streams: int, message: bytes, seconds: int) -> float:
    """Return the requests per second that one server answers."""
    scheme, _, address = url.partition("://")
    load = Load(
        address,
        RANGE,
        [message],
        connections=connections,
        streams=streams,
        seconds=seconds,
        scheme=scheme,
    )
    return load.finish().requests_per_second


def compare(ours: str, theirs: str, rounds: int, seconds: int, message: bytes) -> None:
    """Print the rates and their ratio for each kind of load."""
    security = "with TLS" if ours.startswith("https") else "in plain text"
    for name, (connections, streams) in LOADS.items():
        pairs = [
            (
                rate(theirs, connections, streams, message, seconds),
                rate(ours, connections, streams, message, seconds),
            )
            for _ in range(rounds)
        ]
        etcd, kvorum = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [ours / theirs for theirs, ours in pairs]
        print(f"{name}, {security}:")
        print(f"  etcd {opponent()}, serializable range  {etcd:>10,.0f} requests/s")
        print(f"  kvorum, {edge_name()} edge, constant {kvorum:>10,.0f} requests/s")
        print(
            f"  ratio {statistics.median(ratios):.2f}"
            f" (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})",
            flush=True,
        )


def main() -> None:
    """Run the comparison, or serve the constant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="only serve the constant")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"), help="serve it with TLS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    arguments = parser.parse_args()
    if arguments.serve:
        serve_constant(TlsSettings(*arguments.tls) if arguments.tls else None)
    message = RangeRequest(key=KEY, serializable=True).SerializeToString()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with running("etcd", directory) as etcd, serving() as ours:
            fill(etcd.address, [(KEY, VALUE)])
            compare(
                f"http://{ours}",
                f"http://{etcd.address}",
                arguments.rounds,
                arguments.seconds,
                message,
            )
        cert, key = map(str, self_signed(directory / "tls", ["127.0.0.1"], 1))
        flags = [f"--cert-file={cert}", f"--key-file={key}"]
        # The same directory as before holds the key.
        with (
            running("etcd", directory, *flags, scheme="https") as etcd,
            serving("--tls", cert, key) as ours,
        ):
            compare(
                f"https://{ours}",
                f"https://{etcd.address}",
                arguments.rounds,
                arguments.seconds,
                message,
            )


if __name__ == "__main__":
    main()
